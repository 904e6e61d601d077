"""16-bit training from the command line: what is logged and stored, and every way to ask for what cannot be."""
import json

import pytest

from cli_support import DIVERGED, TINY, USAGE, fails, run, succeeds


def logged(folder):
    return [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]


def test_a_run_in_f16_is_logged_evaluated_and_goes_on_in_bf16(folder):
    succeeds("train", *TINY, "--precision", "f16", "--epochs", "2", "--output", "run", cwd=folder)
    steps = logged(folder)
    assert [(s["loss_scale"], s["skipped_steps"]) for s in steps] == [(65536, 0)] * 4
    assert 'precision = "f16"' in (folder / "run/config.toml").read_text()
    in_f16 = json.loads(succeeds("eval", folder / "run/checkpoint.safetensors", "--json").stdout)
    in_f32 = json.loads(succeeds("eval", folder / "run/checkpoint.safetensors", "--precision", "f32", "--json").stdout)
    assert in_f16["loss"] != in_f32["loss"] and abs(in_f16["loss"] - in_f32["loss"]) < 0.02 * in_f32["loss"]
    resumed = succeeds("train", "--resume", "--epochs", "3", "--precision", "bf16", "--output", "run", cwd=folder)
    assert resumed.stderr.count("was trained in f16, the run goes on in bf16") == 1
    assert [s["loss_scale"] for s in logged(folder)] == [65536] * 4 + [1] * 2


def test_a_scale_that_always_overflows_ends_the_run(folder):
    fails(DIVERGED, "train", *TINY, "--precision", "f16-pseudo", "--loss-scale", "3e38", "--images", "4", "--crop", "16",
          "--epochs", "60", "--quiet", "--output", "run", cwd=folder,
          says=["in f16-pseudo no step of the last 50 had finite gradients, up to step 50", "try precision bf16"])


@pytest.mark.parametrize("flags, says", [
    (["--precision", "bf61"], ["--precision", "bf61", "bf16"]),
    (["--precision", "f16", "--loss-scale", "0"], ["--loss-scale must be 'dynamic', 'auto' or a number above 0 that f32 holds (1e-45 to 3.4e38), got '0'"]),
    (["--precision", "f16", "--loss-scale", "-8"], ["got '-8'"]),
    (["--precision", "f16", "--loss-scale", "inf"], ["got 'inf'"]),
    (["--precision", "f16", "--loss-scale", "nan"], ["got 'nan'"]),
    (["--precision", "f16", "--loss-scale", "fast"], ["got 'fast'"]),
    (["--precision", "bf16", "--loss-scale", "8"], ["--loss-scale has no effect", "f16 or f16-pseudo", "which is bf16"]),
    (["--precision", "bf16", "--dtype", "f64"], ["--precision must be f32", "f64"]),
])
def test_what_cannot_be_is_refused(folder, flags, says):
    fails(USAGE, "train", *TINY, *flags, "--output", "run", cwd=folder, says=says)
    assert not (folder / "run").exists()


def test_a_file_says_it_as_the_flags_do(folder):
    (folder / "f16.toml").write_text('[train]\nprecision = "f16"\nloss_scale = "128"\n')
    shown = run("train", "--config", "f16.toml", "--dry-run", cwd=folder).stdout
    assert 'precision = "f16"' in shown and 'loss_scale = "128"' in shown
    (folder / "bad.toml").write_text('[train]\nprecision = "f16"\nloss_scale = "-1"\n')
    fails(USAGE, "train", "--config", "bad.toml", "--output", "run", cwd=folder, says=["bad.toml:3", "got '-1'"])

"""The programs of examples/mixed_precision: a few steps in each precision, what they refuse, and that their record is as
the settings say. What whole trainings reach is in docs/results/mixed_precision.md."""
import functools
import json
import math
import os
import pathlib
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
PROGRAMS = ("ssd", "speech", "translation", "language_model", "dcgan", "denoise")
STEPS = 2
USAGE, DIVERGED, OUTPUT = 2, 5, 6  # base/error.h


def start(program, *flags):
    # One thread: a blocked pool of two spins on a busy machine.
    return subprocess.run([BUILD / "examples/mixed_precision" / program, *flags], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})


def record_bytes(program, *flags):
    with tempfile.TemporaryDirectory() as folder:
        record = pathlib.Path(folder) / "record.jsonl"
        result = start(program, "--steps", str(STEPS), *flags, "--json", record)
        assert result.returncode == 0, result.stderr
        return record.read_bytes()


@functools.cache
def trained(program, *flags):
    """(lines of the steps, line of the run)"""
    lines = [json.loads(line) for line in record_bytes(program, *flags).splitlines()]
    return lines[:-1], lines[-1]


def losses(program, *flags):
    return [[value for key, value in line.items() if key.startswith("loss")] for line in trained(program, *flags)[0]]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("flags", [("--precision", "bf16"), ("--precision", "f16-pseudo", "--loss-scale", "128"),
                                   ("--precision", "f16", "--loss-scale", "128")], ids=["bf16", "f16-pseudo", "f16"])
def test_the_first_steps_are_those_of_f32(program, flags):
    for got, want in zip(losses(program, *flags), losses(program), strict=True):
        assert got == pytest.approx(want, rel=0.02)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_record_says_what_was_trained(program):
    steps, run = trained(program, "--precision", "f16-pseudo", "--loss-scale", "128")
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["scale"] == 128 and line["skipped"] == 0 for line in steps)
    assert (run["program"], run["precision"], run["loss_scale"], run["steps"], run["seed"]) == (program, "f16-pseudo", "128", STEPS, 1)
    assert run["device"] == "cpu"
    assert run["metrics"] and all(math.isfinite(value) for value in run["metrics"].values())
    assert run["activation_gradients"]["values"] > 0 and run["weight_gradients"]["values"] > 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_seed_gives_the_same_bytes(program):
    flags = ("--precision", "f16-pseudo", "--loss-scale", "128")
    steps, run = trained(program, *flags)
    again = record_bytes(program, *flags)
    assert [json.loads(line) for line in again.splitlines()] == [*steps, run]


def test_another_seed_is_another_training():
    assert losses("translation", "--seed", "2") != losses("translation")


def test_the_mean_over_all_values_of_images_needs_a_scale_by_itself():
    """393216 values share the loss."""
    without = trained("denoise", "--precision", "f16-pseudo", "--loss-scale", "1")[1]["activation_gradients"]
    scaled = trained("denoise", "--precision", "f16-pseudo", "--loss-scale", "1024")[1]["activation_gradients"]
    assert without["zero"] > scaled["zero"] + 0.03 and scaled["recoverable"] > 0.05


@pytest.mark.parametrize("flags, says", [
    (["--precision", "bf61"], ["bf61", "bf16"]),
    (["--precision", "f16", "--loss-scale", "0"], ["--loss-scale", "above 0 that f32 holds", "got '0'"]),
    (["--precision", "f16", "--loss-scale", "inf"], ["got 'inf'"]),
    (["--precision", "f16", "--loss-scale", "auto"], ["'dynamic' or a number above 0", "got 'auto'"]),
    (["--precision", "bf16", "--loss-scale", "8"], ["--loss-scale has no effect in bf16", "f16 or f16-pseudo"]),
    (["--device", "gpu"], ["gpu", "cpu", "cuda"]),
    (["--steps", "0"], ["--steps must be at least 1, got 0"]),
    (["--stepps", "3"], ["--stepps"]),
])
def test_what_cannot_be_is_refused_in_one_line(flags, says):
    fails(USAGE, "dcgan", flags, says)


def test_a_record_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    fails(OUTPUT, "translation", ["--steps", "1", "--json", str(tmp_path / "file/record.jsonl")], [str(tmp_path / "file")])


def fails(code, program, flags, says):
    result = start(program, *flags)
    assert result.returncode == code, result.stderr
    assert result.stderr.startswith(f"{program}: error: ") and result.stderr.count("\n") == 1
    assert all(text in result.stderr for text in says), result.stderr

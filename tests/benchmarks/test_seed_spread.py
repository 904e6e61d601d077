"""benchmarks/seed_spread.py: trainings of one step each; what it compares, repeats and refuses."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks/seed_spread.py"
sys.path.insert(0, str(SCRIPT.parent))
import seed_spread as benchmark  # noqa: E402

TINY = ("--model deeplabv3_resnet18_narrow --data generated --images 8 --val-images 2 --height 48 --width 64 --crop 32 "
        "--batch 4 --threads 1 --max-steps 1 --log-every 1").split()
VARIANTS = ["--variant", "standard: --strategy standard", "--variant", "inplace: --strategy inplace_2"]


def run(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120)


def test_trains_once_and_compares_means(tmp_path):
    command = ["--output", tmp_path / "runs", "--seeds", "1,2", *VARIANTS, "--json", tmp_path / "out.json", *TINY]
    first = run(*command)
    assert first.returncode == 0, first.stderr
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["metric"] == "mean IoU" and written["seeds"] == [1, 2]
    standard, inplace = written["variants"]
    assert len(standard["values"]) == 2 and standard["spread"] == max(standard["values"]) - min(standard["values"])
    assert inplace["difference"] == pytest.approx(inplace["mean"] - standard["mean"])
    # One step from one seed: the two differ by rounding alone.
    assert inplace["last_losses"] == pytest.approx(standard["last_losses"], rel=1e-5)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/checkpoint.safetensors")}
    assert len(stamps) == 4

    (tmp_path / "runs/inplace-2/finished").unlink()  # as if it had been interrupted: it goes on, and has nothing left to do
    second = run(*command)
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout
    changed = {path.parent.name for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp}
    assert changed <= {"inplace-2"}

    other = run(*command, "--lr", "0.5")
    assert other.returncode == 1
    assert "standard-1 holds a run of other options" in other.stderr and "another --output" in other.stderr


def test_a_variant_that_is_farther_away_than_the_seeds_move_it_fails(tmp_path, monkeypatch, capsys):
    reached = {"base-1": 0.70, "base-2": 0.72, "near-1": 0.70, "near-2": 0.69, "far-1": 0.68, "far-2": 0.67}

    def trained(command, folder):
        return [{"type": "step", "loss": 1.0}, {"type": "evaluation", "top1": reached[folder.name]}]

    monkeypatch.setattr(benchmark, "train", trained)
    arguments = ["seed_spread.py", "--output", str(tmp_path), "--seeds", "1,2", "--check", "--variant", "base:",
                 "--variant", "near: --lr 1"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert benchmark.main() == 0  # 1.5 points away, and the base's own spread is 2
    far = [*arguments, "--variant", "far: --lr 2"]
    monkeypatch.setattr(sys, "argv", far)
    assert benchmark.main() == 1
    assert "FAIL" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*far, "--allow", "2"])
    assert benchmark.main() == 0


def test_a_variant_that_may_gain_fails_only_where_it_loses(tmp_path, monkeypatch):
    reached = {"base-1": 0.70, "base-2": 0.72, "better-1": 0.80, "better-2": 0.81, "worse-1": 0.60, "worse-2": 0.61}

    def trained(command, folder):
        return [{"type": "step", "loss": 1.0}, {"type": "evaluation", "top1": reached[folder.name]}]

    monkeypatch.setattr(benchmark, "train", trained)
    for name, may_gain, status in (("better", [], 1), ("better", ["--may-gain"], 0), ("worse", ["--may-gain"], 1)):
        monkeypatch.setattr(sys, "argv", ["seed_spread.py", "--output", str(tmp_path), "--seeds", "1,2", "--check", *may_gain,
                                          "--variant", "base:", "--variant", f"{name}: --lr 1"])
        assert benchmark.main() == status


def test_where_the_data_lie_is_not_recorded():
    assert benchmark.recorded(["--config", "a.toml", "--data-root", "/home/me/my cifar10", "--lr", "1"]) == \
        "--config a.toml --data-root 'PATH/TO/my cifar10' --lr 1"


def test_a_training_that_fails_is_named_with_what_it_said(tmp_path):
    result = run("--output", tmp_path, "--seeds", "1,2", *VARIANTS, *TINY, "--lr", "-1")
    assert result.returncode == 1
    assert "standard-1: exit status 2" in result.stderr and "--lr" in result.stderr


@pytest.mark.parametrize("arguments, says", [
    (["--seeds", "1"], "two or more different whole numbers"),
    (["--seeds", "1,1"], "two or more different whole numbers"),
    (["--variant", "no colon"], "'NAME: OPTIONS' is needed"),
    (["--variant", "standard: --strategy store_y"], "different names"),
    (["--allow", "-1"], "0 to 100"),
])
def test_wrong_options_are_one_line(tmp_path, arguments, says):
    result = run("--output", tmp_path, "--seeds", "1,2", *VARIANTS, *arguments)
    assert result.returncode == 2
    assert says in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_an_evaluation_without_a_figure_names_its_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "train", lambda command, folder: [{"type": "evaluation", "mean_iou": None}])
    monkeypatch.setattr(sys, "argv", ["seed_spread.py", "--output", str(tmp_path), "--seeds", "1,2", *VARIANTS])
    assert benchmark.main() == 1
    assert capsys.readouterr().err == (f"seed_spread: {tmp_path}/standard-1: the last evaluation has no mean IoU: "
                                       "no label counted, or the network gave NaN\n")

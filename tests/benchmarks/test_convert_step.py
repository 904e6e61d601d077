"""The benchmark of converted networks at a small size: what it prints and writes, what it refuses. Nothing is timed."""
import json
import os
import subprocess
import sys

import pytest

from training_step_support import BUILD, ROOT, support


def run(*arguments, paths=""):
    environment = {**os.environ, **support.RETAINING_MALLOC, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(paths)}
    return subprocess.run([sys.executable, ROOT / "benchmarks/convert_step.py", "--build", BUILD, *map(str, arguments)],
                          capture_output=True, text=True, env=environment, timeout=300)


def test_every_claim_has_a_row(tmp_path):
    path = tmp_path / "out.json"
    done = run("--networks", "yolo_like", "--batch", 1, "--size", 32, "--repeats", 1, "--json", path)
    assert done.returncode == 0, done.stderr
    table = json.loads(path.read_text())
    rows = {(row["claim"], row["opponent_name"]): row for row in table["rows"]}
    assert len(rows) == 4 and table["benchmark"] == "convert_step"
    times = [rows[f"yolo_like step, {layout}", "eager"] for layout in ("NCHW", "channels-last")]
    # The limit stands where eager is faster.
    assert sorted(row["limit"] is None for row in times) == [False, True]
    limited, control = sorted(times, key=lambda row: row["limit"] is None)
    assert limited["limit"] == 1.0 and limited["opponent"]["median"] <= control["opponent"]["median"]
    kept = rows["yolo_like kept", "eager"]
    assert kept["unit"] == "MB" and kept["limit"] == 0.5 and 0 < kept["ratio"] < 0.6
    assert rows["conv + BN + ReLU [8, 64, 7, 7]", "eager"]["ratio"] > 0


def test_a_file_with_figures_of_a_network_is_not_replaced_where_its_package_is_missing(tmp_path):
    path, hidden = tmp_path / "out.json", tmp_path / "packages/segmentation_models_pytorch.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ModuleNotFoundError('hidden')\n")
    arguments = ["--networks", "smp_unet", "--what", "bytes", "--json", path]
    measured = json.dumps({"rows": [{"claim": "smp_unet kept", "opponent_name": "eager", "measured": {"median": 1}}]})
    path.write_text(measured)
    done = run(*arguments, paths=hidden.parent)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    for part in (f"{path} has figures for 'smp_unet kept'", "segmentation_models_pytorch is not installed"):
        assert part in done.stderr
    assert path.read_text() == measured
    path.unlink()
    done = run(*arguments, paths=hidden.parent)
    assert done.returncode == 0 and "smp_unet step" in done.stdout and "is not installed" in path.read_text()


@pytest.mark.parametrize("arguments, named", [(["--networks", "resnet51"], "'resnet51'"), (["--what", "speed"], "'speed'"),
                                              (["--size", "0"], "'0'")])
def test_wrong_options_are_refused(arguments, named):
    done = run(*arguments)
    assert done.returncode == 2 and named in done.stderr and done.stderr.count("\n") == 1


def test_a_folder_without_the_operators_is_refused(tmp_path):
    done = run("--build", tmp_path)
    assert done.returncode == 2 and str(tmp_path) in done.stderr

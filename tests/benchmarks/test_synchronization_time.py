"""The benchmark of statistics over a process group: what it prints and writes, what it refuses. Nothing is timed."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))


def run(*arguments):
    return subprocess.run([sys.executable, ROOT / "benchmarks/synchronization_time.py", *map(str, arguments)],
                          capture_output=True, text=True, timeout=300)


def test_every_claim_has_a_row(tmp_path):
    path = tmp_path / "out.json"
    done = run("--build", BUILD, "--repeats", 1, "--ranks", 2, "--json", path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [row["claim"] for row in rows] == [f"{direction}, {channels} channels, 2 ranks" for channels in (64, 512, 2048)
                                              for direction in ("forward", "backward")]
    assert all((row["limit"] == 1.2) == row["claim"].startswith("forward") for row in rows)


@pytest.mark.parametrize("ranks, named", [("2,none", "'none'"), ("1", "'1'"), ("2,1", "'2,1'")])
def test_a_wrong_number_of_ranks_is_refused(ranks, named):
    done = run("--build", BUILD, "--ranks", ranks)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and named in done.stderr


def test_a_folder_without_the_operators_is_refused(tmp_path):
    done = run("--build", tmp_path)
    assert done.returncode == 2 and str(tmp_path) in done.stderr

"""Every program of examples/python runs at a tiny size, and prints what it measured."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

import palimpsest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/python"
HELPERS = {"first_look.py"}
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in HELPERS)
SKIPPED = 77


def run(program, *arguments):
    """The lines that a program printed. One that asks for a package that is not installed is skipped, and says so."""
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(palimpsest.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / program), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if result.returncode == SKIPPED:
        assert result.stdout.count("\n") == 1
        pytest.skip(f"{program}: {result.stdout.strip()}")
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_keeps_less_and_trains_the_same(program):
    printed = run(program, "--batch", "2", "--size", "64", "--steps", "2")
    before, after, ratio = map(float, re.search(r"^kept for backward: ([\d.]+) MB before, ([\d.]+) MB after \(([\d.]+)\)",
                                                printed, re.M).groups())
    assert 0 < after < before and abs(ratio - after / before) < 0.01
    converted, layers = map(int, re.search(r"^(\d+) of (\d+) layers converted$", printed, re.M).groups())
    assert 0 < converted <= layers
    assert float(re.search(r"^losses of 2 steps of SGD in f64: they differ by (\S+) of the loss", printed, re.M)[1]) <= 1e-6
    if program == "densenet121_batch256.py":
        lines = re.findall(r"^\w+: (?:kept|peak) .*, at batch 6: predicted ([\d.]+) MB, measured ([\d.]+) MB$", printed, re.M)
        assert len(lines) == 4
        assert all(abs(float(predicted) / float(measured) - 1) < 0.02 for predicted, measured in lines)
        assert len(re.findall(r"^\w+: batch 256 at 64x64 needs [\d.]+ GB: fits 16 GB$", printed, re.M)) == 2


def test_a_missing_package_is_one_line_and_the_status_of_a_skipped_program(tmp_path):
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import first_look; first_look.package('no_such_package')"
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(palimpsest.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (SKIPPED, "skipped: the package no_such_package is not installed\n")


def test_the_table_of_the_folder_names_every_program():
    named = re.findall(r"^\| \[`(\w+\.py)`\]\(\w+\.py\)", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(named) == PROGRAMS

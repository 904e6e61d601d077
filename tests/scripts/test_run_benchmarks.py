"""Every benchmark of a build is run, and one failure is the exit status. The benchmarks here are stand-ins."""
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path):
    """The scripts, a build with two benchmarks that hold, and stand-ins for the two in Python."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/run_benchmarks", tmp_path / "scripts")
    shutil.copytree(ROOT / "benchmarks/pages", tmp_path / "benchmarks/pages")
    shutil.copy(ROOT / "benchmarks/support.py", tmp_path / "benchmarks")
    shutil.copytree(ROOT / "docs/results", tmp_path / "results")
    program(tmp_path / "build/bench_first", 0)
    program(tmp_path / "build/bench_second", 0)
    (tmp_path / "build/bench_notes.txt").write_text("no program")
    python_status(tmp_path, 0)
    return tmp_path


def program(path, status):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "{path.name} $*"\nexit {status}\n')
    path.chmod(0o755)


def python_status(tree, status, names=("python_layer_time", "convert_step", "synchronization_time", "upsampled_loss_time",
                                       "correctness", "loader_time")):
    text = f"import sys\nprint('python', *sys.argv[1:])\nsys.exit({status})\n"
    for name in names:
        (tree / f"benchmarks/{name}.py").write_text(text)


def run(tree, *arguments, folder="."):
    return subprocess.run([tree / "scripts/run_benchmarks", *arguments], cwd=tree / folder, capture_output=True, text=True)


def test_each_benchmark_runs_and_writes_below_the_output_folder(tree):
    (tree / "results/paper.md").write_text("old")
    result = run(tree, "build", "results")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "== first", "bench_first --check --json results/first.json",
        "== second", "bench_second --check --json results/second.json",
        "== python_layer_time", "python --build build --check --json results/python_layer_time.json",
        "== convert_step", "python --build build --check --json results/convert_step.json",
        "== synchronization_time", "python --build build --check --json results/synchronization_time.json",
        "== upsampled_loss_time", "python --build build --check --json results/upsampled_loss_time.json",
        "== correctness", "python --build build --check --json results/correctness.json",
        "== loader_time", "python --build build --check --json results/loader_time.json"]
    assert (tree / "results/paper.md").read_text() == (ROOT / "docs/results/paper.md").read_text()


def test_the_output_folder_is_by_default_in_the_build(tree):
    shutil.copytree(tree / "results", tree / "build/results")
    result = run(tree, "build")
    assert result.returncode == 0 and "build/results/first.json" in result.stdout


def test_folders_are_relative_to_the_caller(tree):
    result = run(tree, "../build", "../results", folder="scripts")
    assert result.returncode == 0 and "bench_first --check --json results/first.json" in result.stdout.splitlines()
    assert run(tree, "build", folder="scripts").returncode == 2


def test_threads_or_instruction_sets_measure_the_machine_alone_and_write_its_page(tree):
    python_status(tree, 0, ["machine_sweep"])
    (tree / "results/machines.md").write_text("old")
    result = run(tree, "build", "results", "--threads", "1,2", "--isa", "x86-64-v3")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "python --build build --results results --threads 1,2 --isa x86-64-v3\n"
    assert (tree / "results/machines.md").read_text() == (ROOT / "docs/results/machines.md").read_text()


def test_the_status_of_a_machines_measurement_is_passed_on(tree):
    python_status(tree, 2, ["machine_sweep"])
    (tree / "results/machines.md").write_text("old")
    assert run(tree, "build", "--isa", "x86-64-v9").returncode == 2
    assert run(tree, "build", "results", "--threads", "0").returncode == 2
    assert (tree / "results/machines.md").read_text() == "old"


@pytest.mark.parametrize("breaks", [
    lambda tree: program(tree / "build/bench_first", 1),
    lambda tree: python_status(tree, 1, ["python_layer_time"]),
    lambda tree: python_status(tree, 1, ["convert_step"]),
    lambda tree: python_status(tree, 1, ["synchronization_time"]),
    lambda tree: python_status(tree, 1, ["upsampled_loss_time"]),
    lambda tree: python_status(tree, 1, ["correctness"]),
    lambda tree: python_status(tree, 1, ["loader_time"]),
    lambda tree: (tree / "results/kept_bytes.json").unlink(),
])
def test_one_failure_is_the_exit_status_and_the_rest_still_runs(tree, breaks):
    breaks(tree)
    result = run(tree, "build", "results")
    assert result.returncode == 1
    assert "bench_second" in result.stdout and result.stdout.count("python --build") == 6


@pytest.mark.parametrize("arguments, said", [
    ([], "got 0 arguments"),
    (["nowhere"], "no program bench_* in 'nowhere'"),
    (["build", "a", "b"], "got 3 arguments"),
    (["--threads", "1"], "got 0 arguments"),
])
def test_wrong_arguments_are_answered_with_the_usage(tree, arguments, said):
    result = run(tree, *arguments)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "usage: run_benchmarks BUILD_DIR [OUTPUT_DIR] [--threads N,...] [--isa SET,...]" in result.stderr and said in result.stderr

"""scripts/gpu_check where there is no GPU: wrong options, the plan, and whole runs with a Python that only pretends."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]
from gpu import plan, row_log  # noqa: E402
from gpu_checks import pieces  # noqa: E402

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PALIMPSEST_PYTHON": sys.executable}


def run(*arguments, **environment):
    return subprocess.run([sys.executable, ROOT / "scripts/gpu_check", *arguments], capture_output=True, text=True,
                          env={**ENVIRONMENT, **environment})


def refused(*arguments, **environment):
    """The one line of a refusal."""
    said = run(*arguments, **environment)
    assert (said.returncode, said.stdout) == (2, "") and said.stderr.count("\n") == 1, said.stderr
    return said.stderr.strip().removesuffix("; --help lists the options")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_nothing_is_checked(tmp_path):
    assert refused("--output", tmp_path / "rows") == (
        "gpu_check: there is no CUDA device that torch can use; nothing was checked")
    assert not (tmp_path / "rows").exists()


def test_a_python_without_torch_is_named(tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    assert f"'{tmp_path}/python' has no torch and pytest: ModuleNotFoundError: No module named 'torch'" in refused(
        PALIMPSEST_PYTHON=str(tmp_path / "python"))


@pytest.mark.parametrize("arguments, line", [
    (("--skip-benchmarks",), "unrecognized arguments: --skip-benchmarks"),
    (("--only", "tests,benchmarks"), "argument --only: the pieces are build, tests, sanitizer, layers, steps, program; "
                                     "got 'benchmarks'"),
    (("--only", ""), "argument --only: the pieces are build, tests, sanitizer, layers, steps, program; got ''"),
    (("--budget", "0"), "argument --budget: a whole number of seconds above 0 is needed, got '0'"),
    (("--budget", "7m"), "argument --budget: a whole number of seconds above 0 is needed, got '7m'"),
    (("--no-build", "--only", "build"), "--no-build leaves nothing of --only build"),
    (("--no-build", "--build", "/nowhere"), "--no-build needs '/nowhere/libpalimpsest_ops.so', which is not there: docs/gpu_check.md "
                                            "says how it is built and carried, and --build names its folder"),
])
def test_a_wrong_option_is_refused_in_one_line(arguments, line):
    assert refused(*arguments) == f"gpu_check: {line}"


def planned(*arguments):
    """(exit status, lines) of a dry run."""
    said = run("--dry-run", *arguments)
    assert said.stderr == ""
    return said.returncode, said.stdout.splitlines()


@pytest.fixture
def carried(tmp_path):
    """A folder with something that is called as the library and the program are."""
    folder = tmp_path / "carried"
    folder.mkdir()
    for name in (pieces.LIBRARY, pieces.PROGRAM):
        (folder / name).write_text("#!/bin/sh\nexit 0\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def sanitizer(tmp_path):
    """A folder with a compute-sanitizer that knows the option of newer versions."""
    path = tmp_path / "bin/compute-sanitizer"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho '  --kernel-name arg\n  --kernel-name-exclude arg'\n")
    path.chmod(0o755)
    return path


def test_the_whole_fits_in_less_than_8_minutes(carried, sanitizer):
    path = f"{sanitizer.parent}:/usr/bin:/bin"
    for arguments in ((), ("--no-build", "--build", str(carried))):
        said = run("--dry-run", *arguments, PATH=path)
        lines = said.stdout.splitlines()
        assert said.returncode == 0 and not [line for line in lines if "  left  " in line], said.stdout
        assert int(lines[-1].split()[2]) <= 470 < 480
        for work in plan.PLAN:
            assert any(line.endswith(f" {work.piece:<9} {work.name}") for line in lines), work.name
        assert [line for line in lines if line.endswith("memcheck")]


def test_a_dry_run_says_what_does_not_fit(carried):
    status, lines = planned("--no-build", "--build", carried, "--budget", "60", "--only", "steps", "--only", "program")
    assert status == 3 and lines[-1].endswith("of a budget of 60 s; nothing was run")
    left = [line for line in lines if "  left  " in line]
    assert any("ResNeXt-101" not in line and "f16" in line for line in left)
    assert not any("layers" in line or "tests" in line for line in lines)


def test_the_most_important_rows_come_first(carried):
    _, lines = planned("--no-build", "--build", carried)
    names = [line[18:].split(None, 1)[1] for line in lines if "  fits  " in line]
    order = ["carried library", "tests 1 of 3", "a copy on the device", "[64, 256, 56, 56] channels-last bf16",
             "ResNeXt-101, batch 128, bf16", "resnet50, batch 128 of 224x224, bf16", "[64, 256, 56, 56] NCHW f32",
             "resnet50, batch 128 of 224x224, f16", "[64, 256, 56, 56] channels-last bf16, torch.compile"]
    assert [name for name in names if name in order] == order


# A Python that says that there is an H200, and whose tests and benchmarks pass at once or take a while.
PYTHON = f"""#!{sys.executable}
import os, sys, time
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
from gpu import plan, row_log
arguments = sys.argv[1:]
def value(name): return arguments[arguments.index(name) + 1]
if arguments[0] == "-c":
    print("NVIDIA H200" if "get_device_name" in arguments[1] else "")
    sys.exit(os.environ.get("LOADS", "0") if "load_library" in arguments[1] and "LOADS" in os.environ else 0)
if "--compile-ahead" in arguments:
    sys.exit(0)
log = row_log.RowLog(value("--rows"), row_log.digest(os.environ["PALIMPSEST_BUILD_DIR"] + "/libpalimpsest_ops.so"))
class Unit:
    def __init__(self, piece, name): self.piece, self.name, self.seconds = piece, name, 0.01
if "pytest" in arguments:
    works = [Unit("tests", "test " + value("--share"))]
elif "--only" in arguments:
    importances = dict(first=1, second=2, last=3)
    works = [Unit(w.piece, w.name) for w in plan.chosen(value("--only").split(","), [importances[value("--importance")]])]
else:
    works = [Unit("program", "train " + value("--precision"))]
def do(work):
    time.sleep(float(os.environ.get("SLEEP", 0)))
    outcome = row_log.FAILED if work.name == os.environ.get("FAILS") else row_log.MEASURED
    return [{{"row": work.name, "outcome": outcome}}]
sys.exit(row_log.carry_out(works, do, log, row_log.Budget(float(value("--budget"))), print))
"""


@pytest.fixture
def pretended(tmp_path, carried):
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def check(*arguments, **environment):
        said = run("--no-build", "--build", carried, "--output", tmp_path / "out", *arguments,
                   **{"PALIMPSEST_PYTHON": str(python), **environment})
        path = tmp_path / "out/gpu_nvidia_h200.json"
        return said, json.loads(path.read_text()) if path.exists() else None

    check.python, check.out, check.carried = python, tmp_path / "out", carried
    return check


def test_a_whole_run_has_every_row_and_a_second_one_is_refused_or_goes_on(pretended):
    said, found = pretended()
    assert said.returncode == 0, said.stdout + said.stderr
    names = {row["row"] for row in found["rows"]}
    assert names >= {work.name for work in plan.PLAN} | {"carried library", "test 1/3", "train bf16", "train f32,f16"}
    assert found["device"] == "NVIDIA H200" and found["pass"] and found["not_run"].keys() == {"sanitizer"}
    assert "not run: sanitizer: compute-sanitizer is not installed" in said.stdout
    lines = [json.loads(line) for line in (pretended.out / "rows.jsonl").read_text().splitlines()]
    assert {line["type"] for line in lines} == {"run", "plan", "row"}

    again, _ = pretended()
    assert again.returncode == 2 and again.stdout == "" and again.stderr == (
        f"gpu_check: '{pretended.out}' holds the rows of an earlier run: --resume goes on with them, --output names another "
        "folder; --help lists the options\n")
    resumed, found = pretended("--resume")
    assert resumed.returncode == 0 and {row["row"] for row in found["rows"]} == names
    assert "measured" not in resumed.stdout


def test_the_budget_ends_a_run_and_a_later_run_goes_on(pretended):
    began = time.monotonic()
    said, found = pretended("--budget", "13", "--only", "layers", SLEEP="0.3")
    assert time.monotonic() - began < 15
    assert said.returncode == 3 and found["did_not_fit"], said.stdout
    assert f"  did not fit: {found['did_not_fit'][0]}" in said.stdout
    said, found = pretended("--resume", "--only", "layers")
    assert said.returncode == 0 and found["did_not_fit"] == []
    assert {row["row"] for row in found["rows"]} >= {work.name for work in plan.PLAN if work.piece == "layers"}


def test_a_claim_that_fails_is_status_1(pretended):
    said, found = pretended("--only", "steps", FAILS="ResNeXt-101, batch 128, bf16")
    assert said.returncode == 1 and found["failed"] == ["ResNeXt-101, batch 128, bf16"] and not found["pass"]


def test_a_carried_library_that_does_not_load_ends_the_check(pretended):
    said, found = pretended("--only", "tests,steps", LOADS="it is for another machine")
    assert said.returncode == 1 and found["failed"] == ["carried library"]
    assert "exit status 1: it is for another machine" in said.stdout
    assert all(reason == "the carried library does not work" for reason in found["not_run"].values())


def test_a_signal_leaves_rows_and_summary(pretended):
    process = subprocess.Popen(
        [sys.executable, ROOT / "scripts/gpu_check", "--no-build", "--build", pretended.carried, "--output", pretended.out,
         "--only", "steps"], env={**ENVIRONMENT, "PALIMPSEST_PYTHON": str(pretended.python), "SLEEP": "1"},
        stdout=subprocess.DEVNULL)
    rows = pretended.out / "rows.jsonl"
    end = time.monotonic() + 30
    while time.monotonic() < end and (not rows.exists() or "ResNet-50" not in rows.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143
    found = json.loads((pretended.out / "gpu_nvidia_h200.json").read_text())
    assert found["rows"][0]["row"] == "carried library"


def test_a_folder_with_a_foreign_file_of_rows_is_refused(pretended):
    pretended.out.mkdir()
    (pretended.out / "rows.jsonl").write_text('{"claim": "mine"}\n')
    said, _ = pretended("--resume")
    assert said.returncode == 2 and f"--output: {pretended.out}/rows.jsonl:1 is no row of gpu_check" in said.stderr


def test_resume_needs_rows(pretended):
    said, _ = pretended("--resume")
    assert said.returncode == 2 and f"--resume finds no '{pretended.out}/rows.jsonl'" in said.stderr


@pytest.mark.parametrize("status, output, outcome, reason", [
    (0, "12 passed, 300 deselected in 20 s\n========= ERROR SUMMARY: 0 errors", row_log.PASSED, ""),
    (86, "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 2 bytes\n", row_log.FAILED,
     "Invalid __global__ read of size 2 bytes"),
    (1, "========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer to the manual.\n", row_log.NOT_RUN,
     "the driver refuses it: Error: Device not supported. Please refer to the manual."),
    (1, "FAILED tests/gpu/test.py::test_any_shape\n1 failed, 3 passed", row_log.FAILED, "exit status 1: 1 failed, 3 passed"),
    (0, "9 skipped in 1 s", row_log.FAILED, "exit status 0: 9 skipped in 1 s"),
    (5, "300 deselected in 1 s", row_log.FAILED, "exit status 5: 300 deselected in 1 s"),
    (None, "", row_log.NOT_RUN, "it did not fit in the budget: it was stopped"),
])
def test_what_a_sanitizer_says(status, output, outcome, reason):
    assert pieces.sanitizer_verdict(status, output) == (outcome, reason)


def test_a_sanitizer_sees_only_our_kernels(sanitizer, monkeypatch):
    monkeypatch.setenv("PATH", f"{sanitizer.parent}{os.pathsep}{os.environ['PATH']}")
    memcheck, racecheck = pieces.sanitizer("python", {})
    for stage, tool in ((memcheck, "memcheck"), (racecheck, "racecheck")):
        command = " ".join(map(str, stage.command))
        assert f"--tool {tool} --kernel-name kns=palimpsest --report-api-errors no --error-exitcode 86" in command
        assert "--without-cudnn" in command and "dense" not in command
    sanitizer.write_text("#!/bin/sh\necho ' --kernel-regex arg'\n")
    assert "--kernel-regex kns=palimpsest" in " ".join(map(str, pieces.sanitizer("python", {})[0].command))
    sanitizer.write_text("#!/bin/sh\necho ' --kernel-name-exclude arg'\n")
    assert "has no --kernel-name: it would check the kernels of libtorch, too" in pieces.sanitizer("python", {})

"""scripts/gpu_check where there is no GPU: it says so, and touches nothing."""
import pathlib
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*arguments, python=sys.executable):
    return subprocess.run([sys.executable, ROOT / "scripts/gpu_check", *arguments], capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "PALIMPSEST_PYTHON": python})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_nothing_is_checked():
    said = run()
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == "gpu_check: there is no CUDA device that torch can use; nothing was checked\n"


def test_a_python_without_torch_is_named(tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    said = run(python=str(tmp_path / "python"))
    assert said.returncode == 2
    assert f"'{tmp_path}/python' has no torch and pytest: ModuleNotFoundError: No module named 'torch'" in said.stderr


def test_an_unknown_option_is_refused():
    said = run("--skip-benchmark")
    assert said.returncode == 2 and "unrecognized arguments: --skip-benchmark" in said.stderr

"""The benchmark of the loader on few photos: what it prints, and that a loader that ends early is an error."""
import os
import pathlib
import sys

import pytest
import torch

pytest.importorskip("torchvision")
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
SCRIPT = ROOT / "benchmarks/loader_time.py"

sys.path.insert(0, str(SCRIPT.parent))
import loader_time as benchmark  # noqa: E402
import support  # noqa: E402


def run(monkeypatch, capsys, build):
    for name, value in support.RETAINING_MALLOC.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(benchmark, "IMAGES", 32)
    monkeypatch.setattr(benchmark, "STEP_BATCH", 2)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--build", str(build), "--repeats", "1"])
    threads = torch.get_num_threads()
    try:
        return benchmark.main(), *capsys.readouterr()
    finally:
        torch.set_num_threads(threads)


def test_there_is_a_row_for_torchvision_and_one_for_the_step(monkeypatch, capsys):
    status, printed, _ = run(monkeypatch, capsys, BUILD)
    assert status == 0
    assert "an image of a batch                torchvision" in printed
    assert "an image of a batch                ResNet-50 step" in printed


def test_photos_have_the_size_of_those_of_imagenet(tmp_path):
    assert 80_000 < benchmark.write_photos(tmp_path, 4) < 140_000


def test_a_loader_that_ends_early_is_an_error(monkeypatch, capsys, tmp_path):
    (tmp_path / "loader_epochs").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "loader_epochs").chmod(0o755)
    status, _, errors = run(monkeypatch, capsys, tmp_path)
    assert status == 1 and "ended before its epoch" in errors

"""The format's own Python library and ours read each other's files: theirs -> ours -> theirs gives the same."""

import os
import pathlib
import subprocess

import pytest
import torch

safetensors_torch = pytest.importorskip("safetensors.torch", reason="the Python package safetensors is not installed")
safetensors = pytest.importorskip("safetensors")

COPY = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", "build/release")) / "tests/io/safetensors_copy_program"
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
          torch.uint8, torch.int8, torch.bool]


def tensors():
    torch.manual_seed(0)
    made = {f"layer.{i}.weight": (torch.randn(3, 5) * 4).to(dtype) for i, dtype in enumerate(DTYPES)}
    made |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 7), "bytes": torch.arange(3, dtype=torch.uint8),
             "größe \"x\"\n": torch.tensor([float("nan"), float("inf"), -0.0])}
    return made


def copy(source, target):
    return subprocess.run([COPY, source, target], capture_output=True, text=True)


def same_bytes(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bytes(a.reshape(-1).view(torch.uint8).numpy()) == bytes(
        b.reshape(-1).view(torch.uint8).numpy())


def test_theirs_to_ours_to_theirs(tmp_path):
    metadata = {"step": "7", "config": "a = \"b\"\n"}
    safetensors_torch.save_file(tensors(), tmp_path / "theirs", metadata)
    run = copy(tmp_path / "theirs", tmp_path / "ours")
    assert run.returncode == 0, run.stderr

    loaded = safetensors_torch.load_file(tmp_path / "ours")
    assert set(loaded) == set(tensors())
    for name, tensor in tensors().items():
        assert same_bytes(loaded[name], tensor), name
    with safetensors.safe_open(tmp_path / "ours", "pt") as file:
        assert file.metadata() == metadata


def test_ours_is_accepted_as_bytes_too(tmp_path):
    # deserialize() goes through the library's strict checks without a memory map.
    safetensors_torch.save_file(tensors(), tmp_path / "theirs")
    assert copy(tmp_path / "theirs", tmp_path / "ours").returncode == 0
    loaded = safetensors_torch.load((tmp_path / "ours").read_bytes())
    assert all(same_bytes(loaded[name], tensor) for name, tensor in tensors().items())


def test_both_refuse_the_same_broken_files(tmp_path):
    safetensors_torch.save_file(tensors(), tmp_path / "theirs")
    whole = (tmp_path / "theirs").read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for cut in (0, 7, 8, 8 + header - 1, 8 + header, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:cut])
        with pytest.raises(Exception):
            safetensors_torch.load_file(tmp_path / "cut")
        run = copy(tmp_path / "cut", tmp_path / "never")
        assert run.returncode == 1 and str(tmp_path / "cut") in run.stderr
        assert not (tmp_path / "never").exists()

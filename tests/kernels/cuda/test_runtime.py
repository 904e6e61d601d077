"""The operator library contains no CUDA runtime of its own: it calls the one that libtorch loads. Skipped for a build without
CUDA, and for one whose nvcc is of another major version than libtorch."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", "build/release"))
LIBRARY = BUILD / "libpalimpsest_ops.so"


def readelf(*options):
    return subprocess.run(["readelf", "-W", *options, LIBRARY], capture_output=True, text=True, check=True).stdout


def why_not():
    if shutil.which("readelf") is None:
        return "readelf is not installed"
    if ".nv_fatbin" not in readelf("--sections"):
        return f"{LIBRARY} was built without CUDA"
    cache = BUILD / "CMakeCache.txt"
    if cache.exists() and "PALIMPSEST_CUDA_RUNTIME:INTERNAL=own" in cache.read_text():
        return "nvcc and libtorch have runtimes of different major versions"
    return ""


REASON = why_not()


@pytest.mark.skipif(bool(REASON), reason=REASON)
def test_the_operators_call_libtorchs_cuda_runtime():
    rows = [line.split() for line in readelf("--symbols").splitlines()]
    cuda = [(row[6], row[7].split("@")[0]) for row in rows if len(row) >= 8 and re.match(r"cuda[A-Z]", row[7])]
    called = {name for section, name in cuda if section == "UND"}
    assert {"cudaLaunchKernelExC", "cudaMalloc"} <= called
    assert not {name for section, name in cuda if section != "UND"} & (called | {"cudaSetDevice"})

"""The resources of the compiled CUDA kernels, checked without a GPU: no spills, no local memory, 128-bit loads and
stores, and registers and shared memory with which half of a multiprocessor's warps can run at once.

Skipped without nvcc, and if the same sources passed before (scripts/passed_checks.py), because it takes minutes.
Checks instructions only if there is a cuobjdump; the torch wheel contains one.
"""
import concurrent.futures
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import passed_checks  # noqa: E402

SOURCES = sorted((ROOT / "palimpsest/kernels/cuda").rglob("*.cu"))
INCLUDES = [f"-I{ROOT}", f"-I{ROOT / 'palimpsest/kernels/cuda/device/nvcc'}"]
# Architecture: the PTX that it is made from, as in cmake/Cuda.cmake.
PTX = {"sm_80": "compute_80", "sm_90": "compute_90", "sm_100": "compute_90"}
# Shared memory and warps per multiprocessor. All have 64 Ki registers and 32 blocks.
MULTIPROCESSORS = {"sm_80": (164 * 1024, 64), "sm_90": (228 * 1024, 64), "sm_100": (228 * 1024, 64)}
# The most shared memory per block, and the part of it that abn.cu leaves to static variables of resident kernels.
SHARED_PER_BLOCK = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024}
STATIC_ALLOWANCE = 12 * 1024
RESERVED = 1024  # bytes of shared memory per block that the system uses


def tool(name):
    """The path of a tool of the system or of the wheels that torch installs; None if there is none."""
    wheels = [sorted(glob.glob(os.path.join(sysconfig.get_paths()["purelib"], folder, "bin", name)))
              for folder in ("nvidia/*", "triton/backends/nvidia")]
    for place in [shutil.which(name), f"/usr/local/cuda/bin/{name}", *wheels[0], *wheels[1]]:
        if place and os.path.exists(place):
            return place
    return None


NVCC, CUOBJDUMP = tool("nvcc"), tool("cuobjdump")
PTXAS = NVCC and pathlib.Path(NVCC).resolve().with_name("ptxas")
CHECK = "cuda-resources"


def digest():
    headers = [header for layer in ("base", "kernels") for suffix in ("h", "cuh")
               for header in sorted((ROOT / "palimpsest" / layer).rglob(f"*.{suffix}"))]
    return passed_checks.digest([passed_checks.version(NVCC), passed_checks.version("c++"), str(CUOBJDUMP), pathlib.Path(__file__), *SOURCES, *headers])


DIGEST = digest() if NVCC else None
pytestmark = [pytest.mark.skipif(NVCC is None, reason="nvcc is not installed"),
              pytest.mark.skipif(NVCC is not None and passed_checks.passed(CHECK, DIGEST),
                                 reason="the same kernels passed before")]


def demangled(names):
    return subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.split("\n")


CHECKED = set()  # the tests that ran


@pytest.fixture(autouse=True)
def checked(request):
    yield
    CHECKED.add(request.node.name)


@pytest.fixture(scope="session", params=MULTIPROCESSORS)
def arch(request):
    return request.param


def said_by(*command):
    """Runs a tool and returns its stderr, which may hold no warning."""
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert result.returncode == 0 and "warning" not in result.stderr, result.stderr
    return result.stderr


@pytest.fixture(scope="session")
def objects(arch, tmp_path_factory):
    """{source: (disassembly or None, output of ptxas)} for one architecture."""
    folder = tmp_path_factory.getbasetemp()  # all architectures share it, because some share PTX

    def compiled(source):
        ptx, target = folder / f"{source.stem}.{PTX[arch]}.ptx", folder / f"{source.stem}.{arch}.cubin"
        if not ptx.exists():
            said_by(NVCC, "-std=c++20", "-O3", *INCLUDES, f"-arch={PTX[arch]}", "-Werror", "all-warnings", "-ptx", source,
                    "-o", ptx)
        said = said_by(PTXAS, "-O3", "-v", f"-arch={arch}", ptx, "-o", target)  # device code only
        if CUOBJDUMP is None:
            return None, said
        listing = subprocess.run([CUOBJDUMP, "-sass", target], capture_output=True, text=True, check=True)
        return listing.stdout, said

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(SOURCES, pool.map(compiled, SOURCES)))


@pytest.fixture(scope="session")
def kernels(objects):
    """[(name, {stack, stores, loads, registers, shared})] of all sources."""
    found = []
    for _, said in objects.values():
        for part in said.split("Compiling entry function '")[1:]:
            stack, stores, loads = re.search(
                r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part).groups()
            shared = re.search(r"(\d+) bytes smem", part)
            found.append((part.split("'")[0], {
                "stack": int(stack), "stores": int(stores), "loads": int(loads),
                "registers": int(re.search(r"Used (\d+) registers", part).group(1)),
                "shared": int(shared.group(1)) if shared else 0}))
    return list(zip(demangled([name for name, _ in found]), [numbers for _, numbers in found]))


def is_resident(name):
    return "resident" in name


def is_vectorized(name):
    if "exponent_histogram" in name:
        return True
    values = re.search(r"(?:(?:Planes|Columns)<[^,]+, |max_pool_\w+<[^,]+, )(\d+)", name)
    return values is not None and int(values.group(1)) > 1  # other kernels access single values


def occupancy(arch, name, numbers):
    """The share of a multiprocessor's warps that can be resident, by the rules of the CUDA occupancy calculator."""
    shared_bytes, warps = MULTIPROCESSORS[arch]
    block_warps = (512 if is_resident(name) else 256) // 32
    register_units = 65536 // 256
    warp_units = -(-numbers["registers"] * 32 // 256)
    dynamic = SHARED_PER_BLOCK[arch] // 2 - STATIC_ALLOWANCE if is_resident(name) else 0
    blocks = min(warps // block_warps,
                 # Each of the four schedulers has a quarter of the registers.
                 register_units // 4 // warp_units * 4 // block_warps,
                 shared_bytes // (numbers["shared"] + dynamic + RESERVED), 32)
    return blocks * block_warps / warps


def test_every_kernel_is_seen(kernels):
    assert len(kernels) >= 150
    assert any(is_resident(name) for name, _ in kernels) and any(not is_vectorized(name) for name, _ in kernels)


def test_nothing_spills_and_nothing_lies_in_local_memory(kernels):
    offenders = [(name, n) for name, n in kernels if n["stack"] or n["stores"] or n["loads"]]
    assert not offenders, "\n".join(f"{name}: {n}" for name, n in offenders)


def test_half_of_all_warps_can_be_resident(arch, kernels):
    low = [(occupancy(arch, name, n), name, n) for name, n in kernels if occupancy(arch, name, n) < 0.5]
    assert not low, "\n".join(f"{share:.0%} {name}: {n}" for share, name, n in low)


def test_streaming_kernels_load_and_store_128_bits(objects):
    if CUOBJDUMP is None:
        pytest.skip("cuobjdump is not installed")
    seen = 0
    for listing, _ in objects.values():
        functions = listing.split("Function : ")[1:]
        for name, code in zip(demangled([f.split("\n")[0].strip() for f in functions]), functions):
            if not is_vectorized(name):
                continue
            seen += 1
            assert "LDG.E.128" in code, f"{name} has no 128-bit load"
            assert any(sums in name for sums in ("statistics", "reduce", "histogram")) or "STG.E.128" in code, f"{name} has no 128-bit store"
            assert " LDL" not in code and " STL" not in code, f"{name} touches local memory"
    assert seen >= 25


def test_what_passed_is_remembered_if_all_of_it_ran(request):
    tests = {name for name in globals() if name.startswith("test_")} - {request.node.name}
    if request.session.testsfailed == 0 and CHECKED >= {f"{test}[{arch}]" for test in tests for arch in MULTIPROCESSORS}:
        passed_checks.remember(CHECK, DIGEST)

"""Instructions of the max pooling kernels, counted in their machine code without a GPU: a budget per value, and no division
of 64-bit indices outside of the kernels for tensors of 2^31 vectors.

Kernels for windows in steps of 2 are straight lines, so that no thread executes more instructions than they have. Skipped
without nvcc or cuobjdump, and if the same sources passed before (scripts/passed_checks.py).
"""
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import test_resources  # noqa: E402
from test_resources import (CHECKED, CUOBJDUMP, INCLUDES, NVCC, PTX, PTXAS, ROOT, arch, checked, demangled,  # noqa: E402, F401
                            passed_checks, said_by)

CHECK = "cuda-max-pool-instructions"
SOURCE = ROOT / "palimpsest/kernels/cuda/max_pool/max_pool.cu"
DIGEST = NVCC and passed_checks.digest([passed_checks.version(NVCC), str(CUOBJDUMP), pathlib.Path(__file__),
                                        pathlib.Path(test_resources.__file__), SOURCE, *test_resources.headers()])
pytestmark = [pytest.mark.skipif(NVCC is None, reason="nvcc is not installed"),
              pytest.mark.skipif(CUOBJDUMP is None, reason="cuobjdump is not installed"),
              pytest.mark.skipif(NVCC is not None and passed_checks.passed(CHECK, DIGEST),
                                 reason="the same kernels passed before")]

# The most instructions per output of forward and per input of backward, by values per access and width of the window.
FORWARD = {(1, 3): 235, (4, 3): 92, (8, 3): 86, (1, 2): 150, (4, 2): 54, (8, 2): 46}
BACKWARD = {(1, 3): 50, (4, 3): 20, (8, 3): 20, (1, 2): 32, (4, 2): 11, (8, 2): 10}
ANY_WINDOW = 240  # static: loops over the window

@pytest.fixture(scope="module")
def kernels(arch, tmp_path_factory):  # noqa: F811
    """{name: instructions, without the padding behind the last one}."""
    folder = tmp_path_factory.mktemp(arch)
    ptx, target = folder / "max_pool.ptx", folder / "max_pool.cubin"
    said_by(NVCC, "-std=c++20", "-O3", *INCLUDES, f"-arch={PTX[arch]}", "-Werror", "all-warnings", "-ptx", SOURCE, "-o", ptx)
    said_by(PTXAS, "-O3", f"-arch={arch}", ptx, "-o", target)
    listing = subprocess.run([CUOBJDUMP, "-sass", target], capture_output=True, text=True, check=True).stdout
    functions = listing.split("Function : ")[1:]
    names = demangled([f.split("\n")[0].strip() for f in functions])
    found = {}
    for name, code in zip(names, functions):
        lines = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+([^;]+);", code)]
        end = max(at for at, text in lines if re.search(r"\b(EXIT|RET)\b", text))
        found[name] = [(at, text) for at, text in lines if at <= end]
    return found


def shape_of(name):
    """(values per access, width of a window in steps of 2 or None)."""
    values = int(re.search(r"_kernel<[^,]+, (\d+)", name).group(1))
    width = re.search(r"StepTwoAxis<(\d)>", name)
    return values, width and int(width.group(1))


def test_windows_in_steps_of_two_are_straight_lines_within_the_budget(kernels):
    seen, over = 0, []
    for name, lines in kernels.items():
        values, width = shape_of(name)
        if not width:
            continue
        seen += 1
        back = [text for at, text in lines if (to := re.search(r"\bBRA.*\b0x([0-9a-f]+)", text)) and int(to.group(1), 16) <= at]
        assert not back and not any("CALL" in text for _, text in lines), f"{name} has a loop or a call: {back}"
        budget, pixels = (BACKWARD, 4) if "backward_tiles" in name else (FORWARD, 1)
        per_value = len(lines) / (pixels * values)
        if per_value > budget[values, width]:
            over.append(f"{per_value:.1f} of {budget[values, width]} {name}")
    assert seen == 28, f"{seen} kernels"
    assert not over, "\n".join(over)


def test_indices_below_two_to_the_31_are_never_divided(kernels):
    any_window = {name: lines for name, lines in kernels.items() if "AnyAxis" in name}
    assert len(any_window) == 28
    for name, lines in any_window.items():
        divides = any(re.search(r"CALL|MUFU.RCP|I2F", text) for _, text in lines)
        assert divides == ("AnyAxis<long>" in name), name
        assert divides or len(lines) <= ANY_WINDOW, f"{len(lines)} of {ANY_WINDOW} {name}"


def test_what_passed_is_remembered_if_all_of_it_ran(request):
    tests = {name for name in globals() if name.startswith("test_")} - {request.node.name}
    if request.session.testsfailed == 0 and CHECKED >= {f"{test}[{arch}]" for test in tests for arch in PTX}:
        passed_checks.remember(CHECK, DIGEST)

"""The resources of the compiled CUDA kernels, checked without a GPU: no spills, no local memory, loads and stores
of whole vectors, and registers and shared memory with which half of a multiprocessor's warps can run at once. The kernels of the
layer that should move bytes as fast as memory does have budgets instead: instructions per value, and bytes under way.

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
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import passed_checks  # noqa: E402
import sass  # noqa: E402

SOURCES = sorted((ROOT / "palimpsest/kernels/cuda").rglob("*.cu"))
INCLUDES = [f"-I{ROOT}", f"-I{ROOT / 'palimpsest/kernels/cuda/device/nvcc'}"]
# Architecture: the PTX that it is made from, as in cmake/Cuda.cmake.
PTX = {"sm_80": "compute_80", "sm_90": "compute_90", "sm_100": "compute_90"}
# Shared memory and warps per multiprocessor. All have 64 Ki registers and 32 blocks.
MULTIPROCESSORS = {"sm_80": (164 * 1024, 64), "sm_90": (228 * 1024, 64), "sm_100": (228 * 1024, 64)}
# The most shared memory per block, and the part of it that abn.cu leaves to static variables of resident kernels.
SHARED_PER_BLOCK = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024}
# Those of strips have most of what they need besides in the dynamic part.
STATIC_ALLOWANCE, F64_ALLOWANCE = 12 * 1024, 13 * 1024
STRIP_ALLOWANCES = {"resident_forward_kernel": 4 * 1024, "resident_backward_kernel": 3 * 1024}
RESERVED = 1024  # bytes of shared memory per block that the system uses

# Of the layer's kernels for 16-bit vectors and straight activations: the most instructions per value in a loop that
# loads, without and with a residual, which is a tensor more to read. An H200 can issue about 30 while it moves 4 bytes,
# and 45 while it moves 6. Resident kernels copy to shared memory; without a residual nothing else loads. Sums of columns
# copy, too, and work on one batch while they copy another.
INSTRUCTIONS_PER_VALUE = {"statistics_kernel": (12, 12), "apply_kernel": (16, 20), "backward_reduce_kernel": (20, 24),
                          "backward_apply_kernel": (24, 30), "resident_forward_kernel": (5, 21),
                          "resident_backward_kernel": (6, 30)}
# At 4.3 TB/s an H200 moves 17 bytes per clock and multiprocessor, so that 32 KB cover a latency of 1900 clocks.
BYTES_UNDER_WAY = 32 * 1024


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


def headers():
    """All headers that the kernels include."""
    return [header for layer in ("base", "kernels") for suffix in ("h", "cuh")
            for header in sorted((ROOT / "palimpsest" / layer).rglob(f"*.{suffix}"))]


def digest():
    return passed_checks.digest([passed_checks.version(NVCC), passed_checks.version("c++"), str(CUOBJDUMP), pathlib.Path(__file__),
                                 pathlib.Path(sass.__file__), *SOURCES, *headers()])


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


def vector_bytes(name):
    """The bytes that a thread of a kernel accesses at once; 0 if they are a single value."""
    if "exponent_histogram" in name:
        return 16
    found = re.search(r"(?:(?:Planes|Columns|Strips)<|max_pool_\w+<)(?:palimpsest::)?(\w+), (\d+)", name)
    values = int(found.group(2)) if found else 1
    return 0 if values == 1 else values * {"double": 8, "float": 4, "Float16": 2, "BFloat16": 2}[found.group(1)]


def kernel_of(name):
    """The kernel's own name, without namespaces and arguments."""
    return re.search(r"(\w+)(?:<|\()", name.split("abn_detail::", 1)[-1]).group(1)


def has_residual(name):
    return int("true>" in name.split("(")[0])


def has_budget(name):
    """Whether a kernel is in INSTRUCTIONS_PER_VALUE."""
    is_short = kernel_of(name) == "statistics_kernel" or "StraightActivation" in name
    return "abn_detail::" in name and is_short and re.search(r"(Planes|Columns|Strips)<palimpsest::B?Float16, 8,", name) is not None


def reads_ahead(name):
    """Whether a kernel copies what it adds up to shared memory first, so that bytes are under way with few warps."""
    is_short = kernel_of(name) == "statistics_kernel" or (kernel_of(name) == "backward_reduce_kernel" and "StraightActivation" in name)
    return is_short and "Columns<" in name and vector_bytes(name) == 16


def warps_at_once(arch, name, numbers):
    """The warps of a multiprocessor that can be resident, by the rules of the CUDA occupancy calculator."""
    shared_bytes, warps = MULTIPROCESSORS[arch]
    block_warps = (512 if is_resident(name) else 256) // 32
    register_units = 65536 // 256
    warp_units = -(-numbers["registers"] * 32 // 256)
    if "Strips<" in name:
        allowance = STRIP_ALLOWANCES[kernel_of(name)]
    else:
        allowance = F64_ALLOWANCE if "<double, " in name else STATIC_ALLOWANCE
    dynamic = SHARED_PER_BLOCK[arch] // 2 - allowance if is_resident(name) else 0
    blocks = min(warps // block_warps,
                 # Each of the four schedulers has a quarter of the registers.
                 register_units // 4 // warp_units * 4 // block_warps,
                 shared_bytes // (numbers["shared"] + dynamic + RESERVED), 32)
    return blocks * block_warps


def occupancy(arch, name, numbers):
    return warps_at_once(arch, name, numbers) / MULTIPROCESSORS[arch][1]


@pytest.fixture(scope="session")
def passes(objects):
    """{name: [the longest pass of each loop that loads vectors]} of the kernels with a budget and those that read ahead."""
    if CUOBJDUMP is None:
        pytest.skip("cuobjdump is not installed")
    found = {}
    for listing, _ in objects.values():
        functions = sass.functions(listing)
        for name, code in zip(demangled(functions), functions.values()):
            if has_budget(name) or reads_ahead(name):
                found[name] = [loop.longest_pass() for loop in sass.streaming_loops(code)]
    return found


def instructions_per_value(name, ways):
    """Of each loop of a kernel of `passes`."""
    residual = has_residual(name)
    tensors = {"statistics_kernel": 1, "apply_kernel": 1 + residual, "backward_reduce_kernel": 2 + residual,
               "backward_apply_kernel": 2 + residual,
               "resident_forward_kernel": 1, "resident_backward_kernel": 1}[kernel_of(name)]  # the residual
    copied = {"resident_forward_kernel": 1, "resident_backward_kernel": 2}.get(kernel_of(name), tensors)
    loads = [sum(i.opcode.startswith(sass.VECTOR_LOAD) for i in way) for way in ways]
    return [len(way) * copied / (8 * copies) if (copies := sass.copies(way)) else len(way) * tensors / (8 * load)
            for way, load in zip(ways, loads)]


def test_every_kernel_is_seen(kernels):
    assert len(kernels) >= 150
    assert any("Strips<" in name for name, _ in kernels)
    assert any(is_resident(name) for name, _ in kernels) and any(not vector_bytes(name) for name, _ in kernels)


def test_nothing_spills_and_nothing_lies_in_local_memory(kernels):
    offenders = [(name, n) for name, n in kernels if n["stack"] or n["stores"] or n["loads"]]
    assert not offenders, "\n".join(f"{name}: {n}" for name, n in offenders)


def test_half_of_all_warps_can_be_resident(arch, kernels):
    low = [(occupancy(arch, name, n), name, n) for name, n in kernels
           if not has_budget(name) and not reads_ahead(name) and occupancy(arch, name, n) < 0.5]
    assert not low, "\n".join(f"{share:.0%} {name}: {n}" for share, name, n in low)


def test_streaming_kernels_have_32_kilobytes_under_way(arch, kernels, passes):
    # Resident kernels have all copies of a block under way: their loop waits for none. Sums of columns have some.
    under_way = {name: max(sass.copies_under_way(way) or sass.loads_under_way(way) for way in passes[name]) * 16 * 32
                 * warps_at_once(arch, name, n) for name, n in kernels if name in passes and not is_resident(name)}
    low = [f"{share / 1024:.0f} KB {name}" for name, share in under_way.items() if share < BYTES_UNDER_WAY]
    assert not low, "\n".join(low)
    copying = [[i.opcode for way in ways if sass.copies(way) for i in way] for name, ways in passes.items() if is_resident(name)]
    assert len(copying) == 32 and all(copying) and not any("DEPBAR" in opcode for way in copying for opcode in way)


def test_launches_that_follow_wait_before_they_touch_memory(arch, objects):
    """In machine code ACQBULK waits for the launch before, and PREEXIT lets the next one begin (LaunchShape::follows)."""
    if CUOBJDUMP is None:
        pytest.skip("cuobjdump is not installed")
    seen = {"apply": 0, "sums": 0}
    for listing, _ in objects.values():
        functions = sass.functions(listing)
        for name, code in zip(demangled(functions), functions.values()):
            if "abn_detail::" not in name or kernel_of(name) not in ("apply_kernel", "backward_apply_kernel", "statistics_kernel",
                                                                     "backward_reduce_kernel"):
                continue
            opcodes = [instruction.opcode.split(".")[0] for instruction in code]
            if kernel_of(name) in ("statistics_kernel", "backward_reduce_kernel"):
                seen["sums"] += 1
                assert ("PREEXIT" in opcodes) == (arch != "sm_80"), name
            else:
                seen["apply"] += 1
                touches = [i for i, opcode in enumerate(opcodes) if opcode in ("LDG", "STG", "ATOMG", "RED")]
                assert ("ACQBULK" in opcodes and opcodes.index("ACQBULK") < touches[0]) == (arch != "sm_80"), name
    assert min(seen.values()) >= 20


def test_streaming_kernels_stay_within_their_instructions_per_value(passes):
    passes = {name: ways for name, ways in passes.items() if has_budget(name)}
    assert {kernel_of(name) for name in passes} == INSTRUCTIONS_PER_VALUE.keys() and len(passes) == 60
    counts = {name: instructions_per_value(name, ways) for name, ways in passes.items()}
    for name, each in sorted(counts.items()):
        print(" ".join(f"{count:.1f}" for count in each), name.split("(")[0])
    over = [f"{max(each):.1f} {name}" for name, each in counts.items()
            if not each or max(each) > INSTRUCTIONS_PER_VALUE[kernel_of(name)][has_residual(name)]]
    assert not over, "\n".join(over)


def test_streaming_kernels_load_and_store_whole_vectors(objects):
    if CUOBJDUMP is None:
        pytest.skip("cuobjdump is not installed")
    seen = 0
    for listing, _ in objects.values():
        functions = listing.split("Function : ")[1:]
        for name, code in zip(demangled([f.split("\n")[0].strip() for f in functions]), functions):
            size = {16: ".128", 8: ".64", 4: ""}.get(vector_bytes(name))
            if size is None:
                continue
            seen += 1
            loads, stores = (re.search(rf" {access}\.E{size}(\.CONSTANT)?(\.STRONG\.SM)? ", code) for access in ("LDG", "STG"))
            assert loads or re.search(rf" LDGSTS\.E\S*{size or '(?!.*64|.*128)'} ", code), f"{name} loads no vector of {vector_bytes(name)} bytes"
            assert any(sums in name for sums in ("statistics", "reduce", "histogram")) or stores, f"{name} stores none"
            assert " LDL" not in code and " STL" not in code, f"{name} touches local memory"
    assert seen >= 25


def test_what_passed_is_remembered_if_all_of_it_ran(request):
    tests = {name for name in globals() if name.startswith("test_")} - {request.node.name}
    if request.session.testsfailed == 0 and CHECKED >= {f"{test}[{arch}]" for test in tests for arch in MULTIPROCESSORS}:
        passed_checks.remember(CHECK, DIGEST)

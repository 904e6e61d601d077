"""The pieces of scripts/gpu_check: the commands of each, the most important first."""
import os
import pathlib
import re
import shutil
import subprocess

from gpu import plan, row_log
from gpu_checks import program_rows
from gpu_checks.driver import Stage

ROOT = pathlib.Path(__file__).resolve().parents[2]
PIECES = ("build", "tests", "sanitizer", "layers", "steps", "program")
LIBRARY, PROGRAM = "libpalimpsest_ops.so", "palimpsest"
NAMESPACE = "palimpsest"  # of our kernels, in their mangled names
START = 8  # seconds until a Python has torch and a context on the GPU

# Few small tests, as a sanitizer slows a kernel by 10 to 100 times; none of dense blocks, which call cuDNN.
SANITIZED = ("leaky_relu-channels-last-bfloat16 or silu-NCHW-float32 or start_and_any_strides or degenerate "
             "or max_pooling")
DEFECT = 86  # exit status of compute-sanitizer for a defect; pytest has none like it
REFUSED = re.compile(r"device not supported|not supported on this (device|system)|unable to (initialize|attach)"
                     r"|insufficient privileges|operation not permitted|failed to (launch|initialize)"
                     r"|sanitizer.*(init|initialization).*failed|no attachable process found", re.I)


def last_line(output):
    return (output.strip().splitlines() or ["it says nothing"])[-1]


def passed_or_not(status, output):
    if status is None:
        return row_log.FAILED, "it was stopped: its time was over"
    return (row_log.PASSED, "") if status == 0 else (row_log.FAILED, f"exit status {status}: {last_line(output)}")


def environment_of(interpreter, build):
    """Where the program and the library find each other, what was carried with them, and libtorch."""
    torch = subprocess.run([interpreter, "-c", "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"],
                           capture_output=True, text=True).stdout.strip()
    folders = [build, build / "lib", *([pathlib.Path(torch) / "lib"] if torch else [])]
    given = os.environ.get("LD_LIBRARY_PATH")
    return {"PALIMPSEST_BUILD_DIR": str(build), "PALIMPSEST_PYTHON": interpreter,
            "LD_LIBRARY_PATH": os.pathsep.join([*map(str, folders), *([given] if given else [])]),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])])}


def build(interpreter, folder, environment):
    configure = ("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DPALIMPSEST_CUDA=ON",
                 "-DPALIMPSEST_TOP_LAYER=ops", "-DCMAKE_CUDA_ARCHITECTURES=native", f"-DPALIMPSEST_PYTHON={interpreter}",
                 "--log-level=WARNING")
    return [Stage("build", "configure", configure, 15, 5, writes_rows=False, verdict=passed_or_not, needed=True),
            Stage("build", "build", ("cmake", "--build", folder), 120, 10, writes_rows=False, verdict=passed_or_not,
                  needed=True)]


# The smallest call that only a library with kernels for this GPU survives.
LOADS = ("import sys, torch; torch.ops.load_library(sys.argv[1]); x = torch.ones(2, 1, 2, device='cuda'); "
         "torch.ops.palimpsest.abn(x, None, None, None, None, saved='normalized'); torch.cuda.synchronize()")


def carried(interpreter, folder, environment):
    """In place of a build: the libraries that were carried here load, and have kernels for this GPU."""
    return [Stage("build", "carried library", (interpreter, "-c", LOADS, folder / LIBRARY), START, 5, writes_rows=False,
                  verdict=passed_or_not, environment=environment, needed=True)]


def pytest(interpreter):
    return (interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "gpu_checks.pytest_rows",
            "--continue-on-collection-errors")


SHARES = 3  # of the tests, which mostly wait for the host


def tests(interpreter, environment):
    return [Stage("tests", f"tests {number} of {SHARES}", (*pytest(interpreter), "--share", f"{number}/{SHARES}", ROOT / "tests/gpu"),
                  40, START, 150, environment=environment, beside=True) for number in range(1, SHARES + 1)]


def sanitizer_verdict(status, output):
    if status is None:
        return row_log.NOT_RUN, f"{row_log.NO_TIME}: it was stopped"
    if status == DEFECT:
        found = [line for line in output.splitlines() if line.startswith("=========") and "COMPUTE-SANITIZER" not in line]
        return row_log.FAILED, (found or ["a defect"])[0].strip("= ")
    if status == 0 and re.search(r"\b[1-9]\d* passed", output):
        return row_log.PASSED, ""
    if refusal := next((line for line in output.splitlines() if REFUSED.search(line)), ""):
        return row_log.NOT_RUN, f"the driver refuses it: {refusal.strip('= ')}"
    return row_log.FAILED, f"exit status {status}: {last_line(output)}"


def kernel_filter(program):
    """The option that names our kernels: its name has changed between versions. Empty if there is none."""
    known = subprocess.run([program, "--help"], capture_output=True, text=True)
    names = re.findall(r"--kernel-(?:name|regex)(?![\w-])", known.stdout + known.stderr)
    return (names[0], f"kns={NAMESPACE}") if names else ()


def sanitizer(interpreter, environment):
    """Returns the stages, or a text that says why there are none."""
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(program, os.X_OK):
        return "compute-sanitizer is not installed"
    only_ours = kernel_filter(program)
    if not only_ours:
        return f"'{program} --help' has no --kernel-name: it would check the kernels of libtorch, too"
    # A block per tensor: otherwise an overrun stays within one of libtorch's large blocks.
    environment = {**environment, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return [Stage("sanitizer", tool, (program, "--tool", tool, *only_ours, "--report-api-errors", "no", "--error-exitcode",
                                      str(DEFECT), *pytest(interpreter), "--without-cudnn", "-x", "-k", SANITIZED,
                                      ROOT / "tests/gpu"),
                  60, START, 100, writes_rows=False, verdict=sanitizer_verdict, environment=environment, beside=True)
            for tool in ("memcheck", "racecheck")]


def measured(interpreter, environment, folder, pieces, importance):
    """Layers and steps of one importance."""
    pieces = [piece for piece in (plan.LAYERS, plan.STEPS) if piece in pieces]
    number = {"first": plan.FIRST, "second": plan.SECOND, "last": plan.LAST}[importance]
    works = plan.chosen(pieces, [number])
    if not works:
        return []
    command = (interpreter, ROOT / "benchmarks/gpu_time.py", "--build", folder, "--only", ",".join(pieces), "--importance",
               importance)
    return [Stage(pieces[0], f"{' and '.join(pieces)}, {importance}", command, START + sum(work.seconds for work in works),
                  START + works[0].seconds, environment=environment,
                  units=[(work.piece, work.name, work.seconds) for work in works])]


def program(interpreter, environment, folder, precisions):
    command = (interpreter, ROOT / "scripts/gpu_checks/program_rows.py", "--program", folder / PROGRAM, "--precision",
               precisions)
    units = [(work.piece, work.name, work.seconds) for work in program_rows.works_of(precisions.split(","))]
    return [Stage("program", f"program, {precisions}", command, sum(seconds for *_, seconds in units), 30,
                  environment=environment, units=units)]


def compiled_ahead(interpreter, environment, folder):
    """torch.compile's programs, into its cache on the disk, while the tests run: the host has cores to spare then."""
    def verdict(status, output):
        if status == 0:
            return row_log.PASSED, ""
        return row_log.NOT_RUN, f"torch.compile's rows will take longer: {'' if status is None else last_line(output)}"

    command = (interpreter, ROOT / "benchmarks/gpu_time.py", "--build", folder, "--compile-ahead")
    return [Stage("layers", "torch.compile ahead", command, 60, START, 80, writes_rows=False, verdict=verdict,
                  environment=environment, beside=True)]


def stages(only, interpreter, folder, builds):
    """(stages, [(piece, reason)] of pieces that cannot run here). First what is not timed, all at once; then what is, in the
    order of its importance."""
    environment = environment_of(interpreter, folder)
    found, cannot = (build if builds else carried)(interpreter, folder, environment), []
    at_once = []
    if "tests" in only:
        at_once += tests(interpreter, environment)
    if "sanitizer" in only:
        of_sanitizer = sanitizer(interpreter, environment)
        if isinstance(of_sanitizer, str):
            cannot.append(("sanitizer", of_sanitizer))
        else:
            at_once += of_sanitizer
    if "layers" in only:
        at_once += compiled_ahead(interpreter, environment, folder)
    if at_once:
        at_once[0].beside = False
    found += at_once + measured(interpreter, environment, folder, only, "first")
    has_program = (folder / PROGRAM).is_file()
    if "program" in only and not has_program:
        cannot.append(("program", f"there is no '{folder / PROGRAM}': docs/gpu_check.md says how it is built and carried"))
    if "program" in only and has_program:
        found += program(interpreter, environment, folder, "bf16")
    found += measured(interpreter, environment, folder, only, "second")
    if "program" in only and has_program:
        found += program(interpreter, environment, folder, "f32,f16")
    return found + measured(interpreter, environment, folder, only, "last"), cannot

#!/usr/bin/env python3
"""Measures one machine: the layer, max pooling and the training step of whole networks, ours against libtorch, with every
wanted instruction set and number of threads. `make bench THREADS=1,2 ISA=x86-64-v3,x86-64-v4` calls it.

Both sides have the same instruction set: ours by PALIMPSEST_ISA; libtorch's by ATEN_CPU_CAPABILITY, and those of its libraries
oneDNN and MKL by their variables. Each set and number of threads is a process of its own.

RESULTS/machines/NAME.json gets one run per benchmark, set and number of threads. NAME is made from the processor's name and
its best set. A later run replaces the run of the same benchmark, set and number of threads, and keeps the others, so a
machine can be measured piece by piece. benchmarks/pages/pages machines writes the page.

Exit status: 0 done; 1 a benchmark failed, or the JSON file cannot be used; 2 a wrong option.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from support import ROOT, commit, positive, replace_file

BENCHMARKS = ("layer_time", "max_pool_time", "model_step", "densenet_time")
# set: (in the names of files, ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA, MKL_ENABLE_INSTRUCTIONS), best set first. On Arm
# there is one set, and nothing to choose.
SETS = {"x86-64-v4-bf16": ("avx512", "avx512", "AVX512_CORE_BF16", "AVX512"),
        "x86-64-v4": ("avx512", "avx512", "AVX512_CORE", "AVX512"), "x86-64-v3": ("avx2", "avx2", "AVX2", "AVX2"),
        "x86-64-v2": ("sse4", "default", "SSE41", "SSE4_2"), "native": ("native", None, None, None)}


class Failed(Exception):
    """One line."""


def numbers(text):
    """Numbers of threads, for argparse."""
    most = len(os.sched_getaffinity(0))
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
        raise argparse.ArgumentTypeError(f"whole numbers from 1 to {most}, the processors here, are needed, with commas between "
                                         f"them, got '{text}'")
    return sorted(set(map(int, parts)))


def names_among(possible):
    """The type of an option that takes some of the possible names."""
    def names(text):
        for name in text.split(","):
            if name not in possible:
                raise argparse.ArgumentTypeError(f"'{name}' is unknown; names with commas between them, of {', '.join(possible)}")
        return [name for name in possible if name in text.split(",")]
    return names


def name_of_file(text):
    if not re.fullmatch(r"[a-z0-9_]+", text):
        raise argparse.ArgumentTypeError(f"a-z, 0-9 and _ are allowed, got '{text}'")
    return text


def parse(arguments):
    parser = argparse.ArgumentParser(prog="machine_sweep", allow_abbrev=False, description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: parser.exit(2, f"machine_sweep: {message}; --help lists the options\n")
    parser.add_argument("--build", metavar="FOLDER", type=pathlib.Path, default=ROOT / "build/release",
                        help="the build folder with the benchmarks [build/release]")
    parser.add_argument("--results", metavar="FOLDER", type=pathlib.Path, default=ROOT / "docs/results",
                        help="its folder machines/ gets the file [docs/results]")
    parser.add_argument("--threads", metavar="N,...", type=numbers, help="[1 and the number of processors]")
    parser.add_argument("--isa", metavar="SET,...", type=names_among(SETS),
                        help=f"instruction sets, of {', '.join(SETS)} [all that run here]")
    parser.add_argument("--benchmarks", metavar="NAME,...", type=names_among(BENCHMARKS), default=list(BENCHMARKS),
                        help=f"of {', '.join(BENCHMARKS)} [all]")
    parser.add_argument("--repeats", metavar="N", type=positive, help="timed runs of each side [25; a network's step: half]")
    parser.add_argument("--name", metavar="NAME", type=name_of_file, help="of the file [made from the processor's name]")
    options = parser.parse_args(arguments)
    for benchmark in options.benchmarks:
        if not (options.build / f"bench_{benchmark}").exists():
            parser.error(f"--build needs a folder with bench_{benchmark}, got '{options.build}'")
    best, options.isa = usable_sets(options, parser)
    options.threads = options.threads or sorted({1, len(os.sched_getaffinity(0))})
    options.name = options.name or machine_name(machine()["processor"], best)
    return options


def environment(instruction_set):
    """The variables of a process whose two sides have the set."""
    _, *values = SETS[instruction_set]
    keys = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
    chosen = {key: value for key, value in zip(keys, values) if value}
    return {**{key: value for key, value in os.environ.items() if key not in keys}, **chosen, "PALIMPSEST_ISA": instruction_set}


def described(options, instruction_set):
    """What a benchmark says of its settings, or a line that says why the set does not run here."""
    program = options.build / f"bench_{options.benchmarks[0]}"
    done = subprocess.run([program, "--describe"], capture_output=True, text=True, env=environment(instruction_set))
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"{program}: exit status {done.returncode}"])[-1]
    found = json.loads(done.stdout)
    wanted = SETS[instruction_set][1]
    if wanted and found["libtorch_instruction_set"].lower() != wanted:
        return f"libtorch must run with ATEN_CPU_CAPABILITY={wanted}, it says {found['libtorch_instruction_set']}"
    return found


def usable_sets(options, parser):
    """Returns the best set that runs here, and the sets to measure. A set that does not run here ends the program."""
    found = {name: described(options, name) for name in SETS}
    here = [name for name in SETS if isinstance(found[name], dict)]
    for name in options.isa or []:
        if name not in here:
            parser.error(f"--isa {name}: {found[name]}")
    if not here:
        parser.error(f"no instruction set runs here: {found[next(iter(SETS))]}")
    return here[0], options.isa or here


def machine():
    """What tells one machine from another."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    value = lambda key: (re.findall(rf"^{key}\s*: (.*)$", text, re.M) or ["unknown"])[0]
    return {"processor": value("model name"), "family": value("cpu family"), "model": value("model"),
            "stepping": value("stepping"), "processors": len(os.sched_getaffinity(0))}


def machine_name(processor, best):
    """"Intel(R) Xeon(R) Processor" with x86-64-v4 as intel_xeon_avx512."""
    text = re.sub(r"\((r|tm|c)\)|\b(cpu|processor)\b|@.*|\b\d+-core\b", " ", processor.lower())
    return "_".join([*re.findall(r"[a-z0-9]+", text), SETS[best][0]])


def measure(options, benchmark, instruction_set, threads):
    """One run: its settings and rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "table.json")
        command = [options.build / f"bench_{benchmark}", "--threads", threads, "--json", path]
        command += ["--repeats", options.repeats] if options.repeats else []
        done = subprocess.run(list(map(str, command)), env=environment(instruction_set))
        if done.returncode != 0:
            raise Failed(f"bench_{benchmark}, {instruction_set}, {threads} threads: exit status {done.returncode}")
        table = json.loads(path.read_text())
    return {**{key: table[key] for key in ("benchmark", "instruction_set", "libtorch_instruction_set", "threads", "libtorch",
                                           "repeats")},
            "commit": commit(), "rows": table["rows"]}


def read(path, here):
    """{key: run} of the runs in the file of this machine; {} if there is no file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        if content["machine"] != here:
            raise Failed(f"{path} is of another machine ({content['machine']}; this is {here}): choose a name with --name")
        return {key_of(run): run for run in content["runs"]}
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"{path} is no file of a machine: {type(error).__name__} {error}") from None


def key_of(run):
    return list(SETS).index(run["instruction_set"]), run["threads"], BENCHMARKS.index(run["benchmark"])


def text_of(here, runs):
    """The JSON file, one line per row."""
    parts = []
    for run in runs:
        head = json.dumps({key: value for key, value in run.items() if key != "rows"})
        rows = ",\n   ".join(map(json.dumps, run["rows"]))
        parts.append(f'{head[:-1]}, "rows": [\n   {rows}]}}')
    return f'{{"machine": {json.dumps(here)},\n "runs": [\n  ' + ",\n  ".join(parts) + "]}\n"


def sweep(options):
    path, here = options.results / "machines" / f"{options.name}.json", machine()
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = read(path, here)
    for instruction_set in options.isa:
        for threads in options.threads:
            for benchmark in options.benchmarks:
                run = measure(options, benchmark, instruction_set, threads)
                runs[key_of(run)] = run
                # After every run: what was measured stays if a later run fails.
                replace_file(path, text_of(here, [runs[key] for key in sorted(runs)]))
    print(f"machine_sweep: wrote {path}")


def main():
    options = parse(sys.argv[1:])
    try:
        sweep(options)
    except (Failed, OSError) as error:
        print(f"machine_sweep: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

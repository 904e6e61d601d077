"""docs/results/machines.md: ours against libtorch on several machines, with each instruction set and number of threads. Made
from machines/NAME.json, one per machine."""
import re

from result_page import NOT_MEASURED, read, table

TITLE = "docs/results/machines.md: ratios to libtorch per processor, instruction set and number of threads"
WRITER = "make bench THREADS=1,2 ISA=x86-64-v3"
DTYPES = {"Float": "f32", "Double": "f64", "Half": "f16", "BFloat16": "bf16"}

PAGE = """# Machines

Our time over libtorch's: below 1 ours is faster. Both sides run interleaved in one process, with the same number of threads
and the same instruction set: libtorch's is set to ours (ATEN_CPU_CAPABILITY, and the variables of oneDNN and MKL).
`make bench THREADS=1,2 ISA=x86-64-v3,x86-64-v4` measures a machine and writes `machines/NAME.json`;
`benchmarks/pages/pages machines` writes this page. [claims.md](claims.md) names the rows that are beyond their limits.

A layer is batch normalization and leaky ReLU, forward and backward (`bench_layer_time`); its two numbers are the least
and the largest ratio of its shapes. "Over f32" is its time over our own in f32. "Over memory" is its time, in all
dtypes, over that of bare passes over the same memory, for tensors larger than most caches: 5 in NCHW, 8 in
channels-last. The layer with frozen statistics is of one shape, in all dtypes and layouts. Max pooling is of several
windows, in both layouts (`bench_max_pool_time`). A step is one of training in f32. That of DenseNet-121 has the dense
strategy `fused`, and libtorch's layers as opponent (`bench_densenet_time`); the others have normalizations in place,
against `standard` (`bench_model_step`).

{ratios}

{machines}
"""


def column(benchmark, row):
    """The column of a row; None for an opponent that is neither libtorch nor ours in f32 nor memory."""
    claim, opponent = row["claim"], row["opponent_name"]
    if benchmark == "layer_time":
        if claim.endswith(", frozen statistics"):
            return "layer, frozen statistics"
        layout, dtype = re.fullmatch(r"\[.*\] (NCHW|channels-last) ?(.*)", claim).groups()
        if opponent.endswith("passes over memory"):
            return f"layer {layout} over memory"
        if opponent == "ours in f32":
            return f"layer {dtype} {layout} over f32"
        return f"layer {dtype or 'f32'} {layout}" if opponent.startswith("batch_norm") else None
    if benchmark == "max_pool_time":
        return f"max pooling {DTYPES[claim.split()[1]]}"
    if benchmark == "densenet_time":
        return "densenet121 step" if claim.startswith("DenseNet-121") else None
    return f"{claim.split(' step')[0]} step" if benchmark == "model_step" else None


def extent(ratios):
    """"0.24-0.31", or one number."""
    if not ratios:
        return NOT_MEASURED
    ends = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
    return "-".join(ends)


def name(machine):
    return re.sub(r"\((R|TM|C)\)", "", machine["processor"])


def ratios(machines):
    """One row per machine, instruction set and number of threads."""
    found, columns = {}, {}
    for file, content in machines.items():
        for run in content["runs"]:
            cells = found.setdefault((file, run["instruction_set"], run["threads"]), {})
            for row in run["rows"]:
                name_of = column(run["benchmark"], row)
                if name_of:
                    columns[name_of] = None
                    cells.setdefault(name_of, []).append(row["ratio"])
    kinds = ("layer", "max pooling", "")
    columns = sorted(columns, key=lambda one: next(i for i, kind in enumerate(kinds) if one.startswith(kind)))
    rows = [[f"{name(machines[file]['machine'])} (`{file}`)", instruction_set, str(threads),
             *(extent(cells.get(one)) for one in columns)] for (file, instruction_set, threads), cells in found.items()]
    return table(["processor", "instruction set", "threads", *columns], rows, len(columns) + 1)


def described(file, content):
    """Lines: what the figures of a machine come from, and of which commit each of its benchmarks is."""
    machine, runs = content["machine"], content["runs"]
    libtorch = ", ".join(dict.fromkeys(run["libtorch"] for run in runs))
    lines = [f"- `{file}`: {machine['processor']} (family {machine['family']}, model {machine['model']}, stepping "
             f"{machine['stepping']}), {machine['processors']} processors, libtorch {libtorch}."]
    for benchmark in dict.fromkeys(run["benchmark"] for run in runs):
        commits = {}
        for run in runs:
            if run["benchmark"] == benchmark:
                commits.setdefault((run["commit"], run["repeats"]), []).append(f"{run['instruction_set']} x{run['threads']}")
        lines += [f"  - `bench_{benchmark}`: commit {commit}, --repeats {repeats}"
                  + (f" ({', '.join(pieces)})" if len(commits) > 1 else "") for (commit, repeats), pieces in commits.items()]
    return "\n".join(lines)


def write(results):
    machines = {path.stem: read(path, WRITER) for path in sorted((results / "machines").glob("*.json"))}
    return {results / "machines.md": PAGE.format(
        ratios=ratios(machines) if machines else f"No machine: {NOT_MEASURED}.",
        machines="\n".join(described(*one) for one in machines.items())).rstrip() + "\n"}

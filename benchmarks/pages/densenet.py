"""docs/results/densenet.md: the figures of the memory-efficient DenseNets' paper beside the figures measured here.

Made from densenet_time.json, densenet_bytes.json, densenet_depth.json and densenet_accuracy.json.
"""
from result_page import Unreadable, mark, percent, read, runs_of, table

TITLE = "docs/results/densenet.md: the figures of the memory-efficient DenseNets' paper beside ours"

BASE = "shared_gradient"  # libtorch's own layers
ROOM = 12000  # MB: the memory of the paper's GPUs
DEPTH = "build/release/densenet_depth --json docs/results/densenet_depth.json"
ACCURACY = "benchmarks/seed_spread.py"

PAGE = """# Densely connected networks: the paper's figures beside ours

The paper is G. Pleiss, D. Chen, G. Huang, T. Li, L. van der Maaten, K. Weinberger, "Memory-Efficient Implementation of
DenseNets", 2017. It measured on GPUs with 12 GB. Our figures are from CPUs, with libtorch {libtorch}, in f32 unless a row
names another type. `benchmarks/pages/pages densenet` writes this page from the JSON files beside it.

[memory.md](../memory.md) describes the five dense strategies. `shared_gradient` is libtorch's own layers with ReLU in
place, `checkpoint` is the method of the paper's public ports, `shared` is the paper's own method, and `fused` is ours.
`checkpoint`, `shared` and `fused` save one tensor per bottleneck. k is the growth rate. A CIFAR batch has 64 images.

## Time of a training step

The paper pays for its memory with 15 % (LuaTorch) and 20 % (PyTorch) more time than `shared_gradient`, for DenseNet-BC-100
with k = 12. Our figures are medians of {time_runs} interleaved steps (`densenet_time.json`, `make bench`). The machine is
{time_machine}.

{time}

## Bytes

The paper's sharing needs 22 % of the total memory of the naive network at 160 layers. Our figures count bytes
(`densenet_bytes.json`, `make bench`):

{bytes}

## Depth

DenseNet-BC, k = 12, from 40 to 1,000 layers (`densenet_depth.json`). A cell holds the MB saved for backward; the peak of a
step above the weights, in MB; and the time of a step as a multiple of `shared_gradient`'s. The machine is
{depth_machine}. The batch is 64. The memory of `naive` and
`shared_gradient` is extrapolated by a straight line from two smaller batches, because they need more than the machine
has. The error of the line is a few MB.

{depth}

The number of layers that fit in 12 GB, by a straight line between the two nearest depths:

{deepest}

![peak memory over depth](densenet_depth_memory.svg)

![time of a step](densenet_depth_time.svg)

## Accuracy

CIFAR-10, top-1 of a short training, in percent (`densenet_accuracy.json`). Every run has the options
`{accuracy_options}`. The seeds are {seeds}.

{accuracy}
"""


def time_table(measured):
    rows = []
    for row in measured["rows"]:
        values = [f"{row[side]['median']:.0f} {row['unit']}" for side in ("opponent", "measured")]
        rows.append([row["claim"], row["opponent_name"], *values, percent(100 * (row["ratio"] - 1)),
                     percent(100 * (row["limit"] - 1)) + mark(row["pass"])])
    return table(["step", "opponent", "opponent's time", "our time", "difference", "limit"], rows)


def bytes_table(measured):
    rows = []
    for row in measured["rows"]:
        values = [f"{row[side]['median']:.{0 if row['unit'] else 3}f} {row['unit']}".strip()
                  for side in ("opponent", "measured")]
        rows.append([row["claim"], row["opponent_name"], *values, f"{row['ratio']:.3f}",
                     f"{row['limit']:.2f}{mark(row['pass'])}"])
    return table(["bytes", "opponent", "opponent's", "ours", "ratio", "limit"], rows)


def by_form(depth):
    """{form: {layers: row}}, in the order of the file."""
    forms = {}
    for row in depth["rows"]:
        forms.setdefault(row["form"], {})[row["layers"]] = row
    if BASE not in forms:
        raise Unreadable(f"densenet_depth.json has no form {BASE}")
    return forms


def depth_table(forms):
    rows = []
    for layers in forms[BASE]:
        cells = []
        for sweep in forms.values():
            row = sweep[layers]
            base = forms[BASE][layers].get("seconds")
            cell = f"{row['kept_mb']:,.0f}; {row['peak_mb']:,.0f}"
            if base and "seconds" in row:
                cell += f"; {row['seconds'][1] / base[1]:.2f}"
            cells.append(cell)
        rows.append([str(layers), *cells])
    return table(["layers", *(f"`{form}`" for form in forms)], rows)


def deepest(sweep):
    """The depth whose peak is ROOM, as text."""
    points = [(layers, row["peak_mb"]) for layers, row in sweep.items()]
    for (below, low), (above, high) in zip(points, points[1:]):
        if low <= ROOM < high:
            return f"{below + (above - below) * (ROOM - low) / (high - low):.0f}"
    return f"over {points[-1][0]}" if points[-1][1] <= ROOM else f"under {points[0][0]}"


def deepest_table(forms):
    return table(["", "paper: naive", "paper: shared, LuaTorch", "paper: shared, PyTorch", *(f"`{form}`" for form in forms)],
                 [["layers", "160", "340", "about 500", *(deepest(sweep) for sweep in forms.values())]])


def accuracy_table(measured):
    rows = []
    for row in measured["variants"]:
        allowed = measured["variants"][0]["spread"] + measured["allowed_points"]
        difference = f"{row['difference']:+.2f} (limit {allowed:.2f})" if "difference" in row else ""
        rows.append([f"`{row['variant']}`", ", ".join(f"{value:.2f}" for value in row["values"]), f"{row['mean']:.2f}",
                     f"{row['spread']:.2f}", difference])
    return table(["dense strategy", "each seed", "mean", "highest less lowest", "difference from the first"], rows)


def write(results):
    time, count = (read(results / f"densenet_{name}.json") for name in ("time", "bytes"))
    depth = read(results / "densenet_depth.json", DEPTH)
    accuracy = read(results / "densenet_accuracy.json", ACCURACY)
    forms = by_form(depth)
    time_machine, depth_machine = (f"{one['processor']} with {one['threads']} threads" for one in (time, depth))
    text = PAGE.format(libtorch=time["libtorch"], time_machine=time_machine, depth_machine=depth_machine,
                       time_runs=runs_of(time), time=time_table(time), bytes=bytes_table(count),
                       depth=depth_table(forms), deepest=deepest_table(forms), accuracy_options=accuracy["options"],
                       seeds=", ".join(map(str, accuracy["seeds"])), accuracy=accuracy_table(accuracy))
    return {results / "densenet.md": text}

#!/usr/bin/env python3
"""Writes docs/results/densenet.md: what the memory-efficient DenseNets' paper reports beside what was measured here.

densenet_figures.py [--check] [RESULTS_DIR]   reads densenet_time.json, densenet_bytes.json, densenet_depth.json and
densenet_accuracy.json of RESULTS_DIR (default docs/results) and writes densenet.md there. --check writes nothing and
compares. Exit status: 0 done, or the page is as the files say; 1 with --check, it is not; 2 a wrong option, a file is
missing or is not what it should be.
"""
import sys

import result_page
from result_page import Unreadable, percent, read, table

BASE = "shared_gradient"  # libtorch's own layers
ROOM = 12000  # MB: the memory of the paper's GPUs
DEPTH = "`build/release/densenet_depth --json docs/results/densenet_depth.json`"
ACCURACY = "`benchmarks/seed_spread.py`"

PAGE = """# Densely connected networks: the paper's figures beside ours

G. Pleiss, D. Chen, G. Huang, T. Li, L. van der Maaten, K. Weinberger, "Memory-Efficient Implementation of DenseNets",
2017, measured on GPUs with 12 GB; ours on {processor}, {threads} threads, no GPU, libtorch {libtorch}, f32 where nothing
else is said. This page is written by `scripts/densenet_figures.py` from the JSON files beside it.

`naive`: every layer concatenates and owns its gradients. `shared_gradient`: libtorch's own layers, ReLU in place.
`checkpoint`: the whole bottleneck is computed again, as the public ports do. `shared`: the paper's. `fused`: ours.
The last three keep one tensor a bottleneck. k is the growth, a batch of CIFAR has 64 images.

## Time of a training step

The paper pays 15 % (LuaTorch) and 20 % (PyTorch) of `shared_gradient`'s time for its memory, DenseNet-BC-100, k = 12.
Medians of {time_repeats} interleaved steps (`densenet_time.json`, `make bench`):

{time}

## Bytes

The paper's sharing needs 22 % of the naive network's total memory at 160 layers. Counted, not estimated
(`densenet_bytes.json`, `make bench`):

{bytes}

## Depth

DenseNet-BC, k = 12, of 40 to 1,000 layers: MB kept for backward, peak of a step above the weights, and the time of a step
over `shared_gradient`'s (`densenet_depth.json`). Memory at a batch of 64 is a straight line through two smaller ones, so
that no form needs more than the machine has; the line leaves an error of a few MB.

{depth}

Layers in 12 GB, between two depths of the sweep by a straight line through their peaks:

{deepest}

![peak memory over depth](densenet_depth_memory.svg)

![time of a step](densenet_depth_time.svg)

## Accuracy

CIFAR-10, top-1 of a short training, percent; the options of every run: `{accuracy_options}`. Seeds {seeds}
(`densenet_accuracy.json`).

{accuracy}
"""


def time_table(measured):
    rows = []
    for row in measured["rows"]:
        values = [f"{row[side]['median']:.0f} {row['unit']}" for side in ("opponent", "measured")]
        rows.append([row["claim"], row["opponent_name"], *values, percent(100 * (row["ratio"] - 1)),
                     percent(100 * (row["limit"] - 1))])
    return table(["step", "against", "theirs", "ours", "ours over theirs", "at most"], rows)


def bytes_table(measured):
    rows = []
    for row in measured["rows"]:
        values = [f"{row[side]['median']:.{0 if row['unit'] else 3}f} {row['unit']}".strip()
                  for side in ("opponent", "measured")]
        rows.append([row["claim"], row["opponent_name"], *values, f"{row['ratio']:.3f}", f"{row['limit']:.2f}"])
    return table(["what", "against", "theirs", "ours", "ratio", "at most"], rows)


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
    """The depth whose peak is ROOM."""
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
        difference = f"{row['difference']:+.2f} (at most {allowed:.2f})" if "difference" in row else ""
        rows.append([f"`{row['variant']}`", ", ".join(f"{value:.2f}" for value in row["values"]), f"{row['mean']:.2f}",
                     f"{row['spread']:.2f}", difference])
    return table(["form", "of each seed", "mean", "highest less lowest", "against the first"], rows)


def page(folder):
    time, count = (read(folder / f"densenet_{name}.json") for name in ("time", "bytes"))
    depth = read(folder / "densenet_depth.json", DEPTH)
    accuracy = read(folder / "densenet_accuracy.json", ACCURACY)
    forms = by_form(depth)
    return PAGE.format(**{key: depth[key] for key in ("processor", "threads", "libtorch")},
                       time_repeats=max(1, time["repeats"] // 5), time=time_table(time), bytes=bytes_table(count),
                       depth=depth_table(forms), deepest=deepest_table(forms), accuracy_options=accuracy["options"],
                       seeds=", ".join(map(str, accuracy["seeds"])), accuracy=accuracy_table(accuracy))


if __name__ == "__main__":
    sys.exit(result_page.main(__file__, "densenet.md", page, sys.argv[1:]))

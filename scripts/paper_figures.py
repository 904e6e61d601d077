#!/usr/bin/env python3
"""Writes docs/results/paper.md: what the In-Place Activated BatchNorm paper reports beside what was measured here.

paper_figures.py [--check] [RESULTS_DIR]   reads block_time.json, kept_bytes.json, model_step.json and
*/results.json of RESULTS_DIR (default docs/results) and writes paper.md there. --check writes nothing and compares.
Exit status: 0 done, or the page is as the files say; 1 with --check, it is not; 2 a wrong option, a file is missing or
is not what it should be.
"""
import re
import sys

import result_page
from result_page import Unreadable, percent, read, table

# Sections 4.1 to 4.4 of the paper: the four modules of ResNeXt-101, (channels, side) of their blocks; extra time of its
# first form and of checkpointing, percent.
MODULES = [("CONV1", 128, 56, 1.8, 4.0), ("CONV2", 256, 28, 2.0, 3.7), ("CONV3", 512, 14, 1.6, 3.1),
           ("CONV4", 1024, 7, 0.8, 1.2)]
BLOCK = re.compile(r"\((\d+), (\d+)\) (\S+ ?(?:grouped)?) (\w+)")

PAGE = """# The paper's figures beside ours

S. Rota Bulò, L. Porzi, P. Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of DNNs", CVPR
2018, measured on a Titan Xp; ours on {processor}, {threads} threads, no GPU, libtorch {libtorch}. Percentages of two
machines: what can be compared is what a strategy costs against the same machine's standard layers.
This page is written by `scripts/paper_figures.py` (`make bench` runs it) from the JSON files beside it.

## Time: one normalization + activation + convolution block, forward + backward, batch 32

Extra time against the standard block; below zero: faster than it. The paper's are means of 200 iterations, ours
medians of {repeats} interleaved ones (`block_time.json`). The paper's in-place block is form I; `inplace_2` is its form
II, which needs no normalized input. Grouped: 64 groups.

{time}

The paper's headline is +0.8 to +2 %. A whole training step, batch 16 (`model_step.json`): {steps}.

## Memory kept for backward

The paper's headline is up to 50 % less. Against libtorch's layers with the activation in place, an image of 224x224
(`kept_bytes.json`):

{memory}

## Batch that fits into the memory of the standard layers

{batch}
"""


def time_table(blocks):
    ratios, convolutions, strategies = {}, {}, {}  # the dictionaries keep the order of the file
    for row in blocks["rows"]:
        match = BLOCK.fullmatch(row["claim"])
        if not match:
            raise Unreadable(f"block_time.json has a row of another form, '{row['claim']}'")
        channels, side, convolution, strategy = match.groups()
        ratios[int(channels), int(side), convolution, strategy] = row["ratio"]
        convolutions[convolution] = strategies[strategy] = None
    rows = []
    for name, channels, side, in_place, checkpointing in MODULES:
        for convolution in convolutions:
            ours = [ratios.get((channels, side, convolution, strategy)) for strategy in strategies]
            rows.append([name, f"{channels} x {side}²", percent(in_place), percent(checkpointing), convolution,
                         *("" if ratio is None else percent(100 * (ratio - 1)) for ratio in ours)])
    return table(["module", "channels x pixels", "paper: in-place I", "paper: checkpointing", "convolution",
                  *(f"`{strategy}`" for strategy in strategies)], rows)


def memory_table(kept):
    rows = []
    for row in kept["rows"]:
        bytes_of = [f"{row[side]['median']:.1f} {row['unit']}" for side in ("opponent", "measured")]
        rows.append([row["claim"], *bytes_of, percent(100 * (row["ratio"] - 1))])
    return table(["network", "standard", "ours", "difference"], rows)


def batch_table(results):
    rows = [["paper: ResNeXt-101 and DeepLabV3, 512x512", "16", "28", percent(75)]]
    for path in results:
        comparison = read(path)
        base, *others = comparison["runs"]
        for run in others:
            gain = 100 * (run["largest_batch"] / base["largest_batch"] - 1)
            model, size = comparison["setup"]["model"], comparison["setup"]["batch"].split(" of ", 1)[-1]
            rows.append([f"{model}; {size}; `{run['name']}` (`{path.parent.name}/`)", str(base["largest_batch"]),
                         str(run["largest_batch"]), percent(gain)])
    return table(["network", "standard", "in place", "more"], rows)


def page(folder):
    blocks, kept, steps = (read(folder / f"{name}.json") for name in ("block_time", "kept_bytes", "model_step"))
    said = ", ".join(f"{row['claim'].split(' ')[0]} {percent(100 * (row['ratio'] - 1))}" for row in steps["rows"])
    return PAGE.format(**{key: blocks[key] for key in ("processor", "threads", "libtorch", "repeats")},
                       time=time_table(blocks), steps=said, memory=memory_table(kept),
                       batch=batch_table(sorted(folder.glob("*/results.json"))))


if __name__ == "__main__":
    sys.exit(result_page.main(__file__, "paper.md", page, sys.argv[1:]))

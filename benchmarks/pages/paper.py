"""docs/results/paper.md: the figures of the In-Place Activated BatchNorm paper beside the figures measured here.

Made from block_time.json, kept_bytes.json, model_step.json, equal_memory.json and memory/*.json.
"""
import re

from result_page import Unreadable, mark, percent, read, runs_of, table

TITLE = "docs/results/paper.md: the figures of the In-Place Activated BatchNorm paper beside ours"

# Sections 4.1 to 4.4 of the paper: the four modules of ResNeXt-101, (channels, side) of their blocks, and the extra time
# of the paper's form I and of checkpointing, percent.
MODULES = [("CONV1", 128, 56, 1.8, 4.0), ("CONV2", 256, 28, 2.0, 3.7), ("CONV3", 512, 14, 1.6, 3.1),
           ("CONV4", 1024, 7, 0.8, 1.2)]
BLOCK = re.compile(r"\((\d+), (\d+)\) (\S+ ?(?:grouped)?) (\w+)")

EQUAL_MEMORY = "PALIMPSEST_COMMIT=$(git describe --always --dirty=+ --exclude='*') build/release/equal_memory --json docs/results/equal_memory.json"
NOT_COMPLETE = "The program was\ncut short: the rows that it has not measured are missing here."

PAGE = """# The paper's figures beside ours

The paper is S. Rota Bulò, L. Porzi, P. Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
DNNs", CVPR 2018. It measured on a Titan Xp. Our figures are from {processor}, {threads} threads, no GPU, libtorch
{libtorch}. The machines differ, so compare one thing only: the cost of a strategy against the standard layers of the same
machine. `benchmarks/pages/pages paper` writes this page from the JSON files beside it; `make bench` runs it.

## Time: one normalization + activation + convolution block, forward + backward, batch 32

The table shows the extra time over the standard block; a negative value means faster. The paper's figures are means of 200
iterations, ours are medians of {runs} interleaved iterations (`block_time.json`). The paper's in-place block is form I.
`inplace_2` is the paper's form II, which does not compute the normalized input. Grouped convolutions have 64 groups.

{time}

The paper's headline is +0.8 to +2 %. A whole training step, batch 16 (`model_step.json`): {steps}.

## Memory saved for backward

The paper's headline is up to 50 % less. The table compares with libtorch's layers with the activation in place, per image
of 224x224 (`kept_bytes.json`):

{memory}

## Pixels that fit into the memory of the standard layers, at the paper's sizes

The memory is the peak of a training step per GPU, with the standard layers, at the batch and the crop of the paper's
table 3: DeepLabV3 with output stride 8, the mean loss over each image's hardest quarter of the pixels, parameters,
gradients and momentum included. The table shows the largest batch of the same crop, and the largest crop of the same
batch, that fit in that memory, and the gained pixels; brackets hold the paper's gain. `loss`: our loss without full-size
logits (`ops/upsampled_loss.h`) on both sides, or libtorch's `interpolate` and `cross_entropy` on both, with both passes of
one image after the other; over a whole batch they need more. Even in a step in bf16 they compute in f32. They hold three
full-size tensors at a time, which can be the peak of a step with 91 classes. On both sides class ids are bytes (`palimpsest
train` holds 8 bytes for each during the forward pass), and the images are let go after the forward pass, in which the
layers save what they need of them: in bf16 that is less than the images.

The peaks of `standard` were counted. Those of ours were counted at {fitted}; a formula
through them gives the other sizes. Its error was measured at {checked}: too high a peak is against us.
{missing}

    {equal_memory_command}

{equal_memory}

## Batch that fits into the memory of the standard layers, small networks

The memory is the peak of a training step with the standard layers and the batch in the column `standard` (`memory/`). Byte
counts do not depend on the machine. Both sides have our loss without full-size logits (`ops/upsampled_loss.h`); the paper's
have the framework's.

{batch}
"""


def time_table(blocks):
    of_blocks, convolutions, strategies = {}, {}, {}  # the dictionaries keep the order of the file
    for row in blocks["rows"]:
        match = BLOCK.fullmatch(row["claim"])
        if not match:
            raise Unreadable(f"block_time.json has a row of another form, '{row['claim']}'")
        channels, side, convolution, strategy = match.groups()
        of_blocks[int(channels), int(side), convolution, strategy] = row
        convolutions[convolution] = strategies[strategy] = None
    rows = []
    for name, channels, side, in_place, checkpointing in MODULES:
        for convolution in convolutions:
            ours = [of_blocks.get((channels, side, convolution, strategy)) for strategy in strategies]
            rows.append([name, f"{channels} x {side}²", percent(in_place), percent(checkpointing), convolution,
                         *("" if row is None else percent(100 * (row["ratio"] - 1)) + mark(row["pass"] is not False) for row in ours)])
    return table(["module", "channels x pixels", "paper: in-place I", "paper: checkpointing", "convolution",
                  *(f"`{strategy}`" for strategy in strategies)], rows)


def memory_table(kept):
    rows = []
    for row in kept["rows"]:
        bytes_of = [f"{row[side]['median']:.1f} {row['unit']}" for side in ("opponent", "measured")]
        rows.append([row["claim"], *bytes_of, percent(100 * (row["ratio"] - 1))])
    return table(["network", "standard", "ours", "difference"], rows)


def notes_of(measured):
    """The sentence in a file of measurements that says what changed since; none if nothing did."""
    return [measured["note"]] if "note" in measured else []


def batch_table(comparisons):
    rows = [["paper: ResNeXt-101 and DeepLabV3, 512x512", "16", "28", percent(75)],
            ["paper: WideResNet-38 and DeepLabV3, 512x512", "20", "28", percent(40)]]
    for path in comparisons:
        comparison = read(path)
        base, *others = comparison["runs"]
        for run in others:
            gain = 100 * (run["largest_batch"] / base["largest_batch"] - 1)
            model, size = comparison["setup"]["model"], comparison["setup"]["batch"].split(" of ", 1)[-1]
            rows.append(["; ".join([model, size, f"`{run['name']}`", *notes_of(comparison)]), str(base["largest_batch"]), str(run["largest_batch"]),
                         percent(gain)])
    return table(["network", "`standard`", "in place", "more"], rows)


def equal_memory_table(measured):
    rows = []
    # The program measures both losses at once; the table has the forms of one loss below each other.
    compared = list(dict.fromkeys((row["network"], row["data"]) for row in measured["rows"]))
    for row in sorted(measured["rows"], key=lambda row: (compared.index((row["network"], row["data"])), row["loss"] != "ours")):
        standard = row["limit"] == 0
        batch, crop = row["largest_batch"], row["largest_crop"]
        pixels = row["batch"] * row["crop"] ** 2

        def cell(count, gained, paper):
            gain = 100 * (gained / pixels - 1)
            return str(count) if standard else f"{count}: {percent(gain)} [{percent(paper)}]"
        rows.append([row["network"], row["data"], row["loss"], f"`{row['form']}`", f"{row['peak'] / 1e9:.2f} GB",
                     cell(row["batch"] if standard else batch, batch * row["crop"] ** 2, row["paper_batch_gain"]),
                     cell(row["crop"] if standard else crop, row["batch"] * crop ** 2, row["paper_crop_gain"]),
                     "" if standard else percent(row["limit"]) + mark(row["pass"]),
                     "" if row["error"] is None else f"{100 * row['error']:+.2f} %"])
    return table(["network", "data", "loss", "form", "peak", "batch", "crop", "limit", "error of the formula"], rows, numbers=5)


def sizes(named):
    return ", ".join(f"{batch} x {crop}²" for batch, crop in named)


def write(results):
    blocks, kept, steps = (read(results / f"{name}.json") for name in ("block_time", "kept_bytes", "model_step"))
    ratios = ", ".join(f"{row['claim'].split(' ')[0]} {percent(100 * (row['ratio'] - 1))}{mark(row['pass'] is not False)}"
                       for row in steps["rows"])
    equal = read(results / "equal_memory.json", EQUAL_MEMORY)
    text = PAGE.format(**{key: blocks[key] for key in ("processor", "threads", "libtorch")}, runs=runs_of(blocks),
                       time=time_table(blocks), steps=ratios, memory=memory_table(kept),
                       equal_memory=equal_memory_table(equal), equal_memory_command=EQUAL_MEMORY,
                       missing=" ".join([NOT_COMPLETE if not equal["complete"] else "No row is missing.",
                                         *notes_of(equal)]),
                       fitted=sizes(equal["fitted"]), checked=sizes([equal["checked"]]),
                       batch=batch_table(sorted((results / "memory").glob("*.json"))))
    return {results / "paper.md": text}

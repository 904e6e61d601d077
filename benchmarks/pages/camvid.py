"""docs/results/camvid.md: the same training of a segmentation network, standard and in place.

Made from training/camvid.json, training/camvid_seeds.json and memory/deeplabv3_resnet18.json.
"""
import statistics

from result_page import NOT_MEASURED, mark, read, table

TITLE = "docs/results/camvid.md: the same training of a segmentation network, standard and in place"

MIB = 1 << 20

PAGE = """# CamVid: the same training, standard and in place

The network is a ResNet-18 DeepLabV3 (output stride 16, crop 240, batch 8). It trains for 12 epochs of 367 images with
cross-entropy, from random weights (`examples/camvid.toml`): once with libtorch's layers and once with `inplace_2`, from
the same seed. `benchmarks/pages/pages camvid` writes this page from the JSON files that it names.

## Memory of a training step

Counted (`memory/deeplabv3_resnet18.json`); byte counts do not depend on the machine. `model_step.json` and
[paper.md](paper.md) have the time of a step.

{memory}

The saved memory can be spent on a larger crop (`--spend crop`): {trained_on}.

## Three seeds, the same memory

The recipe as it stands with libtorch's layers, and in place with the crop that takes no more memory. Both train for the
same number of steps of 8 images. The table holds the mean IoU of the last evaluation, in percent, on 101 validation images
of 480x360, of one scale and without flips (`training/camvid_seeds.json`).

{seeds}

No figures are published for this network, trained for 12 epochs from random weights.

## Training from one seed, the same crop

101 validation images of 480x360 (`training/camvid.json`):

{training}

The two trainings agree to 1e-3 over the first steps (`tests/cli/test_agreement.py`). Then rounding separates them, as it
separates two trainings with libtorch's layers on one thread and on two threads. The difference that remains is the spread
of short trainings: one seed does not show which strategy is better.

![training loss](training/camvid.svg)
"""


def memory_table(memory):
    standard, in_place = memory["runs"]
    rows = [[title, *(f"{run[key] / unit:.{digits}f}" for run in (standard, in_place)), f"{in_place[key] / standard[key]:.3f}"]
            for title, key, unit, digits in (
                ("saved for backward, MiB", "kept_bytes", MIB, 1), ("peak, MiB", "peak_bytes", MIB, 1),
                (f"largest batch in {memory['memory_bytes'] / MIB:.0f} MiB", "largest_batch", 1, 0))]
    return table(["", f"`{standard['name']}`", f"`{in_place['name']}`", "ratio"], rows, numbers=3)


def training_table(training):
    runs = training["runs"]
    last = [[100 * evaluation["mean_iou"] for evaluation in run["evaluations"][-3:]] for run in runs]
    epochs = ", ".join(str(evaluation["epoch"]) for evaluation in runs[0]["evaluations"][-3:])
    rows = [["training loss, last 10 steps", *(f"{run['loss']:.3f}" for run in runs)],
            [f"mean IoU after epochs {epochs}, %", *(", ".join(f"{value:.1f}" for value in values) for values in last)],
            ["mean of the three, %", *(f"{statistics.fmean(values):.1f}" for values in last)]]
    return table(["", *(f"`{run['name']}`" for run in runs)], rows, numbers=2)


def seeds_text(measured):
    """The table with its seeds."""
    if measured is None:
        return NOT_MEASURED.capitalize() + "."
    room = measured["variants"][0]["spread"] + measured["allowed_points"]
    rows = []
    for row in measured["variants"]:
        difference = f"{row['difference']:+.1f}{mark(row['pass'])}" if "difference" in row else ""
        rows.append([f"`{row['options']}`", ", ".join(f"{value:.1f}" for value in row["values"]), f"{row['mean']:.1f}",
                     f"{row['spread']:.1f}", difference, f"{-room:+.1f}" if difference else ""])
    seeds = ", ".join(map(str, measured["seeds"]))
    less = f", and {measured['allowed_points']:g} points" if measured["allowed_points"] else ""
    header = ["options", "each seed", "mean", "highest less lowest", "difference", "limit"]
    return f"Seeds {seeds}. The limit: the mean may fall by the spread of the first row{less}.\n\n" + table(header, rows, numbers=5)


def write(results):
    memory = read(results / "memory/deeplabv3_resnet18.json", "benchmarks/pages/pages take memory")
    training = read(results / "training/camvid.json", "benchmarks/pages/pages take training")
    path = results / "training/camvid_seeds.json"
    seeds = read(path) if path.exists() else None
    text = PAGE.format(memory=memory_table(memory), training=training_table(training), trained_on=memory["setup"]["trained on"],
                       seeds=seeds_text(seeds))
    return {results / "camvid.md": text}

"""docs/results/camvid.md: the same training of a segmentation network, standard and in place.

Made from training/camvid.json and memory/deeplabv3_resnet18.json.
"""
import statistics

from result_page import read, table

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

## Training

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


def write(results):
    memory = read(results / "memory/deeplabv3_resnet18.json", "benchmarks/pages/pages take memory")
    training = read(results / "training/camvid.json", "benchmarks/pages/pages take training")
    return {results / "camvid.md": PAGE.format(memory=memory_table(memory), training=training_table(training))}

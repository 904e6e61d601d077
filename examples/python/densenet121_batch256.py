"""DenseNet-121 of torchvision: does a training step of 256 images fit into 16 GB? Measured at small batches, and extended.

The bytes of a step are a line in the batch: each image adds the same, beside a part that no image changes."""
import copy

import torch

import first_look
import palimpsest

BATCH = 256
MEMORY = 16e9  # bytes
WEIGHT_COPIES = 3  # the weights, their gradients and the momentum of SGD: the meter's figures are without them


def line_through(first, second):
    """(value at 0, slope) of the line through two points (x, y)."""
    slope = (second[1] - first[1]) / (second[0] - first[0])
    return first[1] - slope * first[0], slope


def predict(name, model, batches, size):
    """Measures a step at three batches, prints the line through the first two beside the third, and extends it to BATCH.

    Returns the bytes that one more image keeps."""
    measured = [first_look.measure_step(model, torch.randn(batch, 3, size, size)) for batch in batches]
    lines = {}
    for what in ("kept", "peak"):
        points = [(batch, getattr(m, f"{what}_bytes")) for batch, m in zip(batches, measured)]
        start, slope = lines[what] = line_through(*points[:2])
        third, at_third = points[2]
        print(f"{name}: {what} {start / 1e6:.2f} MB + {slope / 1e6:.2f} MB per image, at batch {third}: "
              f"predicted {(start + third * slope) / 1e6:.2f} MB, measured {at_third / 1e6:.2f} MB")
    start, slope = lines["peak"]
    weights = WEIGHT_COPIES * sum(p.numel() * p.element_size() for p in model.parameters())
    images = BATCH * 3 * size * size * 4
    total = weights + images + start + BATCH * slope
    print(f"{name}: batch {BATCH} at {size}x{size} needs {total / 1e9:.2f} GB: "
          f"{'fits' if total <= MEMORY else 'does not fit'} {MEMORY / 1e9:.0f} GB")
    return lines["kept"][1]


def main():
    given = first_look.options(__doc__, size=224, steps=2)
    torch.manual_seed(0)
    model = first_look.package("torchvision.models").densenet121().train()
    original = copy.deepcopy(model)
    images = torch.randn(2, 3, 64, 64)  # the proof and the losses need no large images
    model, report = palimpsest.convert(model, images)
    first_look.print_summary(report)

    batches = [given.batch, 2 * given.batch, 3 * given.batch]
    before = predict("eager", original, batches, given.size)
    after = predict("converted", model, batches, given.size)
    print(f"kept for backward: {before / 1e6:.2f} MB before, {after / 1e6:.2f} MB after ({after / before:.2f}), per image")
    first_look.check_losses(original, model, images, given.steps)


main()

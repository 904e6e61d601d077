"""What the programs of this folder share: options, the bytes of a step before and after convert(), and the losses of both."""
import argparse
import copy
import importlib
import sys

import torch

import palimpsest

SKIPPED = 77  # the exit status by which test programs say that they could not run
LOSS_TOLERANCE = 1e-6  # of the loss, in f64


def options(description, batch=2, size=64, steps=3):
    """The command line that all programs have, with the defaults of one."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--batch", type=int, default=batch, help="images per training step")
    parser.add_argument("--size", type=int, default=size, help="pixels of an image's side")
    parser.add_argument("--steps", type=int, default=steps, help="training steps whose losses are compared")
    return parser.parse_args()


def package(name):
    """The module of this name. Without it the program ends with one line and the status SKIPPED."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(f"skipped: the package {error.name} is not installed")
        sys.exit(SKIPPED)


def loss_of(outputs):
    """The mean square of every output. Which loss it is does not change what the layers keep."""
    if isinstance(outputs, torch.Tensor):
        return outputs.square().mean()
    return sum(loss_of(part) for part in (outputs.values() if isinstance(outputs, dict) else outputs))


def measure_step(model, images):
    """The measurement of one training step: bytes beyond the weights, their gradients and the images."""
    loss_of(model(images)).backward()  # the gradients of the weights exist from here on
    with palimpsest.memory.measure() as measured:
        loss = loss_of(model(images))
        measured.forward_done()
        loss.backward()
    return measured


def losses(model, images, steps):
    """The losses of some steps of SGD on a copy of the network in f64, in which rounding does not hide a difference."""
    model, images = copy.deepcopy(model).double(), images.double()
    # A small rate: at 0.01 each step of ResNet-50 made a difference of 1e-15 in the images a thousand times larger.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    result = []
    for step in range(steps):
        torch.manual_seed(step)  # dropout draws the same numbers in both networks
        optimizer.zero_grad()
        loss = loss_of(model(images))
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


def print_summary(report):
    """The end of the report; print(report) has a line per layer before it."""
    print("\n".join(str(report).splitlines()[len(report.layers) + 1:]))


def check_losses(original, converted, images, steps):
    """Prints the largest difference of the losses, and ends the program if it is more than rounding."""
    pairs = list(zip(losses(original, images, steps), losses(converted, images, steps)))
    difference = max((abs(a - b) / abs(a) for a, b in pairs), default=0.0)
    print(f"losses of {steps} steps of SGD in f64: they differ by {difference:.1e} of the loss at most")
    if not difference <= LOSS_TOLERANCE:
        sys.exit(f"the converted network trains differently: {pairs}")


def run(make, given):
    """Makes the network, converts it, and prints the bytes of a step before and after and the difference of the losses."""
    torch.manual_seed(0)
    model, images = make().train(), torch.randn(given.batch, 3, given.size, given.size)
    original = copy.deepcopy(model)
    before = measure_step(original, images)
    model, report = palimpsest.convert(model, images)
    after = measure_step(model, images)

    print_summary(report)
    for what, a, b in (("kept for backward", before.kept_bytes, after.kept_bytes),
                       ("peak of a step", before.peak_bytes, after.peak_bytes)):
        print(f"{what}: {a / 1e6:.2f} MB before, {b / 1e6:.2f} MB after ({b / a:.2f})")
    check_losses(original, model, images, given.steps)

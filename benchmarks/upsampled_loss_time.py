#!/usr/bin/env python3
"""Times the loss of upsampled logits, forward + backward in f32, beside libtorch's interpolate and cross_entropy.

Claim:    one operator (ops/upsampled_loss.h) takes less time than the two, and a twentieth of their memory.
Opponent: F.cross_entropy(F.interpolate(logits, mode="bilinear"), targets), and with online bootstrapping the mean of the
          hardest quarter of each image's pixels, by topk.
Limit:    0.70 of the time; 0.05 of the bytes that are kept for backward plus the peak of the step. Our workspace is a tensor
          and counts; a few rows of the small map per thread, and what ranks the pixels of an image, do not
          (kernels/upsampled_loss.h).

Both sides run in one process on the same threads, with a malloc that retains freed blocks. Before the timing the gradients
of both are compared with those in f64: ours may differ by 1e-6 of the largest; and of bootstrapping the pixels are compared.

Exit status: 0 done; 1 a result is wrong, the JSON file cannot be written, or, with --check, a measured claim fails; 2 a
wrong option or folder.
"""
import os
import sys

import torch
from torch.nn import functional as F

from support import ROOT, Options, Report, Row, begin_with_retaining_malloc, exactly, interleave, milliseconds_of

sys.path.insert(0, str(ROOT / "python"))

# Logits of the small map, and the side of the image: CamVid, Cityscapes, Pascal VOC, ADE20K, and two classes.
CASES = [((4, 12, 45, 60), (360, 480)), ((2, 19, 64, 128), (512, 1024)), ((4, 21, 64, 64), (512, 512)),
         ((2, 150, 64, 64), (512, 512)), ((8, 2, 32, 32), (256, 256))]
LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
LARGEST_ERROR = 1e-6
IGNORED, SHARE = 255, 0.25


def libtorchs(logits, targets, share):
    wide = F.interpolate(logits, targets.shape[1:], mode="bilinear")
    if share == 1:
        return F.cross_entropy(wide, targets, ignore_index=IGNORED)
    losses = F.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="none").flatten(1)
    most = (targets != IGNORED).flatten(1).sum(1).mul(share).ceil().long().tolist()
    hardest = [of_image.topk(count).values for of_image, count in zip(losses, most)]
    return torch.cat(hardest).mean()


def ours(logits, targets, share):
    return torch.ops.palimpsest.upsampled_cross_entropy(logits, targets, None, IGNORED, 0.0, False, share, 1.0)[0]


def gradient(loss, logits, targets, share):
    logits = logits.detach().requires_grad_()
    return torch.autograd.grad(loss(logits, targets, share), logits)[0]


def verify(logits, targets, share):
    """Raises ArithmeticError if our gradient differs from libtorch's in f64, as it would if another pixel were chosen."""
    want, got = gradient(libtorchs, logits.double(), targets, share), gradient(ours, logits, targets, share)
    error = ((got - want).abs().max() / want.abs().max()).item()
    if not error <= LARGEST_ERROR:
        raise ArithmeticError(f"{list(logits.shape)}: the gradient differs from that in f64 by {error:.1e} of its largest value, at "
                              f"most {LARGEST_ERROR:.0e} is allowed")


def side(loss, logits, targets, share):
    return lambda: milliseconds_of(lambda: gradient(loss, logits, targets, share))


def mebibytes(loss, logits, targets, share):
    """Bytes that are kept for backward plus the peak of the step."""
    from palimpsest import memory

    leaf = logits.detach().requires_grad_()
    with memory.measure() as measured:
        value = loss(leaf, targets, share)
        measured.forward_done()
        value.backward()
    return exactly((measured.kept_bytes + measured.peak_bytes) / 2**20)


def measure(shape, size, layout, repeats, report):
    torch.manual_seed(0)
    logits = torch.randn(shape).mul(2).contiguous(memory_format=LAYOUTS[layout])
    targets = torch.randint(shape[1], (shape[0], *size))
    targets[torch.rand(targets.shape) < 0.1] = IGNORED
    for share in (1.0, SHARE):
        verify(logits, targets, share)
        claim = f"{list(shape)} to {size[0]}x{size[1]} {layout}" + (", bootstrapped" if share < 1 else "")
        sides = [side(loss, logits, targets, share) for loss in (libtorchs, ours)]
        theirs, mine = interleave(sides, repeats, warm_up=1)
        report.add(Row(claim, "interpolate + cross_entropy", opponent=theirs, measured=mine, limit=0.70))
        if layout == "NCHW":
            report.add(Row(claim + ", kept + peak", "interpolate + cross_entropy", "MiB", mebibytes(libtorchs, logits, targets, share),
                           mebibytes(ours, logits, targets, share), 0.05))


def read_options():
    parser = Options("Times the loss of upsampled logits beside libtorch's interpolate and cross_entropy.")
    parser.add_argument("--build", metavar="FOLDER", default="build/release",
                        help="the build folder with the operators [build/release]")
    parser.add_argument("--first", metavar="N", type=int, default=len(CASES), help="only the first N cases")
    options = parser.parse_args()
    library = parser.library(options.build)
    os.environ["PALIMPSEST_LIBRARY"] = str(library)  # for the package's meter
    torch.ops.load_library(str(library))
    return options


def main():
    begin_with_retaining_malloc()
    options = read_options()
    report = Report("upsampled_loss_time", options)
    try:
        for shape, size in CASES[:options.first]:
            for layout in LAYOUTS:
                measure(shape, size, layout, options.repeats, report)
    except ArithmeticError as error:
        print(f"upsampled_loss_time: {error}", file=sys.stderr)
        return 1
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())

"""Training steps on a GPU, with libtorch's layers and with ours: time of the device, and bytes saved for backward."""
import gc

import torch

import autocast
import densenet
import preact_resnext
from gpu import device_time
from gpu.layers import DTYPES
from gpu.measuring import Wrong, figure_row, timed_row
from support import exactly, interleave

SIZE = 224
NORMS = (preact_resnext.StandardNorm, preact_resnext.InPlaceNorm)
FEWEST_REPEATS = 5
LARGEST_DIFFERENCE = 0.05  # of the losses of a step, relative


def images_of(batch, size, dtype):
    images = torch.randn(batch, 3, size, size, device=device_time.DEVICE, dtype=dtype)
    return images.contiguous(memory_format=torch.channels_last), torch.arange(batch, device=device_time.DEVICE) % 1000


def resnext101(batch, size):
    data = images_of(batch, size, torch.bfloat16)
    return [preact_resnext.Side(kind, *data, device_time.DEVICE) for kind in NORMS]


def densenet121(batch, size):
    data = images_of(batch, size, torch.bfloat16)
    return [preact_resnext.Side(fused, *data, device_time.DEVICE, densenet.Network) for fused in (False, True)]


def resnet50(batch, size, precision):
    data = images_of(batch, size, torch.float32)
    return [autocast.Side(kind, *data, device_time.DEVICE, DTYPES[precision]) for kind in NORMS]


NETWORKS = {each.__name__: each for each in (resnext101, densenet121, resnet50)}


def repeats_of(context):
    """A step takes as long as a hundred layers: three fifths of their repeats."""
    return max(FEWEST_REPEATS, context.repeats * 3 // 5)


def expect_equal_losses(name, sides):
    losses = [float(each.step()) for each in sides]
    if not max(losses) - min(losses) <= LARGEST_DIFFERENCE * losses[0]:
        raise Wrong(f"{name}: the sides have losses of {', '.join(f'{loss:.4f}' for loss in losses)}")


def kept_megabytes(side):
    """The bytes that are alive after forward and were not before."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    loss = side.loss()
    kept = torch.cuda.memory_allocated() - before
    del loss
    return kept / 1e6


def step(context, work, network, batch, size=SIZE, **arguments):
    """Rows of time and of saved bytes, and the host's time to queue our step."""
    with autocast.exact_f32():
        sides = NETWORKS[network](batch, size, **arguments)
        expect_equal_losses(work.name, sides)
        kept = [exactly(kept_megabytes(each)) for each in sides]
        clocks = [context.clock.timed(each.step) for each in sides]
        standard, inplace = interleave(clocks, repeats_of(context))
    return [timed_row(work.name, "standard layers", standard, inplace, work.limits.get("time")),
            timed_row(f"{work.name}: kept", "standard layers", *kept, work.limits.get("kept"), unit="MB"),
            figure_row(f"{work.name}: host", clocks[1].queued, "ms")]


def precisions(context, work, batch, size=SIZE):
    """ResNet-50 under autocast against the same step in f32 (no TF32), and in f16 against libtorch's layers."""
    standard, inplace = NORMS
    pairs = [(inplace, "f32"), (inplace, "bf16"), (inplace, "f16"), (standard, "f16")]
    data = images_of(batch, size, torch.float32)
    with autocast.exact_f32():
        sides = [autocast.Side(kind, *data, device_time.DEVICE, DTYPES[precision]) for kind, precision in pairs]
        expect_equal_losses(work.name, sides)
        times = dict(zip(pairs, interleave([context.clock.timed(each.step) for each in sides], repeats_of(context))))
    name = work.name.removesuffix(", f32 and 16 bits")
    return [*(timed_row(f"{name}, {precision} against f32", "ours in f32", times[inplace, "f32"], times[inplace, precision],
                        work.limits["f32"]) for precision in ("bf16", "f16")),
            timed_row(f"{name}, f16 autocast", "standard layers", times[standard, "f16"], times[inplace, "f16"],
                      work.limits["f16"])]


KINDS = {each.__name__: each for each in (step, precisions)}

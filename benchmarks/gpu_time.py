#!/usr/bin/env python3
"""Times our layer and training steps on a GPU.

Claim:    on a GPU our layers take less time than every opponent, and near the bandwidth of the device. Opponent and
limit, for one BN + leaky ReLU(0.01) layer, forward + backward: 0.60  libtorch's two eager layers, with the activation in
place or not, whichever is faster; channels-last bf16 0.75  the same, NCHW, f32 and f16 0.95  torch.compile's program for
the two layers, bf16 0.60  the CUDA kernels of the inplace_abn package on the two largest shapes, its 8 passes over the
tensor (5 where a channel's values stay on the chip) run at 0.85 or more of the bandwidth of a copy on the device Opponent
and limit, for a training step: 0.92  ResNeXt-101 with pre-activation (batch 128 of 224x224, bf16, channels-last) with
libtorch's layers; 0.52 of the bytes saved for backward 0.85  DenseNet-121 with libtorch's layers; ours has one operator
per block 0.50  ResNet-50 with pre-activation in f32 (without TF32); ours is under autocast to bf16 or f16 0.95  the same
with libtorch's layers under the same autocast

--inplace-abn or PALIMPSEST_INPLACE_ABN names a folder with the inplace_abn package: compiled, or a checkout, whose
sources are compiled first. Without it the rows of the package say "not measured".

All sides run in one process, on libtorch's caching allocator, in turn; medians count. CUDA events surround work that is
queued behind a wait, so that the host's time does not count. The layer's input is made again before each run and outside
the timer, because ours overwrites it. Before the timing, every side is compared with libtorch in f64.

Exit status: 0 done; 1 a result is wrong, the JSON file cannot be written, or, with --check, a measured claim fails; 2 a
wrong option or folder, or no GPU.
"""
import dataclasses
import gc
import os
import pathlib
import sys

import torch
from torch.nn import functional

import autocast
import densenet
import inplace_abn_package
import preact_resnext
from support import Options, Report, Row, Spread, interleave, positive

DEVICE = "cuda"
SLOPE, MOMENTUM, EPS = 0.01, 0.1, 1e-5
SHAPES = [(64, 256, 56, 56), (64, 512, 28, 28), (64, 1024, 14, 14), (64, 2048, 7, 7)]
LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
CASES = [("channels-last", torch.bfloat16, 0.60, 0.95), ("NCHW", torch.float32, 0.75, None),
         ("NCHW", torch.float16, 0.75, None), ("channels-last", torch.float32, None, None),
         ("NCHW", torch.bfloat16, None, None)]
LARGEST_ERROR = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
TWO_SWEEPS, ONE_READING = 8, 5  # passes over the tensor, forward + backward
PACKAGE_LIMIT = 0.60
SHARED_BYTES = 100 * 1024  # per block; about the share that abn.cu gives a panel in a cluster of 8


def name_of(dtype):
    return {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]


def fresh(x, weight, bias, mean, var):
    return functional.leaky_relu(functional.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS), SLOPE)


def in_place(x, weight, bias, mean, var):
    return functional.leaky_relu_(functional.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS), SLOPE)


def ours(x, weight, bias, mean, var):
    return torch.ops.palimpsest.abn_(x, weight, bias, mean, var, True, MOMENTUM, EPS, "leaky_relu", SLOPE)


class Values:
    """Input, parameters and incoming gradient of one case."""

    def __init__(self, shape, layout, dtype):
        torch.manual_seed(0)

        def made(scale, shift):
            return (torch.randn(shape, device=DEVICE) * scale + shift).to(dtype).contiguous(memory_format=LAYOUTS[layout])

        self.x, self.dz = made(1.3, 0.7).requires_grad_(), made(1, 0)
        self.weight = (torch.rand(shape[1], device=DEVICE) + 0.5).requires_grad_()
        self.bias = (torch.randn(shape[1], device=DEVICE) * 0.5).requires_grad_()
        self.mean, self.var = torch.zeros(shape[1], device=DEVICE), torch.ones(shape[1], device=DEVICE)

    def run(self, layer, dtype=None):
        leaves = [t.detach().to(dtype or t.dtype).requires_grad_() for t in (self.x, self.weight, self.bias)]
        mean, var = (t.to(dtype or t.dtype, copy=True) for t in (self.mean, self.var))
        z = layer(leaves[0] + 0, *leaves[1:], mean, var)
        return [z.detach().clone(), *torch.autograd.grad(z, leaves, self.dz.to(z.dtype))]


def verify(name, values, layer, limit):
    for what, got, want in zip(("output", "gradient of x", "of weight", "of bias"), values.run(layer),
                               values.run(fresh, torch.float64)):
        error = ((got.double() - want).norm() / want.norm()).item()
        if not error <= limit:
            raise ArithmeticError(f"{name}: {what} differs from libtorch's in f64 by {error:.1e} relative, at most "
                                  f"{limit:.0e} is allowed")


def milliseconds_on_the_device(work):
    """The device's time for `work`, which begins when all of it is queued."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000)  # about a millisecond
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def side(values, layer):
    def run():
        x = [values.x + 0]

        def step():
            z = layer(x.pop(), values.weight, values.bias, values.mean, values.var)
            torch.autograd.grad(z, (values.x, values.weight, values.bias), values.dz)

        return milliseconds_on_the_device(step)

    return run


def copy_bandwidth(repeats):
    """Bytes per second, read and written, of a copy of one GiB within the device's memory."""
    source, target = (torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    spread, = interleave([lambda: milliseconds_on_the_device(lambda: target.copy_(source))], repeats)
    return 2 * source.numel() / (spread.median * 1e-3)


def passes(shape, layout, dtype):
    """The choice of abn.cu: a panel is a channel, or 64 bytes of channels; backward holds two tensors on the chip."""
    n, _, h, w = shape
    width = 64 if layout == "channels-last" else dtype.itemsize
    return ONE_READING if 2 * n * h * w * width <= 8 * SHARED_BYTES else TWO_SWEEPS


def measure_package(package, claim, values, repeats, report):
    """Adds the row of the package; `package`: its layer, or a text that says why it is missing."""
    row = Row(claim, "inplace_abn", limit=PACKAGE_LIMIT)
    if isinstance(package, str):
        row.not_measured = package
    else:
        try:
            verify("inplace_abn", values, package, 5e-2)
            row.opponent, row.measured = interleave([side(values, package), side(values, ours)], repeats)
        except (ArithmeticError, RuntimeError) as error:  # it lacks some dtypes
            row.not_measured = str(error).splitlines()[0]
    report.add(row)


@dataclasses.dataclass
class Step:
    """A network's training step, with libtorch's layers and with ours."""
    name: str
    network: type
    kinds: tuple
    time_limit: float
    bytes_limit: float | None


RESNEXT = Step("ResNeXt-101", preact_resnext.Network, (preact_resnext.StandardNorm, preact_resnext.InPlaceNorm), 0.92, 0.52)
DENSENET = Step("DenseNet-121", densenet.Network, (False, True), 0.85, None)


def measure_step(step, batch, size, repeats, report):
    claim = f"{step.name} step, batch {batch}, bf16"
    images = torch.randn(batch, 3, size, size, device=DEVICE, dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    targets = torch.arange(batch, device=DEVICE) % 1000
    try:
        sides = [preact_resnext.Side(kind, images, targets, DEVICE, step.network) for kind in step.kinds]
        losses = [float(each.step()) for each in sides]
        if abs(losses[0] - losses[1]) > 0.05 * losses[0]:
            raise ArithmeticError(f"{claim}: a loss of {losses[1]} where libtorch's layers have {losses[0]}")
        kept = []
        for each in sides:
            gc.collect()
            before = torch.cuda.memory_allocated()
            loss = each.loss()
            kept.append((torch.cuda.memory_allocated() - before) / 1e6)
            del loss
        standard, inplace = interleave([lambda each=each: milliseconds_on_the_device(each.step) for each in sides], repeats)
    except torch.OutOfMemoryError:
        report.add(Row(claim, "standard layers", not_measured="the device has too little memory for it"))
        return
    report.add(Row(claim, "standard layers", "ms", standard, inplace, step.time_limit))
    report.add(Row(claim + ", kept", "standard layers", "MB", *(Spread(bytes, bytes, bytes) for bytes in kept),
                   step.bytes_limit))


def measure_precisions(batch, size, repeats, report):
    """Steps of ResNet-50 in f32, bf16 and f16."""
    claim = f"ResNet-50 step, batch {batch}"
    images = torch.randn(batch, 3, size, size, device=DEVICE).contiguous(memory_format=torch.channels_last)
    targets = torch.arange(batch, device=DEVICE) % 1000
    pairs = [(kind, precision) for precision in (torch.float32, torch.bfloat16, torch.float16) for kind in RESNEXT.kinds]
    try:
        with autocast.exact_f32():
            sides = [autocast.Side(kind, images, targets, DEVICE, precision) for kind, precision in pairs]
            losses = [float(each.step()) for each in sides]
            if not max(losses) - min(losses) <= 0.05 * losses[0]:
                raise ArithmeticError(f"{claim}: losses of {losses} in {[name_of(precision) for _, precision in pairs]}")
            work = [lambda each=each: milliseconds_on_the_device(each.step) for each in sides]
            times = dict(zip(pairs, interleave(work, repeats)))
    except torch.OutOfMemoryError:
        report.add(Row(claim, "f32", not_measured="the device has too little memory for it"))
        return
    standard, inplace = RESNEXT.kinds
    for precision in (torch.bfloat16, torch.float16):
        of = f"{claim}, {name_of(precision)}"
        report.add(Row(of, "ours in f32", "ms", times[inplace, torch.float32], times[inplace, precision], 0.50))
        report.add(Row(of, "standard layers", "ms", times[standard, precision], times[inplace, precision], 0.95))


def measure(shape, layout, dtype, eager_limit, compile_limit, bandwidth, package, repeats, report):
    claim = f"{list(shape)} {layout} {name_of(dtype)}"
    values = Values(shape, layout, dtype)
    torch.compiler.reset()
    layers = {"ours": ours, "batch_norm + leaky_relu": fresh, "batch_norm + leaky_relu_": in_place,
              "torch.compile": torch.compile(fresh, fullgraph=True, dynamic=False)}
    for name, layer in layers.items():
        verify(name, values, layer, LARGEST_ERROR[dtype] if name == "ours" else 5e-2)
    times = dict(zip(layers, interleave([side(values, layer) for layer in layers.values()], repeats)))
    eager = min(("batch_norm + leaky_relu", "batch_norm + leaky_relu_"), key=lambda name: times[name].median)
    report.add(Row(claim, eager, "ms", times[eager], times["ours"], eager_limit))
    report.add(Row(claim, "torch.compile", "ms", times["torch.compile"], times["ours"], compile_limit))
    moved = passes(shape, layout, dtype) * values.x.numel() * dtype.itemsize
    ideal = dataclasses.replace(times["ours"], **dict.fromkeys(("median", "low", "high"), 1e3 * moved / bandwidth))
    largest_two = SHAPES.index(shape) < 2
    report.add(Row(claim, f"{passes(shape, layout, dtype)} passes of a copy", "ms", ideal, times["ours"],
                   1 / 0.85 if largest_two and eager_limit else None))
    measure_package(package, claim, values, repeats, report)


def package_of(options):
    """The layer of the package, or a text that says why it is missing."""
    if not options.inplace_abn:
        return "name a folder with the package or its checkout by --inplace-abn or PALIMPSEST_INPLACE_ABN"
    try:
        inplace_abn_package.build(options.inplace_abn, pathlib.Path(options.build) / "inplace_abn", cuda=True)
        return inplace_abn_package.layer(options.inplace_abn, True, MOMENTUM, EPS, "leaky_relu", SLOPE)
    except ImportError as error:
        return str(error)


def main():
    parser = Options(__doc__.split("\n\n")[0])
    parser.add_argument("--build", metavar="FOLDER", default="build/gpu", help="the folder of the operator library [build/gpu]")
    parser.add_argument("--inplace-abn", metavar="FOLDER", default=os.environ.get("PALIMPSEST_INPLACE_ABN"),
                        help="the inplace_abn package, compiled or a checkout [PALIMPSEST_INPLACE_ABN]")
    parser.add_argument("--batch", metavar="N", type=positive, default=128, help="images per training step [128]")
    options = parser.parse_args()
    library = pathlib.Path(options.build) / "libpalimpsest_ops.so"
    if not library.exists():
        parser.error(f"no '{library}': scripts/gpu_check builds it")
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device; this benchmark needs one")
    torch.ops.load_library(os.fspath(library))
    package = package_of(options)
    report = Report("gpu_time", options, processor=torch.cuda.get_device_name())
    bandwidth = copy_bandwidth(options.repeats)
    print(f"a copy on the device moves {bandwidth / 1e9:.0f} GB/s", flush=True)
    try:
        for layout, dtype, eager_limit, compile_limit in CASES:
            for shape in SHAPES:
                measure(shape, layout, dtype, eager_limit, compile_limit, bandwidth, package, options.repeats, report)
        for step in (RESNEXT, DENSENET):
            measure_step(step, options.batch, 224, options.repeats, report)
        measure_precisions(options.batch // 2 or 1, 224, options.repeats, report)
    except ArithmeticError as error:
        print(f"gpu_time: {error}", file=sys.stderr)
        return 1
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())

"""The layers on a GPU: one BN + leaky ReLU(0.01) layer, forward + backward, against libtorch's layers, torch.compile, the
inplace_abn package and a copy on the device; its kernels one by one; max pooling; inputs that break layers."""
import statistics

import torch
from torch.nn import functional

from gpu import device_time
from gpu.measuring import Wrong, figure_row, plain_row, timed_row
from support import exactly, interleave, spread_of

SLOPE, MOMENTUM, EPS = 0.01, 0.1, 1e-5
LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
LARGEST_ERROR = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
OPPONENTS_ERROR = 5e-2
NEAR_KINK = 1e-5  # of y, in f32: rounding decides on which side of leaky ReLU's kink it lies
TWO_SWEEPS, ONE_READING = 8, 5  # passes over the tensor, forward + backward
SHARED_BYTES = 100 * 1024  # per block; about the share that abn.cu gives a panel in a cluster of 8
PASSES_OF = {"statistics_kernel": 1, "apply_kernel": 2, "backward_reduce_kernel": 2, "backward_apply_kernel": 3,
             "resident_forward_kernel": 2, "resident_backward_kernel": 3}


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
        self.device = device_time.DEVICE

        def made(scale, shift):
            return (torch.randn(shape, device=self.device) * scale + shift).to(dtype).contiguous(memory_format=LAYOUTS[layout])

        self.x, self.dz = made(1.3, 0.7).requires_grad_(), made(1, 0)
        self.weight = (torch.rand(shape[1], device=self.device) + 0.5).requires_grad_()
        self.bias = (torch.randn(shape[1], device=self.device) * 0.5).requires_grad_()
        self.mean, self.var = torch.zeros(shape[1], device=self.device), torch.ones(shape[1], device=self.device)

    def run(self, layer, dtype=None, dz=None):
        leaves = [t.detach().to(dtype or t.dtype).requires_grad_() for t in (self.x, self.weight, self.bias)]
        mean, var = (t.to(dtype or t.dtype, copy=True) for t in (self.mean, self.var))
        z = layer(leaves[0] + 0, *leaves[1:], mean, var)
        return [z.detach().clone(), *torch.autograd.grad(z, leaves, (self.dz if dz is None else dz).to(z.dtype))]

    def step(self, layer):
        """(prepare, work): `prepare` makes the input again, because ours overwrites it."""
        made = []

        def work():
            z = layer(made.pop(), self.weight, self.bias, self.mean, self.var)
            torch.autograd.grad(z, (self.x, self.weight, self.bias), self.dz)

        return lambda: made.append(self.x + 0), work


WHAT = ("output", "gradient of x", "of weight", "of bias")


def verify(name, values, layer, limit):
    z, *_ = values.run(fresh, torch.float64)
    dz = values.dz.where((z > NEAR_KINK) | (z < -SLOPE * NEAR_KINK), 0)  # |y| > NEAR_KINK
    for what, got, want in zip(WHAT, values.run(layer, dz=dz), values.run(fresh, torch.float64, dz)):
        error = ((got.double() - want).norm() / want.norm()).item()
        if not error <= limit:
            raise Wrong(f"{name}: {what} differs from libtorch's in f64 by {error:.1e} relative, at most {limit:.0e} is allowed")


def passes(shape, layout, dtype):
    """The passes of the goal: a tensor is read once where a panel (a channel, or 64 bytes of channels) of two tensors has room
    in a cluster of blocks. The kernels may make more, where two launches are faster on the device: the rows of kernels
    tell."""
    n, _, h, w = shape
    width = 64 if layout == "channels-last" else dtype.itemsize
    return ONE_READING if 2 * n * h * w * width <= 8 * SHARED_BYTES else TWO_SWEEPS


def times_of(context, values, layers):
    """[Spread] of forward + backward of each layer, on the device and in turn."""
    return interleave([context.clock.timed(work, prepare) for prepare, work in map(values.step, layers)], context.repeats)


def layer(context, work, shape, layout, dtype):
    dtype = DTYPES[dtype]
    values = Values(shape, layout, dtype)
    eager = {"batch_norm + leaky_relu": fresh, "batch_norm + leaky_relu_": in_place}
    verify("ours", values, ours, LARGEST_ERROR[dtype])
    for name, opponent in eager.items():
        verify(name, values, opponent, OPPONENTS_ERROR)
    measured, *theirs = times_of(context, values, [ours, *eager.values()])
    times = dict(zip(eager, theirs))
    best = min(times, key=lambda name: times[name].median)
    count = passes(shape, layout, dtype)
    ideal = exactly(1e3 * count * values.x.numel() * dtype.itemsize / context.bandwidth())
    return [timed_row(f"{work.name}: eager", best, times[best], measured, work.limits.get("eager")),
            timed_row(f"{work.name}: a copy of {count} passes", f"{count} passes of a copy", ideal, measured,
                      work.limits.get("copy"))]


def copy(context, work):
    """Bytes per second, read and written, of a copy of one GiB within the device's memory."""
    return [figure_row(work.name, context.bandwidth() / 1e9, "GB/s")]


def kernels(context, work, shape, layout, dtype):
    """Each kernel of one step by itself: its share of the bandwidth of a copy."""
    dtype = DTYPES[dtype]
    values = Values(shape, layout, dtype)
    prepare, step = values.step(ours)

    def once():
        prepare()
        step()

    claim = work.name.removeprefix("kernels of ")
    times = device_time.kernel_milliseconds(once, context.repeats)
    if not times:
        return [plain_row(work.name, "not run", "the profiler shows no kernels of ours: the driver refuses it here")]
    rows = []
    for name, milliseconds in times.items():
        row = f"{claim}: {name}"
        if name not in PASSES_OF:
            rows.append(figure_row(row, milliseconds, "ms"))
            continue
        moved = PASSES_OF[name] * values.x.numel() * dtype.itemsize
        rows.append(timed_row(row, f"{PASSES_OF[name]} passes of a copy", exactly(1e3 * moved / context.bandwidth()),
                              exactly(milliseconds), None) | {"gigabytes_per_second": moved / milliseconds / 1e6})
    return rows


def program_of_torch():
    torch.compiler.reset()
    return torch.compile(fresh, fullgraph=True, dynamic=False)


def compile_ahead(works):
    """Runs the programs of torch.compile once, so that its cache on the disk has them. Returns an exit status."""
    for work in works:
        Values(work.arguments["shape"], work.arguments["layout"], DTYPES[work.arguments["dtype"]]).run(program_of_torch())
    return 0


def compiled(context, work, shape, layout, dtype):
    values, program = Values(shape, layout, DTYPES[dtype]), program_of_torch()
    verify("torch.compile", values, program, OPPONENTS_ERROR)
    measured, theirs = times_of(context, values, [ours, program])
    return [timed_row(work.name, "torch.compile", theirs, measured, work.limits.get("compiled"))]


def package(context, work, shape, layout, dtype):
    theirs = context.package()
    if isinstance(theirs, str):
        return [plain_row(work.name, "not run", theirs)]
    values = Values(shape, layout, DTYPES[dtype])
    try:
        verify("inplace_abn", values, theirs, OPPONENTS_ERROR)
    except (Wrong, RuntimeError) as error:  # it lacks some dtypes
        return [plain_row(work.name, "not run", str(error).splitlines()[0])]
    measured, opponent = times_of(context, values, [ours, theirs])
    return [timed_row(work.name, "inplace_abn", opponent, measured, work.limits["inplace_abn"])]


def host(context, work, shape=(8, 64, 8, 8), runs=200):
    """The host's time to queue a layer's forward and backward, of a tensor so small that the device does not hold it up."""
    values = Values(shape, "channels-last", torch.float32)

    def side(one):
        prepare, step = values.step(one)

        def run():
            times = []
            for _ in range(runs):
                prepare()
                times.append(device_time.queue_milliseconds(step))
            return statistics.median(times)

        return run

    theirs, measured = interleave([side(in_place), side(ours)], max(3, context.repeats // 5), warm_up=1)
    return [timed_row(work.name, "batch_norm + leaky_relu_", theirs, measured, work.limits["host"])]


def not_a_number(context, work, shape=(16, 24, 28, 28)):
    """A NaN stays within its channel, and is there in all that libtorch's layers have it in."""
    for layout in LAYOUTS:
        for dtype in (torch.float32, torch.bfloat16):
            values = Values(shape, layout, dtype)
            with torch.no_grad():
                values.x[1, 5, 3, 3] = float("nan")
            for what, got, want in zip(WHAT, values.run(ours), values.run(in_place)):
                if not torch.equal(got.isnan(), want.isnan()):
                    raise Wrong(f"{layout} {dtype}: {what} has {int(got.isnan().sum())} NaN, libtorch's layers have "
                                f"{int(want.isnan().sum())}")
                error = ((got - want).double().nan_to_num().norm() / want.double().nan_to_num().norm()).item()
                if not error <= OPPONENTS_ERROR:
                    raise Wrong(f"{layout} {dtype}: {what} beside a NaN differs by {error:.1e} relative")
    return [plain_row(work.name, "passed")]


def pool(context, work, shape, layout, dtype):
    x = torch.randn(shape, device=device_time.DEVICE).to(DTYPES[dtype]).contiguous(memory_format=LAYOUTS[layout])
    x.requires_grad_()
    sides = {"libtorch's": lambda: functional.max_pool2d(x, 3, 2, 1),
             "ours": lambda: torch.ops.palimpsest.max_pool2d(x, [3, 3], [2, 2], [1, 1])}
    outputs = {name: run() for name, run in sides.items()}
    if not torch.equal(*outputs.values()):
        raise Wrong(f"{work.name} is not libtorch's")
    dz = torch.randn_like(outputs["ours"])
    forward = interleave([context.clock.timed(run) for run in sides.values()], context.repeats)
    backward = interleave([context.clock.timed(lambda z=z: torch.autograd.grad(z, x, dz, retain_graph=True))
                           for z in outputs.values()], context.repeats)
    return [timed_row(f"{work.name}, {which}", "libtorch's", *times, None)
            for which, times in (("forward", forward), ("backward", backward))]


def large(context, work, shape, layout, dtype):
    """More elements than 32 bits count: the first image many times, so that every image has the results of the first, and
    the statistics are those of one image."""
    dtype, n = DTYPES[dtype], shape[0]
    one = Values((1, *shape[1:]), layout, dtype)
    z, dx, _, _ = one.run(ours)
    big = Values.__new__(Values)
    big.x, big.dz = (t.detach().expand(shape).contiguous(memory_format=LAYOUTS[layout]) for t in (one.x, one.dz))
    big.x.requires_grad_()
    big.weight, big.bias, big.mean, big.var = one.weight, one.bias, one.mean.clone(), one.var.clone()
    got_z = ours(big.x + 0, big.weight, big.bias, big.mean, big.var)
    got_dx, = torch.autograd.grad(got_z, (big.x,), big.dz)
    for what, got, want in (("output", got_z.detach(), z), ("gradient of x", got_dx, dx)):
        for image in (1, n // 2, n - 1):
            if not torch.equal(got[image], got[0]):
                raise Wrong(f"{work.name}: the {what} of image {image} is not that of image 0, which has the same values")
        error = ((got[:1].double() - want.double()).norm() / want.double().norm()).item()
        if not error <= LARGEST_ERROR[dtype]:
            raise Wrong(f"{work.name}: the {what} differs from that of one image by {error:.1e} relative")
    del got_z, got_dx, got
    prepare, step = big.step(ours)
    measured, = interleave([context.clock.timed(step, prepare)], max(3, context.repeats // 5), warm_up=1)
    ideal = exactly(1e3 * TWO_SWEEPS * big.x.numel() * dtype.itemsize / context.bandwidth())
    return [timed_row(f"{work.name}: a copy of {TWO_SWEEPS} passes", f"{TWO_SWEEPS} passes of a copy", ideal, measured, None)]


def side_channel(context, work, shape=(64, 256, 56, 56)):
    """What a channel costs whose weight is 0, so that it is saved by itself: the device's time beyond that of the layer."""
    values = Values(shape, "channels-last", torch.bfloat16)
    other = Values(shape, "channels-last", torch.bfloat16)
    with torch.no_grad():
        other.weight[7] = 0
    sides = [context.clock.timed(step, prepare) for prepare, step in (each.step(ours) for each in (values, other))]
    pairs = []
    for number in range(-3, context.repeats):
        pair = [side() for side in sides]
        pairs += [pair] if number >= 0 else []
    return [figure_row(work.name, spread_of([one - none for none, one in pairs]), "ms")]


KINDS = {each.__name__: each for each in (layer, copy, kernels, compiled, package, host, not_a_number, pool, large,
                                          side_channel)}

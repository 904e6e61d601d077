#!/usr/bin/env python3
"""Times one BN + leaky ReLU(0.01) layer, forward + backward in f32, against opponents that only Python has.

Claim:    our layer takes less time than every opponent.
Opponent: torch.compile's program for libtorch's two layers, in the better of two modes; and the CPU path of the
          inplace_abn package, the source of the idea. libtorch's eager layers, with the activation in place or not, are a
          control, which claims nothing: layer_time.cpp holds the claim against them.
Limit:    0.60 (NCHW) and 0.65 (channels-last) of torch.compile; 0.10 of the inplace_abn package.

All sides run in one process, in training mode with running statistics, on the same threads, with a malloc that retains
freed blocks. The layer's input is made again before each run and outside the timer, because ours overwrites it. The layer
is the only owner of the incoming gradient, as it is before a convolution, and may overwrite it (owned_gradient.h).
Gradients of x, weight and bias are computed. Before the timing, every side is compared with libtorch in f64 on the same
values.

--inplace-abn or PALIMPSEST_INPLACE_ABN names the folder of the compiled inplace_abn package. Without it the rows of the
package say "not measured", and a JSON file that has figures of the package is not replaced.

Exit status: 0 done; 1 a result is wrong, the JSON file cannot be written or replaced, or, with --check, a measured claim
fails; 2 a wrong option or folder.
"""
import argparse
import dataclasses
import os
import sys

import torch
from torch.nn import functional

import inplace_abn_package
from support import Options, Report, Row, begin_with_retaining_malloc, interleave, milliseconds_of

SLOPE, MOMENTUM, EPS = 0.01, 0.1, 1e-5
SHAPES = [(32, 256, 56, 56), (32, 512, 28, 28), (32, 1024, 14, 14), (32, 2048, 7, 7)]
LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
LARGEST_ERROR = 1e-5  # of our results, relative, against f64


@dataclasses.dataclass
class Opponent:
    """An opponent in one or more forms, of which the fastest counts. `largest_error` of its results is relative, against
    f64."""
    layers: dict
    limits: dict  # by layout; None: a control, which claims nothing
    largest_error: float


def activation_fresh(x, weight, bias, mean, var):
    return functional.leaky_relu(functional.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS), SLOPE)


def activation_in_place(x, weight, bias, mean, var):
    return functional.leaky_relu_(functional.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS), SLOPE)


def opponents(package):
    """{name: opponent}. `package`: the layer of inplace_abn, or None."""
    # A cached program may have been written for another vector width (ATEN_CPU_CAPABILITY); its gradient is then wrong.
    torch.compiler.config.force_disable_caches = True
    # dynamic=False: programs for exactly these sizes, which are the fastest.
    programs = {f"torch.compile, {mode}": torch.compile(activation_fresh, mode=mode, fullgraph=True, dynamic=False)
                for mode in ("default", "max-autotune-no-cudagraphs")}
    eager = {"batch_norm + leaky_relu": activation_fresh, "batch_norm + leaky_relu_": activation_in_place}
    # libtorch's channels-last statistics have an error of up to 3e-4 in f32. The package sums values one by one (2e-3 at 14x14
    # pixels) and uses |weight| + eps as weight.
    return {
        "compile": Opponent(programs, {"NCHW": 0.60, "channels-last": 0.65}, 2e-3),
        "eager": Opponent(eager, dict.fromkeys(LAYOUTS), 2e-3),
        "inplace_abn": Opponent({"inplace_abn": package} if package else {}, dict.fromkeys(LAYOUTS, 0.10), 1e-2),
    }


class Values:
    """Input, parameters and incoming gradient of one case; the same numbers in any dtype."""

    def __init__(self, shape, memory_format):
        torch.manual_seed(0)
        channels = shape[1]
        self.x = (torch.randn(shape) * 1.3 + 0.7).contiguous(memory_format=memory_format).requires_grad_()
        self.weight = (torch.rand(channels) + 0.5).requires_grad_()
        self.bias = (torch.randn(channels) * 0.5).requires_grad_()
        self.mean, self.var = torch.zeros(channels), torch.ones(channels)
        self.dz = torch.randn(shape).contiguous(memory_format=memory_format)

    def in_double(self):
        other = object.__new__(Values)
        for name, tensor in vars(self).items():
            setattr(other, name, tensor.detach().double().requires_grad_(tensor.requires_grad))
        return other

    def run(self, layer):
        """Gradients of x, weight, bias; output; running mean and variance."""
        mean, var = self.mean.clone(), self.var.clone()
        z = layer(self.x + 0, self.weight, self.bias, mean, var)
        gradients = torch.autograd.grad(z, (self.x, self.weight, self.bias), self.dz)
        return [*gradients, z.detach(), mean, var]


def verify(name, values, layer, largest_error):
    """Raises ArithmeticError if the results of `layer` differ from libtorch's in f64."""
    want = values.in_double().run(activation_fresh)
    got = values.run(layer)
    for what, g, w in zip(("gradient of x", "gradient of weight", "gradient of bias", "output", "running mean",
                           "running variance"), got, want):
        error = ((g.double() - w).norm() / w.norm()).item()
        if not error <= largest_error:
            raise ArithmeticError(f"{name}: {what} differs from libtorch's in f64 by {error:.1e} relative, at most "
                                  f"{largest_error:.0e} is allowed")


def side(values, layer):
    wanted = (values.x, values.weight, values.bias)
    owned_gradient = torch.ops.palimpsest_benchmark.owned_gradient.default

    def run():
        x, dz = [values.x + 0], [values.dz.clone()]

        def step():
            # Popped: as in a network, the layer is the only owner of its input and of its incoming gradient.
            z = layer(x.pop(), values.weight, values.bias, values.mean, values.var)
            torch.autograd.grad(owned_gradient(z, dz.pop()), wanted)

        return milliseconds_of(step)

    return run


def unmeasured(claim, name, opponent, layout):
    """The row of an opponent that is not here."""
    return Row(claim, name, limit=opponent.limits[layout],
               not_measured="name a folder with the compiled package by --inplace-abn or PALIMPSEST_INPLACE_ABN")


def claim_of(shape, layout):
    return f"{list(shape)} {layout}"


def measure(shape, layout, ours, against, repeats, report):
    """Adds the rows of one shape and layout; `against`: {name: opponent}."""
    claim = claim_of(shape, layout)
    values = Values(shape, LAYOUTS[layout])
    torch.compiler.reset()  # each case compiles its own programs
    verify("ours", values, ours, LARGEST_ERROR)
    layers = {"ours": ours}
    for opponent in against.values():
        for name, layer in opponent.layers.items():
            verify(name, values, layer, opponent.largest_error)
            layers[name] = layer
    times = dict(zip(layers, interleave([side(values, layer) for layer in layers.values()], repeats)))
    for name, opponent in against.items():
        if opponent.layers:
            best = min(opponent.layers, key=lambda form: times[form].median)
            report.add(Row(claim, best, opponent=times[best], measured=times["ours"], limit=opponent.limits[layout]))
        else:
            report.add(unmeasured(claim, name, opponent, layout))


def shape(text):
    sizes = text.split(",")
    if len(sizes) != 4 or not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"four sizes N,C,H,W are needed, got '{text}'")
    return tuple(map(int, sizes))


def read_options():
    parser = Options("Times one BN + leaky ReLU layer, forward + backward, against opponents that only Python has.")
    parser.add_argument("--build", metavar="FOLDER", default="build/release",
                        help="the build folder with the operators [build/release]")
    parser.add_argument("--inplace-abn", metavar="FOLDER", default=os.environ.get("PALIMPSEST_INPLACE_ABN"),
                        help="import the inplace_abn package, compiled, from this folder [PALIMPSEST_INPLACE_ABN]")
    parser.add_argument("--opponents", metavar="NAME,...", default="compile,eager,inplace_abn",
                        help="some of compile, eager, inplace_abn [all]")
    parser.add_argument("--shape", metavar="N,C,H,W", type=shape, action="append", dest="shapes",
                        help="a shape to measure instead of the four; may be repeated")
    options = parser.parse_args()
    for name in ("libpalimpsest_ops.so", "libpalimpsest_benchmark.so"):
        torch.ops.load_library(str(parser.library(options.build, name)))
    package = None
    if options.inplace_abn:
        try:
            package = inplace_abn_package.layer(options.inplace_abn, True, MOMENTUM, EPS, "leaky_relu", SLOPE)
        except ImportError as error:
            parser.error(f"--inplace-abn: cannot import the compiled package from '{options.inplace_abn}': {error}")
    known = opponents(package)
    names = options.opponents.split(",")
    for name in names:
        if name not in known:
            parser.error(f"--opponents knows {', '.join(known)}; got '{name}'")
    options.against = {name: known[name] for name in names}
    return options


def main():
    begin_with_retaining_malloc()
    options = read_options()
    ours = torch.ops.palimpsest.abn_.default
    report = Report("python_layer_time", options)
    shapes = options.shapes or SHAPES
    for name, opponent in options.against.items():  # before the first measurement
        if not opponent.layers:
            for layout in LAYOUTS:
                for sizes in shapes:
                    report.keep_figures_of(unmeasured(claim_of(sizes, layout), name, opponent, layout))
    try:
        for layout in LAYOUTS:
            for sizes in shapes:
                measure(sizes, layout, ours, options.against, options.repeats, report)
    except ArithmeticError as error:
        print(f"python_layer_time: {error}", file=sys.stderr)
        return 1
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())

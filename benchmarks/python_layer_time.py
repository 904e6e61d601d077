#!/usr/bin/env python3
"""Claim: one BN + leaky ReLU(0.01) layer, forward + backward in f32, takes at most 0.60 (NCHW) or 0.65 (channels-last)
of the time of torch.compile's program for libtorch's two layers, in its better mode, and at most 0.10 of the CPU path
of the inplace_abn package, from which the idea comes. libtorch's eager layers, the better of activation in place and
not, stand beside as a control: layer_time.cpp holds the claim against them.

All sides: one process, training mode with running statistics, the same threads, malloc that retains freed blocks. The
layer's input is made anew before each run and outside the timer, because ours writes over it. The incoming gradient is
handed over, as a convolution would: whoever wants to write over it may. Gradients of x, weight and bias are computed.
Before anything is timed, every side is compared with libtorch in f64 on the same values.

The package is measured where its compiled form can be imported from the folder that --inplace-abn or
PALIMPSEST_INPLACE_ABN names; otherwise its rows say "not measured".

Exit status: 0 done; 1 a result is wrong, the JSON file cannot be written, or, with --check, a measured claim fails;
2 a wrong option or folder.
"""
import argparse
import dataclasses
import os
import pathlib
import sys

import torch
from torch.nn import functional

import inplace_abn_package
from support import Options, Report, Row, begin_with_retaining_malloc, interleave, milliseconds_of

SLOPE, MOMENTUM, EPS = 0.01, 0.1, 1e-5
SHAPES = [(32, 256, 56, 56), (32, 512, 28, 28), (32, 1024, 14, 14), (32, 2048, 7, 7)]
LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
LARGEST_ERROR = 1e-5  # of ours, relative, against f64


@dataclasses.dataclass
class Opponent:
    """One to compare with, in one or more forms, of which the fastest counts. Each must compute the same as ours:
    `largest_error` is relative, against f64."""
    layers: dict
    limits: dict  # by layout; None: a control, nothing is claimed
    largest_error: float


def activation_fresh(x, weight, bias, mean, var):
    return functional.leaky_relu(functional.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS), SLOPE)


def activation_in_place(x, weight, bias, mean, var):
    return functional.leaky_relu_(functional.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS), SLOPE)


def opponents(package):
    """By name. `package`: inplace_abn's layer, or None."""
    # dynamic=False: programs for these very sizes, the opponent's best.
    programs = {f"torch.compile, {mode}": torch.compile(activation_fresh, mode=mode, fullgraph=True, dynamic=False)
                for mode in ("default", "max-autotune-no-cudagraphs")}
    eager = {"batch_norm + leaky_relu": activation_fresh, "batch_norm + leaky_relu_": activation_in_place}
    # libtorch's channels-last statistics are off by up to 3e-4 in f32; the package adds up one by one, 2e-3 at 14x14
    # pixels, and takes |weight| + eps for the weight.
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
    """Raises ArithmeticError where `layer` computes something else than libtorch does in f64."""
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
    hand_over = torch.ops.palimpsest_benchmark.hand_over.default

    def run():
        x, dz = [values.x + 0], [values.dz.clone()]

        def step():
            # Popped: as in a network, nobody else holds the layer's input and its incoming gradient.
            z = layer(x.pop(), values.weight, values.bias, values.mean, values.var)
            torch.autograd.grad(hand_over(z, dz.pop()), wanted)

        return milliseconds_of(step)

    return run


def measure(shape, layout, ours, against, repeats, report):
    """Adds the rows of one shape and layout; `against`: the opponents by name."""
    claim = f"{list(shape)} {layout}"
    values = Values(shape, LAYOUTS[layout])
    torch.compiler.reset()  # each case gets programs of its own
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
            report.add(Row(claim, name, limit=opponent.limits[layout], not_measured=(
                "name a folder with the compiled package by --inplace-abn or PALIMPSEST_INPLACE_ABN")))


def shape(text):
    sizes = text.split(",")
    if len(sizes) != 4 or not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"four sizes N,C,H,W are needed, got '{text}'")
    return tuple(map(int, sizes))


def read_options():
    parser = Options("Times one BN + leaky ReLU layer, forward + backward, against opponents that Python alone has.")
    parser.add_argument("--build", metavar="FOLDER", default="build/release",
                        help="the build with the operators [build/release]")
    parser.add_argument("--inplace-abn", metavar="FOLDER", default=os.environ.get("PALIMPSEST_INPLACE_ABN"),
                        help="import the inplace_abn package, compiled, from this folder [PALIMPSEST_INPLACE_ABN]")
    parser.add_argument("--opponents", metavar="NAME,...", default="compile,eager,inplace_abn",
                        help="some of compile, eager, inplace_abn [all]")
    parser.add_argument("--shape", metavar="N,C,H,W", type=shape, action="append", dest="shapes",
                        help="another shape than the four; may be repeated")
    options = parser.parse_args()
    for name in ("libpalimpsest_ops.so", "libpalimpsest_benchmark.so"):
        library = pathlib.Path(options.build) / name
        if not library.is_file():
            parser.error(f"--build needs a folder with {name}, got '{options.build}'")
        torch.ops.load_library(str(library))
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
    try:
        for layout in LAYOUTS:
            for sizes in options.shapes or SHAPES:
                measure(sizes, layout, ours, options.against, options.repeats, report)
    except ArithmeticError as error:
        print(f"python_layer_time: {error}", file=sys.stderr)
        return 1
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Runs published defects of batch normalization layers, ours and torch's, against f64.

Claim:    no case of these is wrong with ours, and dx has the layout of x.
Opponent: torch.nn.BatchNorm1d, 2d and 3d as they are today. It claims nothing: its rows say what a user of today's torch
          gets, and whether a reported defect is mended.
Limit:    LIMIT units of every result. A unit is what rounding the terms of a result once costs: the epsilon of the dtype in
          which they are stored, times the size of the terms. z, dx and dweight come from values in x's dtype; dbias, mean
          and var are sums of given values, in the parameters' dtype.

Cases with the number of an issue have its shape, dtype, layout and values, and say which results it is about: whether these
are wrong today as they were reported is counted apart. Cases without a number were found here. Ours runs
without an activation, and saves its output where it can.

--device cuda runs the cases on a GPU: most of the reports are of GPUs.

Exit status: 0 done; 1 the JSON file cannot be written or, with --check, a claim fails; 2 a wrong option, folder or device.
"""
import dataclasses
import os
import sys

import torch

from support import ROOT, Options, commit, finish, processor_name

sys.path.insert(0, str(ROOT / "python"))

LIMIT = 4.0
EPS = 1e-5
RESULTS = ("z", "dx", "dweight", "dbias", "mean", "var")
NCHW, LAST, LAST_3D = torch.contiguous_format, torch.channels_last, torch.channels_last_3d
LAYOUTS = {NCHW: "NCHW", LAST: "channels-last", LAST_3D: "channels-last 3d"}
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@dataclasses.dataclass(frozen=True)
class Case:
    issue: str  # "" if it was found here
    reported: str
    shape: tuple
    about: tuple = ()  # what the issue is about: names of RESULTS, "layout" of dx, or "NaN" in dx, dweight or dbias
    dtype: torch.dtype = torch.float32
    layout: torch.memory_format = NCHW
    values: str = "normal"  # or "uniform": in [0, 1)
    mean: float = 0.0  # is added to normal values
    dy_layout: torch.memory_format | None = None  # None: that of x
    parameters: torch.dtype = torch.float32
    affine: bool = True
    training: bool = True

    def name(self):
        mean = f", mean {self.mean:g}" if self.mean else ""
        mode = "" if self.training else ", evaluation"
        return f"{self.shape} {DTYPES[self.dtype]} {LAYOUTS[self.layout]}, {self.values}{mean}{mode}".replace("(", "[").replace(")", "]")


def both_layouts(**case):
    return [Case(**case, layout=layout) for layout in (NCHW, LAST)]


CASES = [
    *both_layouts(issue="pytorch#156513", reported="gradients in bf16 with parameters in f32", shape=(16, 64, 56, 56),
                  about=("dx", "dweight", "dbias"), dtype=torch.bfloat16),
    *both_layouts(issue="pytorch#147303", reported="NaN in backward, f16, channels-last", shape=(16, 3, 224, 224),
                  about=("NaN",), dtype=torch.float16, values="uniform", dy_layout=NCHW),
    Case("pytorch#57796", "an inexact weight gradient of many values", (256, 1, 625, 625), ("dweight",), values="uniform"),
    *both_layouts(issue="pytorch#57796", reported="the same with two channels", shape=(64, 2, 625, 625), about=("dweight",),
                  values="uniform"),
    Case("pytorch#107199", "dx in another layout than x", (2, 3, 4, 4, 4), ("layout",), layout=LAST_3D),
    Case("pytorch#107199", "the same after a contiguous gradient", (2, 3, 4, 4, 4), ("layout",), layout=LAST_3D, dy_layout=NCHW),
    Case("pytorch#140112", "two values in bf16", (1, 1, 2), ("z",), torch.bfloat16, parameters=torch.bfloat16, affine=False),
    Case("pytorch#62594", "evaluation in f16, channels-last", (2, 64, 50, 50), ("z",), torch.float16, LAST, training=False),
    Case("NVIDIA/apex#1768", "mean and var of 65 channels, channels-last", (1, 65, 10, 10), ("mean", "var"), layout=LAST,
         values="uniform"),
    Case("NVIDIA/apex#1768", "the same of more pixels", (1, 65, 100, 100), ("mean", "var"), layout=LAST, values="uniform"),
    *both_layouts(issue="ROCm/MIOpen#1109", reported="backward of one pixel per image", shape=(1024, 64, 1, 1),
                  about=("dx", "dweight", "dbias")),
    *both_layouts(issue="", reported="a mean of 100 deviations", shape=(32, 64, 56, 56), mean=100.0),
    *both_layouts(issue="", reported="two images of Cityscapes' size", shape=(2, 16, 1024, 2048), mean=0.7),
]


def values_of(case, device):
    """(x, dy) in the case's dtype and layouts."""
    make = torch.rand if case.values == "uniform" else torch.randn
    torch.manual_seed(0)
    x, dy = (make(case.shape, device=device) for _ in range(2))
    x = x.add_(case.mean).to(case.dtype).contiguous(memory_format=case.layout)
    return x, dy.to(case.dtype).contiguous(memory_format=case.dy_layout or case.layout)


def run(layer, x, dy):
    """{result: tensor} of one pass of a layer whose momentum is 1, and dx's layout under "strides"."""
    leaf = x.detach().clone().requires_grad_()
    z = layer(leaf)
    # Not leaf.grad: backward() gives a gradient of another layout the leaf's.
    dx, *of_parameters = torch.autograd.grad(z, (leaf, *layer.parameters()), dy)
    found = {"z": z.detach(), "dx": dx, "strides": dx.stride()}
    if layer.affine:
        found.update(zip(("dweight", "dbias"), of_parameters))
    if layer.training:
        # The layer's running variance is that of a sample.
        count = x.numel() // x.size(1)
        found.update(mean=layer.running_mean, var=layer.running_var.double() * ((count - 1) / count))
    return found


def truth(x, dy, training):
    """{result: (value, size of its terms)} of one channel by the definition, in f64. Weight 1, bias 0; in evaluation mean
    0 and var 1."""
    x, dy = x.double(), dy.double()
    mean, var = (x.mean(), x.var(unbiased=False)) if training else (x.new_zeros(()), x.new_ones(()))
    inv_std = (var + EPS).rsqrt()
    z = (x - mean) * inv_std
    sum_dy, sum_dy_z = dy.sum(), (dy * z).sum()
    dx = inv_std * dy
    size_of_dx = dx.norm()
    if training:
        dx -= inv_std * (sum_dy + z * sum_dy_z) / x.numel()
    return {"z": (z, z.norm()), "dx": (dx, size_of_dx), "dweight": (sum_dy_z, (dy * z).abs().sum()),
            "dbias": (sum_dy, dy.abs().sum()), "mean": (mean, x.abs().mean()), "var": (var, var)}


def units(case, found, x, dy):
    """{result: error in units}: the error's norm over that of the terms, in multiples of epsilon. NaN stays NaN."""
    errors, sizes = dict.fromkeys(found, 0.0), dict.fromkeys(found, 0.0)
    for channel in range(x.size(1)):  # f64 takes twice the memory: one channel at a time
        for name, (want, size) in truth(x[:, channel], dy[:, channel], case.training).items():
            if name in found:
                got = found[name][:, channel] if found[name].dim() > 1 else found[name][channel]
                errors[name] += (got.double() - want).norm().item() ** 2
                sizes[name] += size.item() ** 2
    epsilon = {name: torch.finfo(case.dtype if name in ("z", "dx", "dweight") else case.parameters).eps for name in found}
    return {name: (errors[name] / sizes[name]) ** 0.5 / epsilon[name] for name in RESULTS if name in found}


def layers(case, device):
    """{side: layer}"""
    from palimpsest.nn import BatchNormAct

    stock = {3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}[len(case.shape)]
    options = {"eps": EPS, "momentum": 1.0, "affine": case.affine, "dtype": case.parameters, "device": device}
    return {"torch": stock(case.shape[1], **options), "ours": BatchNormAct(case.shape[1], **options, activation="identity")}


def is_as_reported(case, errors, same_layout):
    """Whether a side does today what the issue reports; None for a case that was found here."""
    if not case.about:
        return None
    if case.about == ("layout",):
        return not same_layout
    if case.about == ("NaN",):
        return any(errors[name] != errors[name] for name in ("dx", "dweight", "dbias"))
    return not all(errors[name] <= LIMIT for name in case.about)


def measure(case, device):
    """One row: what both sides gave."""
    x, dy = values_of(case, device)
    row = {"issue": case.issue, "reported": case.reported, "case": case.name(), "limit": LIMIT, "sides": {}}
    for side, layer in layers(case, device).items():
        found = run(layer.train(case.training), x, dy)
        same_layout = found.pop("strides") == x.stride()
        errors = units(case, found, x, dy)
        right = same_layout and all(error <= LIMIT for error in errors.values())
        # JSON has no NaN.
        row["sides"][side] = {"units": {name: error if error == error else None for name, error in errors.items()},
                              "layout_of_x": same_layout, "right": right,
                              "as_reported": is_as_reported(case, errors, same_layout)}
    return row


def text_of(row):
    lines = [f"{row['issue'] or 'found here'}: {row['reported']}: {row['case']}"]
    for side, found in row["sides"].items():
        errors = "  ".join(f"{name} {'NaN' if error is None else format(error, '.3g')}" for name, error in found["units"].items())
        layout = "" if found["layout_of_x"] else "  dx in another layout"
        lines.append(f"  {side:<6} {'right' if found['right'] else 'WRONG'}  {errors}{layout}")
    return "\n".join(lines)


def read_options():
    parser = Options("Runs published defects of batch normalization layers, ours and torch's, against f64.")
    parser.add_argument("--build", metavar="FOLDER", default="build/release", help="the build folder with the operators [build/release]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="[cpu]")
    options = parser.parse_args()
    library = parser.library(options.build)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU, and torch sees none")
    os.environ["PALIMPSEST_LIBRARY"] = str(library)
    return options


def main():
    options = read_options()
    machine = torch.cuda.get_device_name() if options.device == "cuda" else processor_name()
    print(f"correctness: {machine}, libtorch {torch.__version__.split('+')[0]}; errors in units, right up to {LIMIT:g}")
    rows = []
    for case in CASES:
        rows.append(measure(case, options.device))
        print(text_of(rows[-1]), flush=True)
    passed = all(row["sides"]["ours"]["right"] for row in rows)
    print(f"correctness: {'every claim holds' if passed else 'a claim FAILED'}")
    table = {"benchmark": "correctness", "device": options.device, "processor": machine, "threads": torch.get_num_threads(),
             "libtorch": torch.__version__.split("+")[0], "commit": commit(), "rows": rows, "pass": passed}
    return finish(table, options)


if __name__ == "__main__":
    sys.exit(main())

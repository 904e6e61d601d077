#!/usr/bin/env python3
"""Compares a network of Python with itself after palimpsest.convert: the time of a step, forward + backward in f32, and
the bytes kept for backward.

Claims:    a converted network takes no more time than eager PyTorch, in the layout in which eager is faster (the other
           layout is a control), but for the transformer, to which TIME gives more; it keeps fewer bytes than eager PyTorch
           and than torch.compile's program; one layer on a small map costs little time in Python.
Opponents: the network before conversion; for the bytes also torch.compile with the partition of its default backend.
Limits:    TIME, EAGER_BYTES, COMPILED_BYTES and LAYER_TIME below.

Both sides run in one process on the same threads, with a malloc that retains freed blocks. Kept bytes count every tensor
that is alive between forward and backward but the parameters, as the meter sees it (palimpsest.memory.measure).
A network whose package is not installed is "not measured"; scripts/install_networks installs all. Such a run does not
replace a JSON file that has figures of this network.

Exit status: 0 done; 1 the JSON file cannot be written or replaced, or, with --check, a measured claim fails; 2 a wrong
option.
"""
import copy
import os
import sys

import torch
from torch import nn

from support import ROOT, Options, Report, Row, begin_with_retaining_malloc, interleave, megabytes, milliseconds_of, positive

LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
# 1.00 for the others. The normalizations and activations of a transformer run again in backward, and our kernels have no part.
TIME = {"efficientnet_b0": 0.90, "densenet121": 0.90, "resnet50": 0.95, "timm_vit_tiny": 1.10}
EAGER_BYTES = {"resnet50": 0.56, "efficientnet_b0": 0.36, "mobilenet_v3_large": 0.56, "densenet121": 0.35, "yolo_like": 0.50,
               "deeplabv3_resnet50": 0.58, "nnunet_instance_norm": 0.56, "resnet50_group_norm": 0.88, "convnext_tiny": 0.62,
               "timm_vit_tiny": 0.66}
COMPILED_BYTES = {"resnet50": 0.65, "efficientnet_b0": 0.65}
LAYER_TIME = 1.10
LAYER_SHAPE = (8, 64, 7, 7)


def tensors_of(outputs):
    """The tensors of a network's outputs."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return [t for part in (outputs.values() if isinstance(outputs, dict) else outputs) for t in tensors_of(part)]


def loss_of(outputs):
    return sum(t.square().mean() for t in tensors_of(outputs))


def step_of(model, x):
    def step():
        loss_of(model(x)).backward()
        model.zero_grad()
    return lambda: milliseconds_of(step)


def kept_bytes(palimpsest, model, x):
    loss_of(model(x)).backward()  # what is made once per model
    model.zero_grad()
    with palimpsest.memory.measure() as measured:
        outputs = model(x)
        measured.forward_done()
        loss_of(outputs).backward()
    model.zero_grad()
    return measured.kept_bytes


def measure_time(name, models, x, repeats, report):
    sides = {(layout, which): step_of(copy.deepcopy(model).to(memory_format=memory_format),
                                      x.contiguous(memory_format=memory_format))
             for layout, memory_format in LAYOUTS.items() for which, model in models.items()}
    # As many steps as fit into the time of `repeats` steps of 400 ms: few short ones would be lost in the noise. The first
    # step of a side makes what later ones use again, so the second one counts.
    seconds = max(1e-3 * min(side(), side()) for side in sides.values())
    count = min(max(round(0.4 * repeats / seconds), (repeats + 4) // 5), repeats)
    times = dict(zip(sides, interleave(list(sides.values()), count)))
    best = min(LAYOUTS, key=lambda layout: times[layout, "eager"].median)
    for layout in LAYOUTS:
        report.add(Row(f"{name} step, {layout}", "eager", opponent=times[layout, "eager"], measured=times[layout, "converted"],
                       limit=TIME.get(name, 1.0) if layout == best else None))


def measure_bytes(palimpsest, name, models, x, report):
    eager, ours = (kept_bytes(palimpsest, model, x) for model in models.values())
    report.add(Row(f"{name} kept", "eager", "MB", megabytes(eager), megabytes(ours), EAGER_BYTES.get(name, 1.0)))
    if name in COMPILED_BYTES:
        torch.compiler.reset()
        # The default backend saves what this partition decides, and takes minutes more to write its kernels.
        program = torch.compile(models["eager"], backend="aot_eager_decomp_partition", fullgraph=True)
        compiled = kept_bytes(palimpsest, program, x)
        report.add(Row(f"{name} kept", "torch.compile", "MB", megabytes(compiled), megabytes(ours), COMPILED_BYTES[name]))


def measure_layer(palimpsest, repeats, report):
    """The time that a converted layer takes on a map so small that Python and the operators' entry are most of it."""
    steps = 200

    def layer():
        return nn.Sequential(nn.Conv2d(LAYER_SHAPE[1], LAYER_SHAPE[1], 1, bias=False), nn.BatchNorm2d(LAYER_SHAPE[1]), nn.ReLU())

    eager = layer()
    converted, _ = palimpsest.convert(copy.deepcopy(eager))
    x = torch.randn(LAYER_SHAPE)

    def side(model):
        step = step_of(model, x)
        return lambda: sum(step() for _ in range(steps)) / steps

    times = interleave([side(eager), side(converted)], repeats)
    report.add(Row(f"conv + BN + ReLU {list(LAYER_SHAPE)}", "eager", opponent=times[0], measured=times[1], limit=LAYER_TIME))


def known_networks():
    sys.path.insert(0, str(ROOT / "tests/python"))
    import networks
    return networks.NETWORKS


def read_options():
    parser = Options("Compares networks of Python with themselves after palimpsest.convert.")
    parser.add_argument("--build", metavar="FOLDER", default="build/release",
                        help="the build folder with the operators [build/release]")
    parser.add_argument("--networks", metavar="NAME,...", help="some of the networks of tests/python/networks.py [all]")
    parser.add_argument("--batch", metavar="N", type=positive, default=8, help="images per step [8]")
    parser.add_argument("--size", metavar="PIXELS", type=positive, default=224, help="height and width of an image [224]")
    parser.add_argument("--what", metavar="NAME,...", default="time,bytes,layer", help="some of time, bytes, layer [all]")
    options = parser.parse_args()
    library = parser.library(options.build)
    os.environ["PALIMPSEST_LIBRARY"] = str(library)
    sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python/inplace_abn_dropin")]
    known = known_networks()
    options.networks = options.networks.split(",") if options.networks else list(known)
    options.what = options.what.split(",")
    for option, names, allowed in (("--networks", options.networks, list(known)),
                                   ("--what", options.what, ["time", "bytes", "layer"])):
        for name in names:
            if name not in allowed:
                parser.error(f"{option} knows {', '.join(allowed)}; got '{name}'")
    return options


def main():
    begin_with_retaining_malloc()
    options = read_options()
    import palimpsest
    import pytest
    report = Report("convert_step", options)
    networks = options.networks if {"time", "bytes"} & set(options.what) else []
    installed = []  # known before the first measurement, in case the run cannot replace a file
    for name in networks:
        try:
            known_networks()[name][0]()
            installed.append(name)
        except pytest.skip.Exception as missing:
            report.add(Row(f"{name} step", "eager", not_measured=str(missing)))
    for name in installed:
        torch.manual_seed(0)
        eager = known_networks()[name][0]().train()
        models = {"eager": eager, "converted": palimpsest.convert(copy.deepcopy(eager))[0]}
        if "time" in options.what:
            measure_time(name, models, torch.randn(options.batch, 3, options.size, options.size), options.repeats, report)
        if "bytes" in options.what:
            measure_bytes(palimpsest, name, models, torch.randn(2, 3, options.size, options.size), report)
    if "layer" in options.what:
        measure_layer(palimpsest, options.repeats, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())

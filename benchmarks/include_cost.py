#!/usr/bin/env python3
"""Measures the seconds that a compiler takes to read a header by itself.

Claim:    nn/inplace_abn.h takes at most 1.1 times as long as torch/nn/module.h, without which there is no module.
Opponent: torch/nn/module.h.
Limit:    1.10.

Each run compiles a source of one #include by `c++ -std=c++20 -O0 -fsyntax-only`; its user time counts. --all measures the
headers of the table in docs/library.md too, as controls against torch/nn/module.h, which claim nothing.

Exit status: 0 done; 1 a header does not compile, the JSON file cannot be written, or, with --check, the claim fails; 2 a
wrong option.
"""
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

from torch.utils.cpp_extension import include_paths

from support import ROOT, Options, Report, Row, interleave

OPPONENT = "torch/nn/module.h"
CLAIMED = "palimpsest/nn/inplace_abn.h"
CONTROLS = ["ATen/core/Tensor.h", "torch/torch.h", "palimpsest/palimpsest.h", "palimpsest/base/error.h",
            "palimpsest/ops/abn.h", "palimpsest/ops/dense_block.h", "palimpsest/memory/meter.h",
            "palimpsest/memory/recompute.h", "palimpsest/amp/autocast_guard.h", "palimpsest/amp/grad_scaler.h",
            "palimpsest/nn/batch_norm_act.h", "palimpsest/nn/conv2d.h", "palimpsest/nn/dense_block.h",
            "palimpsest/models/registry.h", "palimpsest/models/resnet.h", "palimpsest/io/safetensors.h",
            "palimpsest/data/loader.h", "palimpsest/train/trainer.h"]


def seconds_to_include(header, folder):
    source = folder / "include.cpp"
    includes = [f"-I{ROOT}"] + [f"-isystem{path}" for path in include_paths()]
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-fopenmp", "-fsyntax-only", *includes, source]

    def run():
        source.write_text(f"#include <{header}>\nint main() {{}}\n")
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run(command, check=True)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before

    return run


def main():
    options = Options(__doc__.splitlines()[0])
    options.set_defaults(repeats=5)
    options.add_argument("--all", action="store_true", help="also measure the headers of docs/library.md")
    arguments = options.parse_args()
    report = Report("include_cost", arguments)
    headers = [CLAIMED, *(CONTROLS if arguments.all else [])]
    with tempfile.TemporaryDirectory() as folder:
        sides = [seconds_to_include(header, pathlib.Path(folder)) for header in [OPPONENT, *headers]]
        opponent, *measured = interleave(sides, arguments.repeats, warm_up=0)
    for header, seconds in zip(headers, measured):
        limit = 1.10 if header == CLAIMED else None
        report.add(Row(header.removeprefix("palimpsest/"), OPPONENT, "s", opponent, seconds, limit))
    return report.finish()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"include_cost: {error}")

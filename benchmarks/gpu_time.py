#!/usr/bin/env python3
"""Times our layers and training steps on a GPU.

Claims and their limits: gpu/plan.py; the table is in docs/results/README.md. All sides of a row run in one process, on
libtorch's caching allocator, in turn; medians count. Before the timing, every side is compared with libtorch in f64 (a
step by its loss). CUDA events surround work that is queued while the device sleeps, so that the host's time does not count
(gpu/device_time.py). The layer's input is made again before each run and outside the timer, because ours overwrites it.

--rows FILE gets one JSON line per row as soon as it is measured (gpu/row_log.py); the rows that it has are not measured
again. --budget SECONDS: rows that would take longer than what is left are named and not measured. --list names what would
be measured, without a GPU. --inplace-abn or PALIMPSEST_INPLACE_ABN names a folder with the inplace_abn package: compiled,
or a checkout, whose sources are compiled first.

Exit status: 0 every row that can be measured here was; 1 a claim failed or a result is wrong; 2 a wrong option or folder,
or no GPU; 3 nothing failed, but some rows did not fit in the budget; 75 an error of CUDA: what is left needs a new process.
"""
from gpu import plan, row_log  # first: the budget counts the import of torch

import os
import pathlib
import sys

import torch

import inplace_abn_package
from gpu import layers, measuring, steps
from support import Parser, positive

IMPORTANCES = {"first": plan.FIRST, "second": plan.SECOND, "last": plan.LAST}
PIECES = (plan.LAYERS, plan.STEPS)
SECONDS_TO_COMPILE = 120  # the CUDA sources of the package


def listed(text, known, parser, option):
    """The names of a comma list. Each must be known."""
    names = text.split(",")
    for name in names:
        if name not in known:
            parser.error(f"{option} takes {', '.join(known)}, got '{name}'")
    return names


def package_of(options, budget):
    """The layer of the package, or a text that says why it is missing."""
    if not options.inplace_abn:
        return "name a folder with the package or its checkout by --inplace-abn or PALIMPSEST_INPLACE_ABN"
    compiled = list(pathlib.Path(options.inplace_abn, "inplace_abn").glob("_backend*.so"))
    if not compiled and not budget.fits(SECONDS_TO_COMPILE):
        return f"{row_log.NO_TIME}: {max(0, budget.left()):.0f} s are left, its sources take {SECONDS_TO_COMPILE} s to compile"
    try:
        inplace_abn_package.build(options.inplace_abn, pathlib.Path(options.build) / "inplace_abn", cuda=True)
        return inplace_abn_package.layer(options.inplace_abn, True, layers.MOMENTUM, layers.EPS, "leaky_relu", layers.SLOPE)
    except ImportError as error:
        return str(error)


def options_of(arguments):
    parser = Parser(__doc__.split("\n\n")[0])
    parser.add_argument("--build", metavar="FOLDER", default="build/gpu", help="the folder of the operator library [build/gpu]")
    parser.add_argument("--only", metavar="NAME,...", default=",".join(PIECES), help="layers, steps [both]")
    parser.add_argument("--importance", metavar="NAME,...", default=",".join(IMPORTANCES), help="first, second, last [all]")
    parser.add_argument("--rows", metavar="FILE", help="append each row to this file; go on where it was cut")
    parser.add_argument("--budget", metavar="SECONDS", type=positive, help="measure what fits [any number]")
    parser.add_argument("--list", action="store_true", help="name what would be measured, and stop")
    parser.add_argument("--compile-ahead", action="store_true",
                        help="only let torch.compile make its programs, which its cache keeps for a later run")
    parser.add_argument("--inplace-abn", metavar="FOLDER", default=os.environ.get("PALIMPSEST_INPLACE_ABN"),
                        help="the inplace_abn package, compiled or a checkout [PALIMPSEST_INPLACE_ABN]")
    options = parser.parse_args(arguments)
    pieces = listed(options.only, PIECES, parser, "--only")
    importances = [IMPORTANCES[name] for name in listed(options.importance, IMPORTANCES, parser, "--importance")]
    return parser, options, plan.chosen(pieces, importances)


def main(arguments=None):
    parser, options, works = options_of(arguments)
    if options.list:
        for work in works:
            print(f"{work.piece:<7} {work.seconds:4.0f} s  {work.name}")
        return row_log.ALL_RAN
    library = pathlib.Path(options.build) / "libpalimpsest_ops.so"
    if not library.exists():
        parser.error(f"no '{library}': scripts/gpu_check builds it")
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device; this benchmark needs one")
    torch.ops.load_library(os.fspath(library))
    budget = row_log.Budget(options.budget)
    log = row_log.RowLog(options.rows, row_log.digest(library))
    if options.compile_ahead:
        return layers.compile_ahead([work for work in works if work.kind == "compiled"])
    log.begin(torch.cuda.get_device_name(), options.budget)
    context = measuring.Context(options.repeats, budget, lambda: package_of(options, budget))
    return measuring.measure(works, {**layers.KINDS, **steps.KINDS}, context, log,
                             say=lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(main())

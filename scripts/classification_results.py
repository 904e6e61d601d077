#!/usr/bin/env python3
"""Trains the networks of examples/mixed_precision/*.toml on CIFAR-10, in f32 and in 16 bits, and writes what they reach.

classification_results.py [--check]                  writes a table of docs/results/mixed_precision.md from
                                                     mixed_precision/NAME.json; --check writes nothing and compares
classification_results.py --run BUILD DATA [NAME...] trains first, every network or those named, from two seeds each: one
                                                     to two hours on two cores for all. DATA: an unpacked CIFAR-10. Runs
                                                     lie in runs/classification; an interrupted one goes on
Exit status: 0 done, or all is as the files say; 1 with --check, it is not, or a training failed; 2 a wrong option, a
file is missing or is not what it should be.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

import result_page

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEEDS, ALLOWED = "1,2", "0.5"  # points beyond the spread over the seeds

# Recipe: title, what the paper's table 1 reports for ImageNet, and epochs of the short schedule.
NETWORKS = {
    "alexnet": ("AlexNet", "56.77 / 56.93", 3),
    "vgg16": ("VGG-16 (D)", "65.40 / 65.43", 4),
    "googlenet": ("GoogLeNet", "68.33 / 68.43", 2),
    "inception_v2": ("Inception v2", "70.03 / 70.02", 1),
    "inception_v3": ("Inception v3", "73.85 / 74.13", 1),
    "resnet_preact": ("ResNet, pre-activation", "75.92 / 76.04", 1),
}


def train(build, data, name):
    """Whether all its trainings ended well, on one thread each: another network's run beside them."""
    said = subprocess.run(
        [sys.executable, ROOT / "benchmarks/seed_spread.py", "--output", ROOT / "runs/classification" / name, "--seeds", SEEDS,
         "--allow", ALLOWED, "--variant", "f32: --precision f32", "--variant", "f16-pseudo: --precision f16-pseudo --loss-scale 1",
         "--json", result_page.RESULTS / f"mixed_precision/{name}.json", "--config", f"examples/mixed_precision/{name}.toml",
         "--data-root", data, "--epochs", str(NETWORKS[name][2]), "--threads", "1"],
        cwd=ROOT, env={**os.environ, "PALIMPSEST_BUILD_DIR": str(build), "OMP_NUM_THREADS": "1"})
    return said.returncode == 0


def table(measured):
    header = ["network", "the paper's on ImageNet: f32 / mixed", "epochs", "f32", "16 bits", "difference of the means", "at most"]
    rows = []
    for name, (title, paper, epochs) in NETWORKS.items():
        result = measured.get(name)
        if result is None:
            rows.append([f"`{name}`: {title}", paper, str(epochs), result_page.NOT_MEASURED, "", "", ""])
            continue
        f32, mixed = result["variants"]
        rows.append([f"`{name}`: {title}", paper, str(epochs),
                     *(" / ".join(f"{value:.2f}" for value in variant["values"]) for variant in (f32, mixed)),
                     f"{mixed['difference']:+.2f}", f"{f32['spread'] + result['allowed_points']:.2f}"
                     + ("" if mixed["pass"] else ": FAIL")])
    held = sum(result["pass"] for result in measured.values())
    return f"\n{result_page.table(header, rows, numbers=5)}\n\n{held} of {len(measured)} lie within.\n\n"


def main(arguments):
    usage = "usage: classification_results.py [--check | --run BUILD DATA [NAME...]]"
    well, check = True, arguments == ["--check"]
    if arguments[:1] == ["--run"]:
        names = arguments[3:] or list(NETWORKS)
        if len(arguments) < 3 or not set(names) <= set(NETWORKS):
            raise ValueError(usage)
        build, data = (pathlib.Path(argument).resolve() for argument in arguments[1:3])
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            well = all(list(pool.map(lambda name: train(build, data, name), names)))
    elif arguments and not check:
        raise ValueError(usage)
    paths = {name: result_page.RESULTS / f"mixed_precision/{name}.json" for name in NETWORKS}
    measured = {name: result_page.read(path) for name, path in paths.items() if path.exists()}
    page = result_page.RESULTS / "mixed_precision.md"
    wanted = {page: result_page.between_marks(page, "classification", table(measured))}
    return 0 if result_page.write(__file__, wanted, check) and well else 1


if __name__ == "__main__":
    result_page.exit_with(__file__, main)

"""Six classification networks on CIFAR-10, in f32 and in 16 bits: the first table of docs/results/mixed_precision.md."""
import concurrent.futures
import os
import re
import subprocess
import sys
import typing

from result_page import NOT_MEASURED, ROOT, mark, read, table

ALLOWED = "0.5"  # points beyond the spread over the seeds
SEEDS = "1,2,3"


class Network(typing.NamedTuple):
    title: str
    paper: str  # its table 1, ImageNet
    epochs: int  # of the short schedule


NETWORKS = {  # by recipe
    "alexnet": Network("AlexNet", "56.77 / 56.93", 3),
    "vgg16": Network("VGG-16 (D)", "65.40 / 65.43", 4),
    "googlenet": Network("GoogLeNet", "68.33 / 68.43", 2),
    "inception_v2": Network("Inception v2", "70.03 / 70.02", 1),
    # After one epoch its seeds lie up to 7 points apart.
    "inception_v3": Network("Inception v3", "73.85 / 74.13", 2),
    "resnet_preact": Network("ResNet, pre-activation", "75.92 / 76.04", 1),
}


def train_one(results, build, data, name):
    """Trains a recipe with one thread per training: networks train side by side. Returns whether all succeeded."""
    ended = subprocess.run(
        [sys.executable, ROOT / "benchmarks/seed_spread.py", "--output", ROOT / "runs/classification" / name,
         "--seeds", SEEDS, "--allow", ALLOWED, "--variant", "f32: --precision f32", "--variant", "f16-pseudo: --precision f16-pseudo --loss-scale 1",
         "--json", results / f"mixed_precision/{name}.json", "--config", f"examples/mixed_precision/{name}.toml",
         "--data-root", data, "--epochs", str(NETWORKS[name].epochs), "--threads", "1"],
        cwd=ROOT, env={**os.environ, "PALIMPSEST_BUILD_DIR": str(build), "OMP_NUM_THREADS": "1"})
    return ended.returncode == 0


def train(results, build, data, names):
    """Trains the networks in `names`. Returns whether every training succeeded."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return all(list(pool.map(lambda name: train_one(results, build, data, name), names)))


def rows_of(measured):
    for name, network in NETWORKS.items():
        result = measured.get(name)
        if result is None:
            yield [f"`{name}`: {network.title}", network.paper, str(network.epochs), NOT_MEASURED, "", "", ""]
            continue
        f32, mixed = result["variants"]
        epochs = re.search(r"--epochs (\d+)", result["options"])[1]  # of the measurement
        yield [f"`{name}`: {network.title}", network.paper, epochs,
               *(" / ".join(f"{value:.2f}" for value in variant["values"]) for variant in (f32, mixed)),
               f"{mixed['difference']:+.2f}",
               f"{f32['spread'] + result['allowed_points']:.2f}{mark(mixed['pass'])}"]


def content(results):
    """The table and its sum, as text between the marks of the page."""
    paths = {name: results / f"mixed_precision/{name}.json" for name in NETWORKS}
    measured = {name: read(path) for name, path in paths.items() if path.exists()}
    header = ["network", "paper, ImageNet: f32 / mixed", "epochs", "f32", "16 bits", "difference of the means", "limit"]
    passed = sum(result["pass"] for result in measured.values())
    return f"\n{table(header, rows_of(measured), numbers=5)}\n\n{passed} of {len(measured)} networks are within the limit.\n\n"

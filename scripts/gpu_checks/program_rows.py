#!/usr/bin/env python3
"""Runs the program on a GPU: `train` of three networks for one epoch of some steps, on PNG files, with libtorch's layers
(`standard`) and in place (`inplace_2`): seconds of a step, kept and peak bytes; and the largest batch that `compare` finds.

scripts/gpu_check starts it. Needs no torch of Python; the program finds libtorch by LD_LIBRARY_PATH. --rows, --budget and
the exit status are those of benchmarks/gpu_time.py.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
from gpu import row_log  # noqa: E402  first: the budget counts from here

import argparse  # noqa: E402
import dataclasses  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import statistics  # noqa: E402
import struct  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import zlib  # noqa: E402

PIECE = "program"
PRECISIONS = ("bf16", "f32", "f16")  # the most important first
STANDARD, IN_PLACE = "standard", "inplace_2"
MEMORY_GIB = 24  # of the search for the largest batch: all of a large GPU would take minutes
STEPS, WARM_STEPS = 36, 12  # libtorch chooses its convolutions in the first steps
DISTINCT = 16  # pictures; other files are names of the same bytes
BLOCK = 16  # pixels of one colour, so that a PNG is read about as fast as a JPEG of its size
CLASSES = 19
WORKERS = str(max(2, len(os.sched_getaffinity(0)) - 2))  # beside the two threads that queue forward and backward
ERROR = "palimpsest: error: "


@dataclasses.dataclass(frozen=True)
class Network:
    model: str
    batch: int
    size: int
    segments: bool = False


NETWORKS = (Network("resnet50", 128, 224), Network("densenet121", 128, 224), Network("deeplabv3_resnet50", 16, 512, True))


@dataclasses.dataclass(frozen=True)
class Work:
    name: str
    seconds: float
    network: Network
    precision: str
    command: str = "train"
    piece: str = PIECE


def works_of(precisions, networks=NETWORKS):
    """The units in the order of their importance; `compare` follows the trainings of bf16."""
    works = []
    for precision in precisions:
        works += [Work(f"{n.model}, batch {n.batch} of {n.size}x{n.size}, {precision}", 12, n, precision) for n in networks]
        if precision == PRECISIONS[0]:
            works += [Work(f"{n.model}, {n.size}x{n.size}, {precision}: largest batch in {MEMORY_GIB} GiB", 30, n, precision,
                           "compare") for n in (networks[0], networks[-1])]
    return works


def png(pixels, size, channels=3):
    """A square picture of `size` pixels, RGB or one channel, as a file's bytes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = channels * size
    rows = b"".join(b"\0" + pixels[row * y:row * (y + 1)] for y in range(size))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2 if channels == 3 else 0, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))


def blocks(generator, size, channels, values):
    """The bytes of a square picture of blocks, each channel's value below `values`."""
    rows = []
    for _ in range(-(-size // BLOCK)):
        colours = (bytes(generator.randrange(values) for _ in range(channels)) for _ in range(-(-size // BLOCK)))
        rows += [b"".join(colour * BLOCK for colour in colours)[:channels * size]] * BLOCK
    return b"".join(rows[:size])


def write_files(paths, content):
    """Writes DISTINCT contents, content(i), to the first paths; the others are links to them."""
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < DISTINCT:
            path.write_bytes(content(number))
        else:
            os.link(paths[number % DISTINCT], path)


def write_pictures(folder, size, count):
    """Pictures in two classes, as palimpsest's image_folder wants them; `count` for training, two for validation."""
    generator = random.Random(0)
    for split, number in (("train", count), ("val", 2)):
        write_files([folder / split / f"class{i % 2}" / f"{i}.png" for i in range(number)],
                    lambda _: png(blocks(generator, size, 3, 256), size))


def write_scenes(folder, size, count):
    """Pictures and labels, as palimpsest's segmentation_folder wants them."""
    generator = random.Random(0)
    for split, number in (("train", count), ("val", 2)):
        for name, channels, values in ((split, 3, 256), (f"{split}annot", 1, CLASSES)):
            write_files([folder / name / f"{i}.png" for i in range(number)],
                        lambda _: png(blocks(generator, size, channels, values), size, channels))


class Failure(Exception):
    """The program did not do what it was asked; the text is its error."""


class Program:
    def __init__(self, path, device, folder, budget, steps=STEPS):
        self.path, self.device, self.folder, self.budget, self.steps = path, device, folder, budget, steps
        self.helps = {}

    def takes_device(self, command):
        if command not in self.helps:
            said = subprocess.run([self.path, command, "--help"], capture_output=True, text=True)
            if said.returncode:
                raise Failure(f"'{self.path} {command} --help' ends with {said.returncode}: {last_line(said.stderr)}")
            self.helps[command] = "--device " in said.stdout
        return self.helps[command]

    def run(self, command, *arguments):
        left = self.budget.left()
        try:
            said = subprocess.run([self.path, command, *arguments], capture_output=True, text=True,
                                  timeout=None if math.isinf(left) else max(1, left))
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error
        if said.returncode:
            raise Failure(f"{command} ends with {said.returncode}: {last_line(said.stderr).removeprefix(ERROR)}")

    def data(self, network):
        """The flags that name the network's images, which are made on their first use: one epoch of STEPS steps."""
        root = self.folder / f"{network.model}_{network.size}"
        if not root.exists():
            (write_scenes if network.segments else write_pictures)(root, network.size, self.steps * network.batch)
        size = str(network.size)
        kind = ["segmentation_folder", "--classes", str(CLASSES)] if network.segments else ["image_folder"]
        return ["--data", *kind, "--data-root", str(root), "--train-split", "train", "--val-split", "val", "--crop", size,
                "--eval-crop", size]

    def flags(self, work):
        return ["--model", work.network.model, *self.data(work.network), "--batch", str(work.network.batch), "--precision",
                work.precision, "--channels-last", "--device", self.device, "--workers", WORKERS, "--evaluate-every", "0",
                "--quiet", "--overwrite"]


def last_line(text):
    return (text.strip().splitlines() or ["it says nothing"])[-1]


def spread(values):
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values
    return {"median": median, "low": low, "high": high}


def pair_row(name, unit, opponent, measured):
    return {"row": name, "outcome": row_log.MEASURED, "claim": name, "opponent_name": STANDARD, "unit": unit,
            "opponent": spread(opponent), "measured": spread(measured),
            "ratio": statistics.median(measured) / statistics.median(opponent), "limit": None, "pass": None}


def train(program, work, warm=WARM_STEPS):
    """Rows of a training with either strategy: seconds from one step to the next, waiting for data, kept, peak."""
    steps = program.steps
    records = {}
    for strategy in (STANDARD, IN_PLACE):
        output = program.folder / "run"
        program.run("train", *program.flags(work), "--strategy", strategy, "--epochs", "1", "--max-steps", str(steps),
                    "--log-every", "1", "--checkpoint-every", str(steps), "--output", str(output))
        lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
        records[strategy] = [line for line in lines if line["type"] == "step"][warm:]
        if not records[strategy]:
            raise Failure(f"train wrote no step after the first {warm} to log.jsonl")

    def row(what, unit, value):
        return pair_row(f"{work.name}{what}", unit, *([value(r) for r in records[s]] for s in (STANDARD, IN_PLACE)))

    return [row("", "ms", lambda r: 1e3 * (r["seconds"] + r["data_seconds"])),
            row(": kept", "MB", lambda r: r["kept_bytes"] / 1e6), row(": peak", "MB", lambda r: r["peak_bytes"] / 1e6),
            {"row": f"{work.name}: waiting for images", "outcome": row_log.MEASURED, "unit": "ms",
             "measured": spread([1e3 * r["data_seconds"] for r in records[IN_PLACE]])}]


def compare(program, work):
    output = program.folder / "comparison"
    program.run("compare", *program.flags(work), "--max-steps", "1", "--strategies", f"{STANDARD},{IN_PLACE}", "--memory",
                str(1024 * MEMORY_GIB), "--output", str(output))
    runs = json.loads((output / "results.json").read_text())["runs"]
    largest = [[float(run["largest_batch"])] for run in runs]
    return [pair_row(work.name, "images", *largest)]


COMMANDS = {"train": train, "compare": compare}


def rows_of(program, work):
    """The rows of a unit, whatever the program does."""
    try:
        if not program.takes_device(work.command):
            return [row_log.not_run(work.name, f"'palimpsest {work.command}' takes no --device")]
        return COMMANDS[work.command](program, work)
    except TimeoutError:
        return [row_log.not_run(work.name, f"{row_log.NO_TIME}: the program was stopped when it ran out")]
    except (Failure, OSError, ValueError, KeyError) as error:
        return [{"row": work.name, "outcome": row_log.FAILED, "reason": f"{error}"}]


def run_all(program, works, log, say):
    return row_log.carry_out(works, lambda work: rows_of(program, work), log, program.budget, say)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--program", metavar="FILE", required=True)
    parser.add_argument("--device", metavar="NAME", default="cuda")
    parser.add_argument("--precision", metavar="NAME,...", default=",".join(PRECISIONS))
    parser.add_argument("--rows", metavar="FILE", required=True)
    parser.add_argument("--budget", metavar="SECONDS", type=float)
    options = parser.parse_args()
    log = row_log.RowLog(options.rows, row_log.digest(options.program))
    with tempfile.TemporaryDirectory(prefix="gpu_check_") as folder:
        program = Program(options.program, options.device, pathlib.Path(folder), row_log.Budget(options.budget))
        return run_all(program, works_of(options.precision.split(",")), log, lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(main())

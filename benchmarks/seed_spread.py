#!/usr/bin/env python3
"""Compares the accuracy of variants of a training over several seeds.

Claim:    a variant of a training reaches the accuracy of the first variant, up to the effect of the seed. Opponent: the
first variant. Limit:    the means over the seeds differ by at most the spread of the first variant over its seeds
(highest less lowest) plus --allow points. With --may-gain only a lower mean counts.

`palimpsest train` trains a recipe once per variant and seed. The accuracy is that of the last evaluation: top-1 or mean
IoU, in points. A finished run is not repeated and an interrupted run is resumed, so the command can be stopped and
started again at any time.

benchmarks/seed_spread.py --config examples/cifar10_densenet.toml --data-root PATH/TO/cifar10 --output runs/densenet \\
--seeds 1,2,3 --variant "naive: --dense-strategy naive --strategy standard" --variant "fused: --dense-strategy fused" \\
--epochs 1

Every training gets the options that this program does not know. Exit status: 0 done; 1 a training failed, the JSON file
cannot be written, or, with --check, a variant is beyond the limit; 2 a wrong option.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys

from support import ROOT, commit, processor_name, replace_file

BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
METRICS = {"top1": "top-1", "mean_iou": "mean IoU"}


class TrainingFailed(Exception):
    """One line: which run, and the last line of its program."""


@dataclasses.dataclass
class Variant:
    name: str
    arguments: list

    @classmethod
    def parse(cls, text):
        name, colon, arguments = text.partition(":")
        if not colon or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise argparse.ArgumentTypeError(f"'NAME: OPTIONS' is needed, NAME of letters, digits, '_', '-', '.'; got '{text}'")
        return cls(name, shlex.split(arguments))


def seed_list(text):
    seeds = text.split(",")
    if len(seeds) < 2 or len(set(seeds)) < len(seeds) or not all(seed.isdecimal() for seed in seeds):
        raise argparse.ArgumentTypeError(f"two or more different whole numbers are needed, as in 1,2,3; got '{text}'")
    return [int(seed) for seed in seeds]


def points(text):
    value = float(text)
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"from 0 to 100 points are possible, got {text}")
    return value


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.error = lambda message: parser.exit(2, f"seed_spread: {message}; --help lists the options\n")
    parser.add_argument("--output", metavar="FOLDER", type=pathlib.Path, required=True, help="the folder of the runs, one per variant and seed")
    parser.add_argument("--variant", metavar="'NAME: OPTIONS'", type=Variant.parse, action="append", required=True,
                        help="options of palimpsest train; the first variant is the opponent of the others")
    parser.add_argument("--seeds", metavar="N,N,...", type=seed_list, required=True)
    parser.add_argument("--allow", metavar="POINTS", type=points, default=0.0, help="added to the spread of the first variant [0]")
    parser.add_argument("--may-gain", action="store_true", help="a variant may be better than the first one by any amount")
    parser.add_argument("--json", metavar="PATH", type=pathlib.Path, help="also write the figures to this JSON file")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a variant is beyond the limit")
    options, common = parser.parse_known_args()
    names = [variant.name for variant in options.variant]
    if len(names) < 2 or len(set(names)) < len(names):
        parser.error(f"two or more variants of different names are needed, got {', '.join(names)}")
    return options, common


def begun_with(folder):
    """The command that started the run in this folder, or None."""
    path = folder / "command.json"
    return json.loads(path.read_text()) if path.exists() else None


def train(command, folder):
    """Runs the training, or the rest of it, and returns its log: a list of records."""
    begun = begun_with(folder)
    if begun not in (None, command):
        raise TrainingFailed(f"{folder} holds a run of other options ({shlex.join(begun)}); name another --output, or remove it")
    finished = folder / "finished"
    if not finished.exists():
        folder.mkdir(parents=True, exist_ok=True)
        resumes = begun is not None and (folder / "checkpoint.safetensors").exists()
        replace_file(folder / "command.json", json.dumps(command))
        result = subprocess.run([str(BUILD / "palimpsest"), "train", *command, "--output", str(folder), "--quiet",
                                 "--resume" if resumes else "--overwrite"], stderr=subprocess.PIPE, text=True)
        if result.returncode:
            last = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise TrainingFailed(f"{folder}: exit status {result.returncode}: {last}")
        finished.touch()
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def outcome(log, folder):
    """(name of the metric, its last value in points, mean loss of the last tenth of the logged steps)."""
    evaluations = [record for record in log if record["type"] == "evaluation"]
    if not evaluations:
        raise TrainingFailed(f"{folder} was never evaluated; leave --evaluate-every above 0")
    metric = next(name for name in METRICS if name in evaluations[-1])
    if evaluations[-1][metric] is None:
        raise TrainingFailed(f"{folder}: the last evaluation has no {METRICS[metric]}: no label counted, or the network gave NaN")
    losses = [record["loss"] for record in log if record["type"] == "step"]
    return metric, 100 * evaluations[-1][metric], statistics.fmean(losses[-max(1, len(losses) // 10):])


def recorded(common):
    """The options in the JSON file, without the path of the data on this machine."""
    here = [i for i, argument in enumerate(common) if i and common[i - 1] == "--data-root"]
    return shlex.join(f"PATH/TO/{pathlib.Path(argument).name}" if i in here else argument for i, argument in enumerate(common))


def measure(options, common):
    """The content of the JSON file: for every variant its values over the seeds."""
    rows, metric = [], None
    for variant in options.variant:
        values, losses = [], []
        for seed in options.seeds:
            folder = options.output / f"{variant.name}-{seed}"
            log = train([*common, *variant.arguments, "--seed", str(seed)], folder)
            metric, value, loss = outcome(log, folder)
            values.append(value)
            losses.append(loss)
            print(f"{variant.name:<16} seed {seed:<6} {METRICS[metric]} {value:6.2f} %  last losses {loss:.4f}", flush=True)
        rows.append({"variant": variant.name, "options": shlex.join(variant.arguments), "values": values,
                     "last_losses": losses, "mean": statistics.fmean(values), "spread": max(values) - min(values)})
    room = rows[0]["spread"] + options.allow
    for row in rows[1:]:
        row["difference"] = row["mean"] - rows[0]["mean"]
        row["pass"] = (-row["difference"] if options.may_gain else abs(row["difference"])) <= room
    return {"benchmark": "seed_spread", "processor": processor_name(), "commit": commit(), "options": recorded(common), "seeds": options.seeds, "metric": METRICS[metric],
            "allowed_points": options.allow, "may_gain": options.may_gain, "variants": rows, "pass": all(row["pass"] for row in rows[1:])}


def main():
    options, common = parse_options()
    try:
        result = measure(options, common)
        print(f"\n{'variant':<16} {result['metric'] + ', %':>10} {'spread':>7} {'difference':>11}  at most "
              f"{result['variants'][0]['spread'] + options.allow:.2f}")
        for row in result["variants"]:
            difference = f"{row['difference']:+11.2f}  {'pass' if row['pass'] else 'FAIL'}" if "pass" in row else ""
            print(f"{row['variant']:<16} {row['mean']:>10.2f} {row['spread']:>7.2f} {difference}")
        if options.json:
            replace_file(options.json, json.dumps(result, indent=2) + "\n")
    except (TrainingFailed, OSError) as error:
        print(f"seed_spread: {error}", file=sys.stderr)
        return 1
    return 1 if options.check and not result["pass"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Kills trainings with SIGKILL at random moments; --resume must end with the bytes of the unbroken run.

    python tests/cli/kill_runs.py ROUNDS [SEED]

A round starts a training in an empty folder, or with --overwrite in the folder of another run, and kills it: at any moment of
its life, soon after it made its first file (so on either side of the first checkpoint), or while a checkpoint is written. Then it
runs `train --resume`, which may be killed, too. A run that was killed before it had begun is started once more with its own
command. No answer of the program is looked at but its exit code. The last line is "N of N rounds ...".
"""
import dataclasses
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

from cli_support import CHECKPOINT, PROGRAM, environment, image_folder

RUN = ("--model resnet18_narrow --data image_folder --data-root data --batch 4 --threads 1 --workers 1 --log-every 1 "
       "--checkpoint-every 2 --epochs 3").split()
OLD_RUN = [*RUN, "--seed", "7", "--epochs", "1"]
RESUME = ["train", "--resume", "--output", "run"]
NAME = "checkpoint.safetensors"


@dataclasses.dataclass
class Result:
    checkpoint: bytes
    log: list


def result_of(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return Result((folder / NAME).read_bytes(), [(line["type"], line["step"], line["loss"]) for line in lines])


def start(arguments, cwd):
    return subprocess.Popen([PROGRAM, *arguments], cwd=cwd, env=environment(), stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def finish(arguments, cwd):
    return start(arguments, cwd).wait(timeout=300)


def kill(process, draw, folder, seconds):
    """Kills the process at a moment that `draw` chooses; returns whether it was still alive."""
    kind = draw.choice(["any", "first", "writing"])
    if kind == "any":
        time.sleep(draw.uniform(0, seconds))
    else:
        wanted = "config.toml" if kind == "first" else f".{NAME}.0.tmp"
        skipped = draw.randrange(4) if kind == "writing" else 0  # of the moments at which a checkpoint is being written
        before, seen = False, 0
        while process.poll() is None:
            there = (folder / wanted).exists()
            if there and not before:
                seen += 1
                if seen > skipped:
                    break
            before = there
        time.sleep(draw.uniform(0, 0.02 if kind == "first" else 0.002))
    alive = process.poll() is None
    process.kill()
    process.wait()
    return alive


def one_round(draw, cwd, expected, old, seconds):
    """Returns (whether a kill met a live program, what is wrong or "")."""
    folder = cwd / "run"
    shutil.rmtree(folder, ignore_errors=True)
    command = ["train", *RUN, "--output", "run"]
    if draw.random() < 0.3:
        shutil.copytree(cwd / "old", folder)
        command.append("--overwrite")
    hit = kill(start(command, cwd), draw, folder, seconds)
    while draw.random() < 0.3:
        hit |= kill(start(RESUME, cwd), draw, folder, seconds)
    code = finish(RESUME, cwd)
    begun = code == 0 and not (command[-1] == "--overwrite" and result_of(folder) == old)
    if not begun:
        if code not in (0, CHECKPOINT):
            return hit, f"--resume ended with {code}"
        code = finish(command, cwd)
        if code != 0:
            return hit, f"the run had not begun, and its command ended with {code}"
    got = result_of(folder)
    wrong = [what for what in ("checkpoint", "log") if getattr(got, what) != getattr(expected, what)]
    leftovers = {path.name for path in folder.iterdir()} - {NAME, "log.jsonl", "config.toml", "evaluation.safetensors",
                                                       "step_memory.safetensors"}
    return hit, " and ".join(f"another {what}" for what in wrong) + (f" leftovers {leftovers}" if leftovers else "")


def kill_runs(rounds, seed):
    """Returns (rounds whose kill met a live program, list of failures)."""
    hits, failures = 0, []
    with tempfile.TemporaryDirectory(prefix="palimpsest-") as name:
        cwd = pathlib.Path(name)
        image_folder(cwd / "data")
        begin = time.monotonic()
        assert finish(["train", *RUN, "--output", "unbroken"], cwd) == 0
        seconds = time.monotonic() - begin
        assert finish(["train", *OLD_RUN, "--output", "old"], cwd) == 0
        expected, old = result_of(cwd / "unbroken"), result_of(cwd / "old")
        for number in range(rounds):
            hit, wrong = one_round(random.Random(f"{seed}/{number}"), cwd, expected, old, seconds)
            hits += hit
            if wrong:
                failures.append(f"round {number} of seed {seed}: {wrong}")
                print(failures[-1], flush=True)
    return hits, failures


if __name__ == "__main__":
    rounds, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns()
    hits, failures = kill_runs(rounds, seed)
    print(f"{rounds - len(failures)} of {rounds} rounds ended with the bytes of the unbroken run (seed {seed}, "
          f"{hits} kills met a live program)")
    sys.exit(1 if failures else 0)

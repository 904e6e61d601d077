"""Our loss scaler goes step by step where Python's torch.amp.GradScaler goes: scale, growth tracker, which steps are
skipped and all parameters, bit for bit, over a script of 500 iterations with overflows."""

import math
import os
import pathlib
import random
import subprocess

import torch

STEPS = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", "build/release")) / "tests/amp/scaler_steps_program"
ITERATIONS = 500


def script(seed):
    """Commands of scaler_steps_program.cpp: accumulated gradients, one or two optimizers, clipping, scales set by hand,
    and about one overflow in twelve iterations, once ten in a row."""
    draw = random.Random(seed)
    lines = ["options 1024 2 0.5 7"]
    for i in range(ITERATIONS):
        overflow = draw.random() < 1 / 12 or 200 <= i < 210
        optimizers = draw.choice([[0], [1], [0, 1]])
        for k in optimizers:
            for _ in range(draw.randint(1, 3)):
                lines.append(f"backward {k} {draw.uniform(-1, 1) * 2 ** draw.randint(-20, 2):.9g}")
        if overflow:
            lines.append(f"backward {draw.choice(optimizers)} {draw.choice(['inf', '-inf', 'nan', '3e38'])}")
        for k in optimizers:
            if draw.random() < 0.3:
                lines += [f"unscale {k}", f"clip {k} 0.5"]
        lines += [f"step {k}" for k in optimizers] + [f"zero {k}" for k in optimizers]
        lines.append(f"set {2 ** draw.randint(0, 15)}" if draw.random() < 0.02 else "update")
        lines.append("print")
    return lines


def by_python(lines):
    parameters = [torch.arange(1.0, 5.0).requires_grad_() for _ in range(2)]
    optimizers = [torch.optim.SGD([p], lr=0.125, momentum=0.5, foreach=False) for p in parameters]
    stepped = [False, False]
    for k, optimizer in enumerate(optimizers):
        optimizer.register_step_post_hook(lambda *_, k=k: stepped.__setitem__(k, True))
    printed = []
    for line in lines:
        command, *rest = line.split()
        k = int(rest[0]) if command in ("backward", "unscale", "clip", "step", "zero") else None
        if command == "options":
            scale, growth, backoff = map(float, rest[:3])
            scaler = torch.amp.GradScaler("cpu", scale, growth, backoff, int(rest[3]))
        elif command == "backward":
            weights = torch.arange(1.0, 5.0) * float(rest[1])
            scaler.scale((parameters[k] * weights).sum()).backward()
        elif command == "unscale":
            scaler.unscale_(optimizers[k])
        elif command == "clip":
            torch.nn.utils.clip_grad_value_(parameters[k], float(rest[1]))
        elif command == "step":
            stepped[k] = False
            scaler.step(optimizers[k])
            printed.append("stepped" if stepped[k] else "skipped")
        elif command == "zero":
            optimizers[k].zero_grad()
        elif command == "update":
            scaler.update()
        elif command == "set":
            scaler.update(float(rest[0]))
        elif command == "print":
            state = scaler.state_dict()
            values = [state["scale"], state["_growth_tracker"], *(v for p in parameters for v in p.tolist())]
            printed.append(values)
    return printed


def test_500_steps_are_those_of_pythons_scaler():
    lines = script(seed=1)
    run = subprocess.run([STEPS], input="\n".join(lines), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    ours, theirs = run.stdout.splitlines(), by_python(lines)
    assert len(ours) == len(theirs)
    assert theirs.count("skipped") > 40 and theirs.count("stepped") > 500  # the script is worth its name
    assert len({values[0] for values in theirs if isinstance(values, list)}) > 8
    for number, (mine, python) in enumerate(zip(ours, theirs)):
        if isinstance(python, list):
            words = mine.split()
            mine = [float.fromhex(words[0]), int(words[1]), *map(float.fromhex, words[2:])]
            assert all(math.isfinite(v) for v in mine)
        assert mine == python, f"output {number}"

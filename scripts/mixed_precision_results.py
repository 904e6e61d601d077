#!/usr/bin/env python3
"""Runs the programs of examples/mixed_precision in full, and writes what they reach into docs/results.

mixed_precision_results.py [--check]             writes mixed_precision.md (its table) and mixed_precision/loss.svg from
                                                 mixed_precision/*.json; --check writes nothing and compares
mixed_precision_results.py --run BUILD [NAME...] trains first: every setting of each program, or of those named, from two
                                                 seeds, but for what the JSON files have already; some minutes each. They
                                                 hold the last line of each record, its command, and the loss, averaged
                                                 over 60 stretches of the run
Exit status: 0 done, or all is as the files say; 1 with --check, it is not, or a run failed; 2 a wrong option, a file is
missing or is not what it should be.
"""
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import subprocess
import tempfile

import loss_panels
import result_page

RESULTS = result_page.RESULTS
POINTS = 60
SEEDS = (1, 2)

# Program: title, the figures of the table as (key, name, digits, factor), what the paper reports, the scale, the batches
# over which the loss is averaged, and the key of the loss that is drawn.
PROGRAMS = {
    "ssd": ("Detection (SSD)", [("mean_average_precision", "mAP, %", 1, 100)],
            "76.9 / diverges / 77.1 % (scale 8)", "8", 64, "loss"),
    "speech": ("Speech (GRU, CTC)", [("character_error_rate", "CER, %", 2, 100)],
               "2.20 / 1.99 % (English), 15.82 / 15.01 % (Mandarin); no scale named", "dynamic", 1, "loss"),
    "translation": ("Translation (LSTM, attention)", [("exact_match", "sentences right, %", 1, 100)],
                    "matches with a scale, slightly worse without (figure 4)", "128", 1024, "loss"),
    "language_model": ("Language model (LSTM)", [("perplexity", "perplexity", 2, 1), ("agreement", "agreement, %", 1, 100)],
                       "matches with scale 128, diverges without (figure 5)", "128", 1024, "loss"),
    "dcgan": ("DCGAN", [("distance", "distance", 3, 1)], "comparable; no scale needed", "dynamic", 1, "loss_discriminator"),
}
SETTINGS = ("f32", "f16 storage, no loss scale", "f16 storage, loss scale")


def flags_of(name):
    """Of each setting."""
    scale, accumulate = PROGRAMS[name][3:5]
    batches = [] if accumulate == 1 else ["--accumulate", str(accumulate)]
    return dict(zip(SETTINGS, (batches, [*batches, "--precision", "f16-pseudo", "--loss-scale", "1"],
                               [*batches, "--precision", "f16-pseudo", "--loss-scale", scale])))


def averaged(steps, key):
    """The loss over POINTS stretches: (last step of the stretch, mean)."""
    length = max(1, math.ceil(len(steps) / POINTS))
    curve = []
    for begin in range(0, len(steps), length):
        values = [line[key] for line in steps[begin:begin + length]]
        mean = None if None in values else float(f"{sum(values) / len(values):.5g}")
        curve.append([steps[min(begin + length, len(steps)) - 1]["step"], mean])
    return curve


def run(program, flags):
    """(exit status, lines of the record) of one training, on one thread: the other settings run beside it."""
    with tempfile.TemporaryDirectory() as folder:
        record = pathlib.Path(folder) / "record.jsonl"
        status = subprocess.run([program, *flags, "--json", record], stdout=subprocess.DEVNULL,
                                env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
        return status, [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def path_of(name):
    return RESULTS / f"mixed_precision/{name}.json"


def save(name, runs):
    order = [(setting, seed) for setting in SETTINGS for seed in SEEDS if (setting, seed) in runs]
    path_of(name).parent.mkdir(exist_ok=True)
    path_of(name).write_text("{\"runs\": [\n" + ",\n".join(json.dumps(runs[key]) for key in order) + "\n]}\n")


def train(build, name):
    """Every setting and seed of a program that its JSON file does not have yet, into that. Whether all ended well."""
    known = json.loads(path_of(name).read_text())["runs"] if path_of(name).exists() else []
    runs, well = {(one["setting"], one["seed"]): one for one in known}, True
    wanted = [(setting, seed, [*flags, "--seed", str(seed)]) for setting, flags in flags_of(name).items() for seed in SEEDS
              if (setting, seed) not in runs]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        trained = pool.map(lambda one: run(build / "examples/mixed_precision" / name, one[2]), wanted)
        for (setting, seed, flags), (status, lines) in zip(wanted, trained):
            final = lines.pop() if lines and "metrics" in lines[-1] else None
            print(f"{name}: {setting}, seed {seed}: {final['metrics'] if final else f'exit status {status}'}", flush=True)
            if status not in (0, 5):  # 5: the training diverged, which is a result (base/error.h)
                well = False
                continue
            runs[setting, seed] = {
                "setting": setting, "seed": seed, "diverged": status == 5, "final": final,
                "command": " ".join([f"build/release/examples/mixed_precision/{name}", *flags]),
                "loss": averaged(lines, PROGRAMS[name][5])}
            save(name, runs)
    return well


def figures(runs, name):
    """Of a setting's runs, a seed behind the other."""
    if not runs:
        return result_page.NOT_MEASURED

    def one(run, key, digits, factor):
        if run["diverged"]:
            return "diverges"
        value = factor * run["final"]["metrics"][key]
        return f"{value:.{digits}f}" if value < 1e5 else f"{value:.1e}"
    return ", ".join(" / ".join(one(run, key, digits, factor) for run in runs) for key, _, digits, factor in PROGRAMS[name][1])


def lost(runs):
    """Of the activations' gradients: zero, percent."""
    shares = [run["final"]["activation_gradients"] for run in runs if run["final"]]
    shares = [share["zero"] for share in shares if share["values"]]
    return f"{100 * statistics.fmean(shares):.1f}" if shares else ""


def second_half(curves):
    """The losses of the second half, averaged over the curves; none where one of them is not finite."""
    half = [[loss for _, loss in curve[len(curve) // 2:]] for curve in curves]
    return [statistics.fmean(values) for values in zip(*half)] if all(None not in curve for curve in half) else []


def distance(a, b):
    """Root mean square of two curves' differences."""
    return math.sqrt(statistics.fmean((u - v) ** 2 for u, v in zip(a, b))) if a and b else math.inf


def noise(by_setting):
    """How far the scaled setting's curve, averaged over the seeds, lies from f32's; how far f32's seeds lie apart."""
    f32, scaled = ([run["loss"] for run in by_setting[setting]] for setting in (SETTINGS[0], SETTINGS[2]))
    if len(f32) < len(SEEDS) or len(scaled) < len(SEEDS):
        return result_page.NOT_MEASURED
    apart = distance(second_half(f32[:1]), second_half(f32[1:]))
    return f"{distance(second_half(scaled), second_half(f32)):.2g}; {apart:.2g}"


def table(measured):
    header = ["program", "figure", "the paper's: f32 / without / with scale", "f32", "f16, no scale", "f16, scaled", "scale",
              "batches", "scaled from f32; f32's seeds apart", "zero activation gradients, %: no scale, scaled"]
    rows, commands = [], []
    for name, by_setting in measured.items():
        title, shown, paper, scale, batches, _ = PROGRAMS[name]
        f32, unscaled, scaled = by_setting.values()
        rows.append([f"`{name}`: {title}", ", ".join(f[1] for f in shown), paper,
                     *(figures(runs, name) for runs in by_setting.values()), scale, str(batches),
                     noise(by_setting), f"{lost(unscaled)}, {lost(scaled)}"])
        commands += [run["command"] for runs in by_setting.values() for run in runs]
    lines = "\n".join(commands)
    return f"\n{result_page.table(header, rows, numbers=7)}\n\n```text\n{lines}\n```\n\n"


def chart(measured):
    panels = []
    for name, by_setting in measured.items():
        curves = [(color, run["loss"]) for color, runs in zip(loss_panels.COLORS, by_setting.values()) for run in runs]
        panels.append((PROGRAMS[name][0], curves))
    return loss_panels.chart(SETTINGS, panels)


def read(name):
    """{setting: its runs}"""
    runs = result_page.read(path_of(name), "scripts/mixed_precision_results.py --run")["runs"]
    return {setting: [run for run in runs if run["setting"] == setting] for setting in SETTINGS}


def main(arguments):
    usage = "usage: mixed_precision_results.py [--check | --run BUILD [NAME...]]"
    well, check = True, arguments == ["--check"]
    if arguments[:1] == ["--run"]:
        names = arguments[2:] or list(PROGRAMS)
        if len(arguments) < 2 or not set(names) <= set(PROGRAMS):
            raise ValueError(usage)
        well = all([train(pathlib.Path(arguments[1]).resolve(), name) for name in names])
    elif arguments and not check:
        raise ValueError(usage)
    measured = {name: read(name) for name in PROGRAMS}
    wanted = {RESULTS / "mixed_precision.md": result_page.between_marks(RESULTS / "mixed_precision.md", "results", table(measured)),
              RESULTS / "mixed_precision/loss.svg": chart(measured)}
    return 0 if result_page.write(__file__, wanted, check) and well else 1


if __name__ == "__main__":
    result_page.exit_with(__file__, main)

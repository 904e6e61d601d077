#!/usr/bin/env python3
"""Runs the programs of examples/mixed_precision in full, and writes what they reach into docs/results.

mixed_precision_results.py [--check]             writes mixed_precision.md (its table) and mixed_precision/loss.svg from
                                                 mixed_precision/*.json; --check writes nothing and compares
mixed_precision_results.py --run BUILD [NAME...] trains first: every setting of each program, or of those named; some
                                                 minutes each. JSON files: the last line of each record, its command,
                                                 and the loss, averaged over 60 stretches of the run
Exit status: 0 done, or all is as the files say; 1 with --check, it is not, or a run failed; 2 a wrong option, a file is
missing or is not what it should be.
"""
import concurrent.futures
import html
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
BEGIN, END = "<!-- results begin -->\n", "<!-- results end -->\n"
POINTS = 60

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
COLORS = ["#d9730d", "#1d4ed8", "#15803d"]  # io/svg.h's first ones


def settings(name):
    """Label: flags."""
    scale, accumulate = PROGRAMS[name][3:5]
    batches = [] if accumulate == 1 else ["--accumulate", str(accumulate)]
    return {"f32": batches,
            "f16-pseudo, no scale": [*batches, "--precision", "f16-pseudo", "--loss-scale", "1"],
            f"f16-pseudo, scale {scale}": [*batches, "--precision", "f16-pseudo", "--loss-scale", scale]}


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


def train(build, name):
    """Every setting of a program, into its JSON file. Whether all ended well."""
    runs, well = [], True
    program = build / "examples/mixed_precision" / name
    wanted = settings(name)
    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
        trained = pool.map(lambda flags: run(program, flags), wanted.values())
    for (label, flags), (status, lines) in zip(wanted.items(), trained):
        final = lines.pop() if lines and "metrics" in lines[-1] else None
        # 5: the training diverged, which is a result (base/error.h)
        well = well and (status == 0 or status == 5)
        runs.append({"label": label, "command": " ".join([f"build/release/examples/mixed_precision/{name}", *flags]),
                     "diverged": status == 5, "final": final, "loss": averaged(lines, PROGRAMS[name][5])})
        print(f"{name}: {label}: {final['metrics'] if final else f'exit status {status}'}", flush=True)
    path = RESULTS / "mixed_precision" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{\"runs\": [\n" + ",\n".join(map(json.dumps, runs)) + "\n]}\n")
    return well


def figure(run, name):
    if run["diverged"]:
        return "diverges"
    metrics = run["final"]["metrics"]
    values = [(factor * metrics[key], digits) for key, _, digits, factor in PROGRAMS[name][1]]
    return ", ".join(f"{value:.{digits}f}" if value < 1e5 else f"{value:.1e}" for value, digits in values)


def lost(run):
    """Of the activations' gradients: zero, percent."""
    final = run["final"]
    return "" if final is None or final["activation_gradients"]["values"] == 0 else \
        f"{100 * final['activation_gradients']['zero']:.1f}"


def table(measured):
    header = ["program", "figure", "the paper's: f32 / without / with scale", "f32", "f16, no scale", "f16, scaled", "scale", "batches",
              "zero activation gradients, %: no scale, scaled"]
    rows = [header, ["---"] * 3 + ["---:"] * 6]
    for name, runs in measured.items():
        title, figures, paper, scale, batches, _ = PROGRAMS[name]
        rows.append([f"`{name}`: {title}", ", ".join(f[1] for f in figures), paper, *(figure(run, name) for run in runs),
                     scale, str(batches), f"{lost(runs[1])}, {lost(runs[2])}"])
    commands = "\n".join(run["command"] for runs in measured.values() for run in runs)
    return "\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n```text\n{commands}\n```\n\n"


def ticks(low, high):
    """Round positions, about four."""
    raw = (high - low) / 4
    power = 10 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= raw)
    first = math.floor(low / step)
    return [step * k for k in range(first, math.ceil(high / step) + 1)]


def panel(name, runs, left, top, width, height):
    """One program's curves; of the highest values, the first ones, 2 % are cut off."""
    points = [p for run in runs for p in run["loss"] if p[1] is not None]
    values = sorted(p[1] for p in points)
    xs, ys = ticks(0, max(p[0] for p in points)), ticks(min(0, values[0]), values[int(0.98 * (len(values) - 1))])
    x0, x1, y0, y1 = left + 48, left + width - 16, top + height - 34, top + 34
    last = max(p[0] for p in points)

    def x(v):
        return x0 + v / last * (x1 - x0)

    def y(v):
        return y0 + (min(v, ys[-1]) - ys[0]) / (ys[-1] - ys[0]) * (y1 - y0)
    svg = [text(x0, top + 20, PROGRAMS[name][0], size=14, more=' font-weight="bold"')]
    for tick in ys:
        svg.append(f'<line x1="{x0}" y1="{y(tick):.1f}" x2="{x1}" y2="{y(tick):.1f}" stroke="#e5e7eb"/>')
        svg.append(text(x0 - 6, y(tick) + 4, f"{tick:g}", "end", 11))
    for tick in xs:
        if tick <= last:
            svg.append(text(x(tick), y0 + 16, f"{tick:g}", "middle", 11))
    svg.append(text((x0 + x1) / 2, y0 + 30, "steps", "middle", 11, "#6b7280"))
    for run, color in zip(runs, COLORS):
        drawn = [f"{x(step):.1f},{y(loss):.1f}" for step, loss in run["loss"] if loss is not None]
        svg.append(f'<polyline points="{" ".join(drawn)}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    return svg


def text(x, y, content, anchor="start", size=12, color="#1f2937", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{color}"{more}>{html.escape(content)}</text>'


def chart(measured):
    width, height, columns = 400, 250, 2
    total = height * math.ceil(len(measured) / columns) + 30
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * columns}" height="{total}" viewBox="0 0 {width * columns} '
           f'{total}" role="img" aria-label="Training loss" font-family="Helvetica, Arial, \'Liberation Sans\', sans-serif">',
           f'<rect width="{width * columns}" height="{total}" fill="white"/>']
    for i, (label, color) in enumerate(zip(["f32", "f16 storage, no loss scale", "f16 storage, loss scale"], COLORS)):
        left = 48 + 210 * i
        svg.append(f'<line x1="{left}" y1="16" x2="{left + 20}" y2="16" stroke="{color}" stroke-width="3"/>')
        svg.append(text(left + 26, 20, label))
    for i, (name, runs) in enumerate(measured.items()):
        svg += panel(name, runs, width * (i % columns), 30 + height * (i // columns), width, height)
    return "\n".join(svg + ["</svg>"]) + "\n"


def written(check):
    """Writes the page and the picture, or compares. Whether they are as the files say."""
    measured = {name: json.loads((RESULTS / f"mixed_precision/{name}.json").read_text())["runs"] for name in PROGRAMS}
    page = RESULTS / "mixed_precision.md"
    before = page.read_text()
    if before.count(BEGIN) != 1 or before.count(END) != 1:
        raise ValueError(f"{page} needs one line {BEGIN.strip()} and, behind it, one line {END.strip()}")
    head, rest = before.split(BEGIN)
    wanted = {page: head + BEGIN + table(measured) + END + rest.split(END)[1],
              RESULTS / "mixed_precision/loss.svg": chart(measured)}
    stale = [path for path, content in wanted.items() if not path.exists() or path.read_text() != content]
    for path in stale:
        if check:
            print(f"mixed_precision_results: {path} is not what the JSON files say; run scripts/mixed_precision_results.py",
                  file=sys.stderr)
        else:
            path.write_text(wanted[path])
    return not (check and stale)


def main(arguments):
    usage = "usage: mixed_precision_results.py [--check | --run BUILD [NAME...]]"
    if arguments[:1] == ["--run"]:
        names = arguments[2:] or list(PROGRAMS)
        if len(arguments) < 2 or not set(names) <= set(PROGRAMS):
            raise ValueError(usage)
        well = all([train(pathlib.Path(arguments[1]).resolve(), name) for name in names])
        return 0 if written(False) and well else 1
    if arguments not in ([], ["--check"]):
        raise ValueError(usage)
    return 0 if written(arguments == ["--check"]) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ValueError, KeyError, TypeError, OSError) as error:
        print(f"mixed_precision_results: {error}", file=sys.stderr)
        sys.exit(2)

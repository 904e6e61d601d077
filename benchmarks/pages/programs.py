"""The programs of examples/mixed_precision: the second table and the chart of docs/results/mixed_precision.md.

mixed_precision/NAME.json has for every run the last line of its record, its command, and the loss, averaged over 60
stretches of the run.
"""
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import subprocess
import tempfile
import typing

import panels
import result_page
from support import commit, processor_name

POINTS = 60
SEEDS = (1, 2, 3)


class Figure(typing.NamedTuple):
    key: str  # in the record
    name: str
    digits: int
    factor: float  # of the record's value
    allowed: float  # by how much means may differ beyond the spread over f32's seeds


class Program(typing.NamedTuple):
    title: str
    figures: list  # of the table
    paper: str  # the paper's figures
    scale: str  # the loss scale
    loss: str = "loss"  # its key in the record
    needs_scale: bool = False  # claimed: without a scale it does not train as in f32


PROGRAMS = {
    "ssd": Program("Detection (SSD)", [Figure("mean_average_precision", "mAP, %", 1, 100, 0.5)],
                   "76.9 / diverges / 77.1 % (scale 8)", "8"),
    "speech": Program("Speech (GRU, CTC)", [Figure("character_error_rate", "CER, %", 2, 100, 0.5)],
                      "2.20 / 1.99 % (English), 15.82 / 15.01 % (Mandarin); no scale named", "dynamic"),
    "translation": Program("Translation (LSTM, attention)", [Figure("exact_match", "correct sentences, %", 1, 100, 0.5)],
                           "matches with a scale, slightly worse without (figure 4)", "128"),
    "language_model": Program("Language model (LSTM)",
                              [Figure("perplexity", "perplexity", 2, 1, 0.05), Figure("agreement", "agreement, %", 1, 100, 0.5)],
                              "matches with scale 128, diverges without (figure 5)", "128"),
    "dcgan": Program("DCGAN", [Figure("distance", "distance", 3, 1, 0.02)], "comparable; no scale needed", "dynamic",
                     loss="loss_discriminator"),
    "denoise": Program("Denoising (DnCNN)", [Figure("signal_to_noise", "PSNR, dB", 2, 1, 0.1)], "not in the paper", "dynamic",
                       needs_scale=True),
}
# In "storage" the products are computed in f32 (f16-pseudo).
F32, UNSCALED, SCALED, BF16, F16 = SETTINGS = ("f32", "f16 storage, no loss scale", "f16 storage, loss scale", "bf16",
                                               "f16, loss scale")


def flags_of(name):
    """{setting: flags of the program}"""
    scale = PROGRAMS[name].scale
    return {F32: [], UNSCALED: ["--precision", "f16-pseudo", "--loss-scale", "1"],
            SCALED: ["--precision", "f16-pseudo", "--loss-scale", scale], BF16: ["--precision", "bf16"],
            F16: ["--precision", "f16", "--loss-scale", scale]}


def averaged(steps, key):
    """The mean loss of each of POINTS stretches: [(last step of the stretch, mean), ...]"""
    length = max(1, math.ceil(len(steps) / POINTS))
    curve = []
    for begin in range(0, len(steps), length):
        values = [line[key] for line in steps[begin:begin + length]]
        mean = None if None in values else float(f"{sum(values) / len(values):.5g}")
        curve.append([steps[min(begin + length, len(steps)) - 1]["step"], mean])
    return curve


def run(program, flags):
    """Runs one training with one thread: the settings train side by side. Returns (exit status, lines of the record)."""
    with tempfile.TemporaryDirectory() as folder:
        record = pathlib.Path(folder) / "record.jsonl"
        status = subprocess.run([program, *flags, "--json", record], stdout=subprocess.DEVNULL,
                                env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
        return status, [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def path_of(results, name):
    return results / f"mixed_precision/{name}.json"


def save(path, runs):
    order = [(setting, seed) for setting in SETTINGS for seed in SEEDS if (setting, seed) in runs]
    path.parent.mkdir(exist_ok=True)
    path.write_text("{\"runs\": [\n" + ",\n".join(json.dumps(runs[key]) for key in order) + "\n]}\n")


def train_one(results, build, name):
    """Runs the settings and seeds of a program that its JSON file lacks. Returns whether every run succeeded."""
    origin = {"processor": processor_name(), "commit": commit()}
    path = path_of(results, name)
    known = json.loads(path.read_text())["runs"] if path.exists() else []
    runs, succeeded = {(one["setting"], one["seed"]): one for one in known}, True
    wanted = [(setting, seed, [*flags, "--seed", str(seed)]) for setting, flags in flags_of(name).items() for seed in SEEDS
              if (setting, seed) not in runs]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        trained = pool.map(lambda one: run(build / "examples/mixed_precision" / name, one[2]), wanted)
        for (setting, seed, flags), (status, lines) in zip(wanted, trained):
            final = lines.pop() if lines and "metrics" in lines[-1] else None
            print(f"{name}: {setting}, seed {seed}: {final['metrics'] if final else f'exit status {status}'}", flush=True)
            if status not in (0, 5):  # 5: the training diverged, which is a result
                succeeded = False
                continue
            runs[setting, seed] = {
                "setting": setting, "seed": seed, "diverged": status == 5, "final": final,
                "command": " ".join([f"build/release/examples/mixed_precision/{name}", *flags]),
                **origin,
                "loss": averaged(lines, PROGRAMS[name].loss)}
            save(path, runs)
    return succeeded


def train(results, build, names):
    """Runs the programs in `names`. Returns whether every run succeeded."""
    return all([train_one(results, build, name) for name in names])


def value_of(run, figure):
    return figure.factor * run["final"]["metrics"][figure.key]


def figures(runs, name):
    """The figures of a setting's runs, one per seed."""
    if not runs:
        return result_page.NOT_MEASURED

    def one(run, figure):
        if run["diverged"]:
            return "diverges"
        value = value_of(run, figure)
        return f"{value:.{figure.digits}f}" if value < 1e5 else f"{value:.1e}"
    return ", ".join(" / ".join(one(run, figure) for run in runs) for figure in PROGRAMS[name].figures)


def agree(runs, f32, name):
    """Whether no mean differs from f32's by more than the spread over f32's seeds and what is allowed."""
    def holds(figure):
        if any(run["diverged"] for run in [*runs, *f32]):
            return False
        ours, theirs = ([value_of(run, figure) for run in some] for some in (runs, f32))
        return abs(statistics.fmean(ours) - statistics.fmean(theirs)) <= max(theirs) - min(theirs) + figure.allowed
    return all(map(holds, PROGRAMS[name].figures))


def judged(runs, f32, name):
    """figures(), and FAIL where they do not agree with f32's."""
    return figures(runs, name) + result_page.mark(not runs or len(f32) <= 1 or agree(runs, f32, name))


def judged_without_scale(runs, f32, name):
    """figures(), and FAIL where a program that is to need a scale trains without one as in f32."""
    needless = PROGRAMS[name].needs_scale and runs and len(f32) > 1 and agree(runs, f32, name)
    return figures(runs, name) + result_page.mark(not needless)


def share_of(runs, key):
    """The share of the activations' gradients that are `key` (zero, or not zero but so small that f16 loses them), percent."""
    shares = [run["final"]["activation_gradients"] for run in runs if run["final"]]
    shares = [share[key] for share in shares if share["values"]]
    return f"{100 * statistics.fmean(shares):.1f}" if shares else ""


def second_half(curves):
    """The losses of the second half, averaged over the curves; empty if a loss is not finite."""
    half = [[loss for _, loss in curve[len(curve) // 2:]] for curve in curves]
    return [statistics.fmean(values) for values in zip(*half)] if all(None not in curve for curve in half) else []


def distance(a, b):
    """Root mean square of the difference of two curves."""
    return math.sqrt(statistics.fmean((u - v) ** 2 for u, v in zip(a, b))) if a and b else math.inf


def noise(by_setting):
    """The distance between the mean curves of the scaled setting and of f32; the largest between a seed of f32 and the mean
    of its others."""
    f32, scaled = ([run["loss"] for run in by_setting[setting]] for setting in (F32, SCALED))
    if len(f32) < 2 or not scaled:
        return result_page.NOT_MEASURED
    apart = max(distance(second_half([curve]), second_half([*f32[:i], *f32[i + 1:]])) for i, curve in enumerate(f32))
    return f"{distance(second_half(scaled), second_half(f32)):.2g}; {apart:.2g}"


def table(measured):
    header = ["program", "figure", "paper: f32 / no scale / scaled", "f32", "f16 storage, no scale", "f16 storage, scaled", "bf16",
              "f16, scaled", "scale", "distance: scaled to f32; f32 to f32",
              "zero activation gradients, %: no scale, scaled"]
    rows, commands = [], []
    for name, by_setting in measured.items():
        program, f32 = PROGRAMS[name], by_setting[F32]
        cells = [judged(by_setting[setting], f32, name) for setting in (SCALED, BF16, F16)]
        shares = ", ".join(share_of(by_setting[setting], "zero") for setting in (UNSCALED, SCALED)) if f32 \
            else result_page.NOT_MEASURED
        rows.append([f"`{name}`: {program.title}", ", ".join(figure.name for figure in program.figures), program.paper,
                     figures(f32, name), judged_without_scale(by_setting[UNSCALED], f32, name), *cells, program.scale,
                     noise(by_setting), shares])
        commands += [run["command"] for runs in by_setting.values() for run in runs]
    lines = "\n".join(commands)
    return f"\n{result_page.table(header, rows, numbers=8)}\n\n{figure3(measured)}\n\n```text\n{lines}\n```\n\n"


def figure3(measured):
    """The table of the shares of small gradients, from the runs in bf16, whose range is that of f32."""
    rows = [["the paper's SSD, in f32 (figure 3)", "67", "not given"]]
    rows += [[f"`{name}`", *(share_of(by_setting[BF16], key) for key in ("zero", "lost"))] for name, by_setting in measured.items()
             if share_of(by_setting[BF16], "zero")]
    return result_page.table(["activation gradients in the range of f32, %", "zero", "not zero, lost in f16 without a scale"], rows, 2)


def chart(measured):
    charts, drawn = [], (F32, UNSCALED, SCALED)
    for name, by_setting in measured.items():
        curves = [(color, run["loss"]) for color, setting in zip(panels.COLORS, drawn) for run in by_setting[setting]]
        if curves:
            charts.append((PROGRAMS[name].title, curves))
    return panels.chart(drawn, charts)


def read(results, name):
    """{setting: its runs}; none without a file"""
    path = path_of(results, name)
    runs = result_page.read(path, "benchmarks/pages/pages train programs")["runs"] if path.exists() else []
    return {setting: [run for run in runs if run["setting"] == setting] for setting in SETTINGS}


def content(results):
    """(text between the marks of the page, chart of the losses as SVG)"""
    measured = {name: read(results, name) for name in PROGRAMS}
    return table(measured), chart(measured)

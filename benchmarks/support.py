"""The parts that the benchmarks in Python share: interleaved timing, a table, the same table as JSON, the exit status.

They are those of support.h, with the same columns and the same JSON (but for the instruction sets), for opponents that only
Python has.
"""
import argparse
import dataclasses
import gc
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]

# glibc returns large blocks to the kernel at every free, and the page faults of the next block cost more than a layer's
# arithmetic. The C++ benchmarks run both sides on an allocator that retains blocks. These settings, which malloc reads at the
# start of a process, do the same for Python.
RETAINING_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}


def begin_with_retaining_malloc():
    """Starts the program again, with the same arguments, unless malloc already retains large blocks."""
    if any(os.environ.get(name) != value for name, value in RETAINING_MALLOC.items()):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **RETAINING_MALLOC})


class Parser(argparse.ArgumentParser):
    """The option --repeats N. A wrong option ends the program with status 2 and one line."""

    def __init__(self, description, repeats=25):
        super().__init__(description=description, allow_abbrev=False)
        self.add_argument("--repeats", metavar="N", type=positive, default=repeats, help=f"timed runs of each side [{repeats}]")

    def library(self, build, name="libpalimpsest_ops.so"):
        """The path of a library in the folder of --build. Ends the program if it is not there."""
        path = pathlib.Path(build) / name
        if not path.is_file():
            self.error(f"--build needs a folder with {name}, got '{build}'")
        return path.resolve()

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")


class Options(Parser):
    """The options of a benchmark that ends with a table: --json PATH, --check, --repeats N."""

    def __init__(self, description, repeats=25):
        super().__init__(description, repeats)
        self.add_argument("--json", metavar="PATH", help="also write the table to this JSON file")
        self.add_argument("--check", action="store_true", help="exit status 1 if a claim fails")


def positive(text):
    """A whole number above 0, for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a whole number above 0 is needed, got '{text}'")
    return int(text)


@dataclasses.dataclass
class Spread:
    """Median and quartiles of some runs."""
    median: float
    low: float
    high: float
    runs: int  # 0: a quantity without spread

    def text(self, unit):
        form = ".1e" if 0 < self.median < 0.01 else ".2f"
        return f"{self.median:{form}} ({self.low:{form}}-{self.high:{form}}) {unit}"


def spread_of(values):
    values = sorted(values)

    def quantile(q):  # linear between neighbours, as in support.cpp
        position = q * (len(values) - 1)
        below = int(position)
        above = min(below + 1, len(values) - 1)
        return values[below] + (position - below) * (values[above] - values[below])

    return Spread(quantile(0.5), quantile(0.25), quantile(0.75), len(values))


def exactly(value):
    """A quantity without spread, such as bytes."""
    return Spread(value, value, value, 0)


def megabytes(count):
    return exactly(count / 1e6)


def milliseconds_of(work):
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def interleave(sides, repeats, warm_up=3, before_round=lambda: None):
    """Runs the sides (functions that return the measured time) in turn, A B C  B C A  C A B ..., so that a slow moment of the
    machine hits all sides, and none always follows the same one. The first `warm_up` rounds do not count. Returns one Spread
    per side."""
    values = [[] for _ in sides]
    gc.collect()
    gc.disable()
    try:
        for number in range(-warm_up, repeats):
            before_round()
            for k in range(len(sides)):
                i = (k + number + warm_up) % len(sides)
                value = sides[i]()
                if number >= 0:
                    values[i].append(value)
    finally:
        gc.enable()
    return [spread_of(of_side) for of_side in values]


@dataclasses.dataclass
class Row:
    """One claim: `measured` is at most `limit` times `opponent`. A row without a limit is a control, which claims
    nothing. A row with `not_measured`, a reason, has no figures."""
    claim: str
    opponent_name: str
    unit: str = "ms"
    opponent: Spread | None = None
    measured: Spread | None = None
    limit: float | None = None
    not_measured: str = ""

    @property
    def ratio(self):
        return None if self.not_measured else self.measured.median / self.opponent.median

    @property
    def holds(self):
        """None if nothing is claimed or nothing was measured."""
        return None if self.not_measured or self.limit is None else self.ratio <= self.limit

    def text(self):
        if self.not_measured:
            return f"{self.claim:<34} {self.opponent_name}: not measured: {self.not_measured}"
        opponent = f"{self.opponent_name} {self.opponent.text(self.unit)}"
        limit = "-" if self.limit is None else f"{self.limit:.2f}"
        verdict = {None: "control", True: "pass", False: "FAIL"}[self.holds]
        measured = self.measured.text(self.unit)
        return f"{self.claim:<34} {opponent:<52} {measured:<26} {self.ratio:6.3f} {limit:>6}  {verdict}"

    def json(self):
        result = {"claim": self.claim, "opponent_name": self.opponent_name, "unit": self.unit,
                  "opponent": self.opponent and dataclasses.asdict(self.opponent),
                  "measured": self.measured and dataclasses.asdict(self.measured),
                  "ratio": self.ratio, "limit": self.limit, "pass": self.holds}
        return {**result, "not_measured": self.not_measured} if self.not_measured else result


def processor_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(": ", 1)[1]
    return "unknown"


def commit():
    """The commit of the sources, "+" if they were changed after it; "unknown" outside of a repository. PALIMPSEST_COMMIT
    names it for a copy elsewhere."""
    if named := os.environ.get("PALIMPSEST_COMMIT"):
        return named
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    head = git("rev-parse", "--short=10", "HEAD")
    if head.returncode != 0:
        return "unknown"
    return head.stdout.strip() + ("+" if git("status", "--porcelain", "--", "palimpsest", "benchmarks", "python").stdout else "")


def machine():
    import torch  # here: a benchmark that runs the programs in C++ needs no torch
    return {"processor": processor_name(), "threads": torch.get_num_threads(), "libtorch": torch.__version__.split("+")[0],
            "commit": commit()}


def replace_file(path, text):
    """Writes a file whole: a reader, or the next run after a kill or a full disk, finds the old text or the new one."""
    path = pathlib.Path(path)
    part = path.with_name(f"{path.name}.part")
    try:
        with open(part, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def finish(table, options):
    """Writes a table as JSON, if --json asks for it. Returns the exit status of its program, as Report.finish does."""
    if options.json:
        try:
            replace_file(options.json, json.dumps(table, indent=2) + "\n")
        except OSError as error:
            print(f"{table['benchmark']}: cannot write {options.json}: {error.strerror}", file=sys.stderr)
            return 1
    return 1 if options.check and not table["pass"] else 0


def measured_in(path):
    """[(claim, opponent)] of the rows that have figures in a JSON file of a benchmark; none if there is no such file."""
    try:
        rows = json.loads(pathlib.Path(path).read_text())["rows"]
        return [(row["claim"], row["opponent_name"]) for row in rows if row["measured"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


class Report:
    """A table that grows row by row, and the same as JSON: machine (processor, threads, libtorch), `facts` that all rows
    share, rows, pass."""

    def __init__(self, name, options, **facts):
        self.name, self.options, self.facts, self.rows = name, options, facts, []
        self.machine = machine()
        print(f"{name}: {self.machine['processor']}, {self.machine['threads']} threads, "
              f"libtorch {self.machine['libtorch']}")
        print(f"{'claim':<34} {'opponent':<52} {'measured':<26} {'ratio':>6} {'limit':>6}", flush=True)

    def add(self, row):
        if row.not_measured:
            self.keep_figures_of(row)
        self.rows.append(row)
        print(row.text(), flush=True)

    def keep_figures_of(self, row):
        """Ends the program, with status 1, if the file of --json has figures that a row which is not measured would
        replace: against the same opponent, of a claim that begins with the same word (a network, a shape)."""
        def replaces(claim, opponent):
            return opponent == row.opponent_name and claim.split()[0] == row.claim.split()[0]
        kept = [claim for claim, opponent in measured_in(self.options.json or "") if replaces(claim, opponent)]
        if kept:
            print(f"{self.name}: {self.options.json} has figures for '{kept[0]}' against {row.opponent_name}, which cannot be "
                  f"measured here: {row.not_measured}; or write another file with --json", file=sys.stderr)
            sys.exit(1)

    def finish(self):
        """Prints whether every claim holds and writes the JSON file. Returns the exit status of the program: 1 if a claim
        failed and --check was given, or if the file cannot be written; else 0."""
        verdicts = [row.holds for row in self.rows]
        passed = False not in verdicts
        unmeasured = sum(bool(row.not_measured) for row in self.rows)
        print(f"{self.name}: {'every measured claim holds' if passed else 'a claim FAILED'}"
              + (f", {unmeasured} not measured" if unmeasured else ""))
        table = {"benchmark": self.name, **self.machine, "repeats": self.options.repeats, **self.facts,
                "rows": [row.json() for row in self.rows], "pass": passed}
        return finish(table, self.options)

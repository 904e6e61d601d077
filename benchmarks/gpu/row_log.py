"""Rows of a check on a GPU: one JSON line each, written as soon as the row is known, so that a process that is killed
loses nothing; and the time that is left for more of them.

A line has `type`, and `stage` if scripts/gpu_check started the process:
  run   a run begins: `device`, `library` (a digest of the libraries that are checked), `budget`
  plan  `piece` and `works`: the units that a process is about to do, the most important first
  withdraw  what was said before of `work` of `piece` counts no more
  row   `piece`, `work`, `row` (its name), `outcome`, `reason` where the outcome needs one, `library`, `at` (seconds since
        1970, the same for all rows of a unit), and the figures of a measurement: `claim`, `opponent_name`, `unit`,
        `opponent`, `measured`, `ratio`, `limit`, `pass`, `seconds`, `estimates`

A unit of work has one or more rows, which are written together: a unit is done or it left no row.
"""
import hashlib
import json
import os
import pathlib
import time

STARTED = time.monotonic()  # import this module before torch: the seconds of that import count

PASSED, FAILED, MEASURED, NOT_RUN = "passed", "failed", "measured", "not run"
OUTCOMES = (PASSED, FAILED, MEASURED, NOT_RUN)
NO_TIME = "it did not fit in the budget"
STAGE = "GPU_CHECK_STAGE"  # the environment variable that tells a process the stage that it works for

# Exit status of gpu_check and of what it starts.
ALL_RAN, SOMETHING_FAILED, WRONG_USAGE, SOMETHING_LEFT = 0, 1, 2, 3
# Of a child: the device is of no use to this process any more, and another process can go on.
DEVICE_LOST = 75


class Budget:
    """The seconds that are left of `seconds`, which began when this process did; None: any number."""

    def __init__(self, seconds=None, started=STARTED):
        self.end = None if seconds is None else started + seconds

    def left(self):
        return float("inf") if self.end is None else self.end - time.monotonic()

    def fits(self, seconds):
        return seconds <= self.left()


def digest(file):
    """Twelve digits that tell one build of a library or program from another; "" if there is none."""
    path = pathlib.Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else ""


class RowLog:
    """The file of lines. Several processes may append to it. `path` None: the rows are kept in memory only. Rows of other
    builds than `library` and `others` do not count."""

    def __init__(self, path=None, library="", others=()):
        self.path, self.library, self.others, self.rows = path and pathlib.Path(path), library, set(others), []
        if self.path:
            self.mend()

    def mend(self):
        """Removes a last line that a full disk or a crash of the machine has cut."""
        if self.path.exists():
            data = self.path.read_bytes()
            if data and not data.endswith(b"\n"):
                os.truncate(self.path, data.rfind(b"\n") + 1)

    def write(self, *lines):
        """Appends the lines by one call of the system, so that a signal finds all of them in the file or none."""
        if stage := os.environ.get(STAGE):
            lines = [{**line, "stage": stage} for line in lines]
        self.rows += lines
        if self.path:
            data = "".join(json.dumps(line) + "\n" for line in lines).encode()
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                written = os.write(file, data)
                if written != len(data):
                    raise OSError(f"'{self.path}' took {written} of {len(data)} bytes: the disk is full")
                os.fsync(file)
            finally:
                os.close(file)

    def begin(self, device, budget):
        self.write({"type": "run", "device": device, "library": self.library, "budget": budget,
                    "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})

    def plan(self, piece, works):
        self.write({"type": "plan", "piece": piece, "works": list(works)})

    def add(self, piece, work, *rows):
        """Writes the rows of one unit of work; each has at least `row` and `outcome`."""
        at = time.time()
        self.write(*({"type": "row", "piece": piece, "work": work, **row, "library": self.library, "at": at}
                     for row in rows))

    def lines(self):
        """All lines, those of earlier runs and other processes too. Raises ValueError with the number of a line that is
        none of ours."""
        if not self.path:
            return list(self.rows)
        lines = []
        for number, text in enumerate(self.path.read_text().splitlines() if self.path.exists() else (), 1):
            try:
                line = json.loads(text)
                if line["type"] == "row" and line["outcome"] not in OUTCOMES:
                    raise KeyError(line["outcome"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path}:{number} is no row of gpu_check: {text[:60]}") from error
            lines.append(line)
        return lines

    def latest(self):
        """{(piece, work): lines}: the last rows of every unit of work on these builds."""
        found = {}
        for line in self.lines():
            if line["type"] == "withdraw":
                found.pop((line["piece"], line["work"]), None)
            elif line["type"] == "row" and line["library"] in {self.library, *self.others}:
                rows = found.setdefault((line["piece"], line["work"]), [])
                if rows and rows[0]["at"] != line["at"]:
                    rows.clear()
                rows.append(line)
        return found

    def done(self):
        """{(piece, work)}: the units that need not run again. One that was not run is tried again."""
        return {unit for unit, rows in self.latest().items() if any(row["outcome"] != NOT_RUN for row in rows)}

    def withdraw(self, piece, work):
        self.write({"type": "withdraw", "piece": piece, "work": work})


def not_run(name, reason):
    return {"row": name, "outcome": NOT_RUN, "reason": reason}


def exit_status(rows):
    """Of a set of rows: a failure counts more than a row that found no time. A row that cannot run here, and says why, is
    no failure."""
    rows = list(rows)
    if any(row["outcome"] == FAILED for row in rows):
        return SOMETHING_FAILED
    return SOMETHING_LEFT if any(row.get("reason", "").startswith(NO_TIME) for row in rows) else ALL_RAN


def without_time(name, seconds, budget):
    return not_run(name, f"{NO_TIME}: {max(0, budget.left()):.0f} s are left, it takes about {seconds:.0f} s")


def carry_out(works, do, log, budget, say):
    """Does the units in their order, as far as the budget allows, and writes their rows; those that the log has already are
    left out. A unit has `piece`, `name` and `seconds`; `do(unit)` returns its rows, or raises DeviceLost with them. Returns
    the exit status."""
    done = log.done()
    works = [work for work in works if (work.piece, work.name) not in done]
    for piece in dict.fromkeys(work.piece for work in works):
        log.plan(piece, [work.name for work in works if work.piece == piece])
    written = []
    for work in works:
        began, lost = time.monotonic(), None
        if not budget.fits(work.seconds):
            rows = [without_time(work.name, work.seconds, budget)]
        else:
            try:
                rows = do(work)
            except DeviceLost as error:
                rows, lost = error.rows, error
            seconds = round(time.monotonic() - began, 2)
            rows = [{**row, "seconds": seconds} for row in rows]
        log.add(work.piece, work.name, *rows)
        for row in rows:
            written.append(row)
            say(text_of({"piece": work.piece, **row}))
        if lost:
            return DEVICE_LOST
    return exit_status(written)


class DeviceLost(Exception):
    """The device is of no use to this process any more; `rows`: those of the unit that met the error."""

    def __init__(self, rows):
        super().__init__(rows)
        self.rows = rows


def text_of(row):
    """One line for people."""
    figures = ""
    if row.get("measured"):
        figures = f"{row['measured']['median']:.3f} {row['unit']}"
        if row.get("ratio") is not None:
            limit = "" if row.get("limit") is None else f", limit {row['limit']:.2f}"
            figures += f", {row['ratio']:.3f} of {row['opponent_name']}{limit}"
        for estimate in row.get("estimates", ()):
            figures += f"; {estimate['ratio']:.2f} of the estimate {estimate['of']}"
    reason = row.get("reason", "")
    return f"{row['outcome']:<8} {row['piece']:<9} {row['row']}" + "".join(f": {part}" for part in (figures, reason) if part)

"""Runs the stages of a check one after another, none of them longer than the budget allows, and says of everything that was
not run why."""
import ctypes
import dataclasses
import json
import os
import re
import signal
import subprocess
import time

import support
from gpu import row_log

GRACE = 5  # seconds between the end of a stage's own budget and its end by force
PR_SET_PDEATHSIG = 1


@dataclasses.dataclass
class Stage:
    """A command. If it `writes_rows`, it takes --rows and --budget and appends its rows itself; otherwise its exit status is
    its row: `verdict(status, output)` returns (outcome, reason), and the status of a stage that was stopped is None."""
    piece: str
    name: str
    command: list
    seconds: float  # it takes about so long; it is not begun with less than `least`
    least: float
    limit: float = float("inf")
    writes_rows: bool = True
    verdict: object = None
    environment: dict = dataclasses.field(default_factory=dict)
    needed: bool = False  # the other stages need it
    beside: bool = False  # it runs at the same time as the stage before it: nothing is timed there
    units: list = dataclasses.field(default_factory=list)  # (piece, name, seconds), where they are known before


def groups_of(stages):
    """Lists of the stages that run at the same time."""
    groups = []
    for stage in stages:
        if stage.beside and groups:
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def die_with_parent():
    """In the child: a driver that is killed leaves no process behind on the GPU."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Running:
    """A stage at work. Its output goes to a file beside the rows."""

    def __init__(self, stage, rows, limit):
        self.stage, self.rows, self.end = stage, rows, time.monotonic() + limit
        self.path = rows.parent / f"{re.sub('[^a-z0-9]+', '_', stage.name.lower())}.log"
        self.began, self.output_begins = time.monotonic(), self.path.stat().st_size if self.path.exists() else 0
        self.process = None
        self.start()

    def left(self):
        return self.end - time.monotonic()

    def start(self):
        command = [str(part) for part in self.stage.command]
        if self.stage.writes_rows:
            command += ["--rows", str(self.rows), "--budget", str(max(1, int(self.left() - GRACE)))]
        environment = {**os.environ, **self.stage.environment, row_log.STAGE: self.stage.name}
        with open(self.path, "ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            env=environment, start_new_session=True, preexec_fn=die_with_parent)

    def ended(self):
        return self.process.poll() is not None or self.left() <= 0

    def stop(self):
        """Ends the process with all that it has started. Returns its exit status, None if it had none yet."""
        status = self.process.poll()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        return status

    def output(self):
        return self.path.read_bytes()[self.output_begins:].decode(errors="replace")


class Driver:
    """`log`: the rows, in a folder that also gets the output of each stage. `say`: prints a line."""

    def __init__(self, log, budget, say=lambda line: print(line, flush=True)):
        self.log, self.budget, self.say = log, budget, say

    def run(self, stages):
        """Returns whether every needed stage passed: after one that did not, no other is begun."""
        groups = groups_of(stages)
        for number, group in enumerate(groups):
            passed = self.together(group)
            if failed := [stage for stage in group if stage.needed and not passed[stage.name]]:
                self.leave([stage for each in groups[number + 1:] for stage in each], f"{failed[0].name} did not pass")
                return False
        return True

    def leave(self, stages, reason):
        """Says that stages are not run."""
        for stage in stages:
            self.row(stage.piece, stage.name, row_log.not_run(stage.name, reason))

    def cannot(self, piece, reason):
        """Says that a piece cannot run here."""
        self.row(piece, piece, row_log.not_run(piece, reason))

    def row(self, piece, work, row):
        self.log.add(piece, work, row)
        self.say(row_log.text_of({"piece": piece, **row}))

    def together(self, group):
        """Runs stages at the same time. Returns {name: whether it passed}."""
        passed, running = {}, []
        first = len(self.log.lines())
        try:
            for stage in group:
                if self.begins(stage, passed):
                    limit = min(self.budget.left(), stage.limit)
                    self.say(f"== {stage.name}: at most {limit:.0f} s")
                    running.append(Running(stage, self.log.path, limit))
            shown = self.size()
            while running:
                time.sleep(0.1)
                shown = self.show(shown)
                for each in [each for each in running if each.ended()]:
                    status = each.stop()
                    shown = self.show(shown)
                    if not self.starts_again(each, status, first):
                        running.remove(each)
                        passed[each.stage.name] = self.close(each, status, first)
                        shown = self.size()
        finally:  # a signal
            for each in running:
                each.stop()
        return passed

    def begins(self, stage, passed):
        """Whether a stage has something to do and the time for it."""
        unit = (stage.piece, stage.name)
        if self.budget.left() < stage.least:
            self.row(*unit, row_log.without_time(stage.name, stage.seconds, self.budget))
            passed[stage.name] = False
        elif not (stage.needed or stage.writes_rows) and unit in self.log.done():
            passed[stage.name] = True
        else:
            if unit in self.log.latest():
                self.log.withdraw(*unit)
            return True
        return False

    def starts_again(self, running, status, first):
        """After an error of CUDA another process goes on, if this one has brought the rows forward."""
        rows = len(self.lines_of(running.stage, first))
        if status == row_log.DEVICE_LOST and rows > getattr(running, "rows_before", 0) and running.left() > GRACE:
            running.rows_before = rows
            running.start()
            return True
        return False

    def lines_of(self, stage, first):
        return [line for line in self.log.lines()[first:] if line.get("stage") == stage.name]

    def close(self, running, status, first):
        """Writes the row of a stage, or says what one that writes its own has left out and why it ended, if not by itself.
        Returns whether it passed."""
        stage = running.stage
        if not stage.writes_rows:
            outcome, reason = stage.verdict(status, running.output())
            self.row(stage.piece, stage.name, {"row": stage.name, "outcome": outcome,
                                               "seconds": round(time.monotonic() - running.began, 2),
                                               **({"reason": reason} if reason else {})})
            return outcome == row_log.PASSED
        lines = self.lines_of(stage, first)
        said = {(line["piece"], line["work"]) for line in lines if line["type"] == "row"}
        planned = [(line["piece"], work) for line in lines if line["type"] == "plan" for work in line["works"]]
        missing = [unit for unit in dict.fromkeys(planned) if unit not in said]
        stopped = status is None
        why = (f"{row_log.NO_TIME}: {stage.name} was stopped" if stopped else
               f"{stage.name} ended before with exit status {status}")
        for piece, work in missing:
            self.row(piece, work, row_log.not_run(work, why))
        if stopped and not lines:
            self.row(stage.piece, stage.name, row_log.not_run(stage.name, f"{why} before its first row"))
        known = (row_log.ALL_RAN, row_log.SOMETHING_FAILED, row_log.SOMETHING_LEFT, row_log.DEVICE_LOST)
        silent = not said and status != row_log.ALL_RAN
        if not stopped and (status not in known or silent or missing):
            # A process that went away leaves no claim unspoken.
            last = (running.output().strip().splitlines() or ["it says nothing"])[-1]
            self.row(stage.piece, stage.name, {"row": stage.name, "outcome": row_log.FAILED,
                                               "reason": f"exit status {status}: {last}"})
            return False
        return status == row_log.ALL_RAN

    def size(self):
        return self.log.path.stat().st_size if self.log.path.exists() else 0

    def show(self, shown):
        """Prints the rows that lie behind the first `shown` bytes. Returns the bytes up to the last one."""
        if self.size() <= shown:
            return shown
        with open(self.log.path, "rb") as file:
            file.seek(shown)
            data = file.read()
        whole = data[:data.rfind(b"\n") + 1]
        for line in map(json.loads, whole.splitlines()):
            if line["type"] == "row":
                self.say(row_log.text_of(line))
        return shown + len(whole)


def summary(log, device, budget):
    """What the log says in the end, as one object; a row appears once."""
    rows = [row for unit in log.latest().values() for row in unit]
    left = [row for row in rows if row["outcome"] == row_log.NOT_RUN]
    estimates = [{"row": row["row"], "measured": row["measured"]["median"], "unit": row["unit"], **estimate}
                 for row in rows for estimate in row.get("estimates", ())]
    return {
        "device": device, "budget": budget, "commit": support.commit(), "rows": rows,
        "failed": [row["row"] for row in rows if row["outcome"] == row_log.FAILED],
        "did_not_fit": [row["row"] for row in left if row["reason"].startswith(row_log.NO_TIME)],
        "not_run": {row["row"]: row["reason"] for row in left if not row["reason"].startswith(row_log.NO_TIME)},
        "wrong_estimates": [each for each in estimates if each["wrong"]],
        "pass": not any(row["outcome"] == row_log.FAILED for row in rows),
    }


def text_of_summary(found):
    """The last lines of a check."""
    yield f"gpu_check: {len(found['rows'])} rows, {len(found['failed'])} failed, {len(found['did_not_fit'])} did not fit, " \
          f"{len(found['not_run'])} not run"
    for row in found["failed"]:
        yield f"  failed: {row}"
    for row in found["did_not_fit"]:
        yield f"  did not fit: {row}"
    for row, why in found["not_run"].items():
        yield f"  not run: {row}: {why}"
    for each in found["wrong_estimates"]:
        yield (f"  a wrong estimate {each['of']}: {each['row']}: {each['measured']:.3g} {each['unit']}, "
               f"{each['ratio']:.2f} of what was expected")

"""A plugin of pytest (-p gpu_checks.pytest_rows): a row per test, written when the test ends (gpu/row_log.py), and no test
begins when the budget is spent. Tests that the file of rows has already do not run again."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
from gpu import row_log  # noqa: E402

import pytest  # noqa: E402

PIECE = "tests"
INTERNAL_ERROR = 70  # pytest's own 3 means that something was left out


def pytest_addoption(parser):
    parser.addoption("--rows", help="append a row per test to this file")
    parser.addoption("--budget", type=float, help="seconds after which no test begins")
    parser.addoption("--share", default="1/1", help="NUMBER/COUNT: every COUNT-th test, from the NUMBER-th on")
    parser.addoption("--without-cudnn", action="store_true", help="libtorch takes kernels of its own")


def pytest_configure(config):
    if config.getoption("--without-cudnn"):
        import torch
        torch.backends.cudnn.enabled = False
    if config.getoption("--rows"):
        library = pathlib.Path(os.environ["PALIMPSEST_BUILD_DIR"]) / "libpalimpsest_ops.so"
        log = row_log.RowLog(config.getoption("--rows"), row_log.digest(library))
        share = tuple(map(int, config.getoption("--share").split("/")))
        config.pluginmanager.register(Rows(log, row_log.Budget(config.getoption("--budget")), *share), "rows")


def reason_of(report):
    """The line of a report that says why."""
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    of_error = [line.removeprefix("E").strip() for line in text.splitlines() if line.startswith("E ")]
    return of_error[-1] if of_error else (text.strip().splitlines() or ["it says nothing"])[0]


class Rows:
    def __init__(self, log, budget, number, count):
        self.log, self.budget, self.number, self.count = log, budget, number, count
        self.reports, self.written, self.left_out = [], [], 0

    def write(self, name, row):
        self.log.add(PIECE, name, {"row": name, **row})
        self.written.append(row)

    @pytest.hookimpl(trylast=True)  # after -k
    def pytest_collection_modifyitems(self, config, items):
        done = self.log.done()
        # By their order in the files: the same share in a run that goes on with another's rows.
        kept = [item for item in items[self.number - 1::self.count] if (PIECE, item.nodeid) not in done]
        self.left_out = len(items) - len(kept)
        if self.left_out:
            config.hook.pytest_deselected(items=[item for item in items if item not in kept])
            items[:] = kept
        self.log.plan(PIECE, [item.nodeid for item in items])

    def pytest_collectreport(self, report):
        if report.failed:
            self.write(report.nodeid, {"outcome": row_log.FAILED, "reason": reason_of(report)})

    def pytest_runtest_protocol(self, item):
        if self.budget.left() <= 0:
            self.write(item.nodeid, {"outcome": row_log.NOT_RUN, "reason": row_log.NO_TIME})
            return True  # the test has been dealt with
        self.reports = []
        return None

    def pytest_runtest_logreport(self, report):
        self.reports.append(report)
        if report.when != "teardown":
            return
        failed, skipped = ([r for r in self.reports if getattr(r, which)] for which in ("failed", "skipped"))
        decides = (failed or skipped or [None])[0]
        outcome = row_log.FAILED if failed else row_log.NOT_RUN if skipped else row_log.PASSED
        self.write(report.nodeid, {"outcome": outcome, "seconds": round(sum(r.duration for r in self.reports), 2),
                                   **({"reason": reason_of(decides)} if decides else {})})

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == 3:
            session.exitstatus = INTERNAL_ERROR
        elif exitstatus in (0, 1) or (exitstatus == 5 and (self.written or self.left_out)):
            nothing_ran = self.written and all(row["outcome"] == row_log.NOT_RUN for row in self.written)
            status = row_log.exit_status(self.written)
            # Where every test says that it cannot run (no CUDA in the build), nothing was tested.
            session.exitstatus = row_log.SOMETHING_FAILED if nothing_ran and status == row_log.ALL_RAN else status

"""The driver of scripts/gpu_check with stages that only take time: the budget bounds the whole, what did not fit is named,
and a run that is killed loses no row. No GPU and no torch."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]
from gpu import row_log  # noqa: E402
from gpu_checks import driver  # noqa: E402
from gpu_checks.driver import Stage  # noqa: E402

# Units that take as long as their names say; "12!" fails, "12?" loses the device, "12x" ends the process.
CHILD = f"""
import sys; sys.path.insert(0, {str(ROOT / "benchmarks")!r})
from gpu import row_log
import argparse, os, time, types
parser = argparse.ArgumentParser()
for name in ("--rows", "--piece", "--units"): parser.add_argument(name)
parser.add_argument("--budget", type=float)
parser.add_argument("--expected", type=float)
o = parser.parse_args()

def do(work):
    time.sleep(float(work.name.split()[0].rstrip("!?x")) / 100)
    if "x" in work.name: os._exit(9)
    row = {{"row": work.name, "outcome": "failed" if work.name[-1] in "!?" else "measured"}}
    if work.name.endswith("?"): raise row_log.DeviceLost([row])
    return [row]

works = [types.SimpleNamespace(piece=o.piece, name=name, seconds=o.expected or float(name.split()[0].rstrip("!?x")) / 100)
         for name in o.units.split(",")]
log = row_log.RowLog(o.rows, "this build")
sys.exit(row_log.carry_out(works, do, log, row_log.Budget(o.budget), print))
"""


def rows_stage(name, units, piece="layers", least=0.0, expected=None, **options):
    command = [sys.executable, "-c", CHILD, "--piece", piece, "--units", units]
    return Stage(piece, name, command + (["--expected", str(expected)] if expected else []), 1, least, **options)


def plain_stage(name, seconds, status=0, **options):
    def verdict(status, output):
        if status is None:
            return row_log.FAILED, "it was stopped"
        return (row_log.PASSED, "") if status == 0 else (row_log.FAILED, output.strip())

    command = [sys.executable, "-c", f"import sys, time; time.sleep({seconds}); print('said'); sys.exit({status})"]
    return Stage("build", name, command, seconds, 0, writes_rows=False, verdict=verdict, **options)


@pytest.fixture
def check(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GRACE", 0.3)
    said = []

    def run(stages, budget=60, library="this build"):
        log = row_log.RowLog(tmp_path / "rows.jsonl", library)
        began = time.monotonic()
        passed = driver.Driver(log, row_log.Budget(budget, began), said.append).run(stages)
        found = driver.summary(log, "a device", budget)
        return passed, found, time.monotonic() - began

    run.said, run.path = said, tmp_path / "rows.jsonl"
    return run


def outcomes(found):
    return {row["row"]: row["outcome"] for row in found["rows"]}


def test_all_rows_are_there_and_the_status_is_0(check):
    passed, found, _ = check([plain_stage("build", 0, needed=True), rows_stage("first", "1,2"), rows_stage("second", "3")])
    assert passed and found["pass"]
    assert outcomes(found) == {"build": "passed", "1": "measured", "2": "measured", "3": "measured"}
    assert row_log.exit_status(found["rows"]) == 0
    assert [line for line in check.said if line.startswith("measured")] == [f"measured layers    {n}" for n in "123"]


def test_the_commit_of_the_sources_is_told_or_named(check, monkeypatch):
    _, found, _ = check([plain_stage("build", 0)])
    assert found["commit"]
    monkeypatch.setenv("PALIMPSEST_COMMIT", "abcdef0123")
    assert driver.summary(row_log.RowLog(None, "library"), "a GPU", 1)["commit"] == "abcdef0123"


def test_the_budget_bounds_the_whole_and_what_did_not_fit_is_named(check):
    # A stage that takes nine times as long as it says. The budget leaves Python seconds to start.
    stages = [rows_stage("first", "10,20"), rows_stage("slow", "900 a,900 b", expected=1), rows_stage("never", "100", least=8)]
    _, found, seconds = check(stages, budget=8)
    assert seconds < 8.5
    assert outcomes(found) == {"10": "measured", "20": "measured", "900 a": "not run", "900 b": "not run", "never": "not run"}
    assert set(found["did_not_fit"]) == {"900 a", "900 b", "never"} and found["not_run"] == {}
    assert row_log.exit_status(found["rows"]) == 3
    reasons = {row["row"]: row.get("reason", "") for row in found["rows"]}
    assert reasons["900 a"] == "it did not fit in the budget: slow was stopped"
    assert reasons["never"].startswith("it did not fit in the budget: ")


def test_a_unit_that_would_take_longer_than_what_is_left_is_named_and_a_shorter_one_follows(check):
    _, found, seconds = check([rows_stage("first", "10,9000,20")], budget=5)
    assert outcomes(found) == {"10": "measured", "9000": "not run", "20": "measured"} and seconds < 5
    assert "it takes about 90 s" in {row["row"]: row for row in found["rows"]}["9000"]["reason"]


def test_a_stage_has_no_more_than_its_limit(check):
    _, found, seconds = check([rows_stage("slow", "1,600", expected=0.1, limit=1.5), rows_stage("next", "2")])
    assert outcomes(found) == {"1": "measured", "600": "not run", "2": "measured"} and seconds < 4


def test_stages_beside_each_other_take_the_time_of_one(check):
    stages = [rows_stage(f"share {i}", f"100 {i}", beside=i > 0) for i in range(4)] + [plain_stage("tool", 1, beside=True)]
    _, found, seconds = check(stages)
    assert set(outcomes(found)) == {"100 0", "100 1", "100 2", "100 3", "tool"} and found["pass"]
    assert seconds < 4


def test_after_a_build_that_failed_nothing_else_is_begun(check):
    passed, found, _ = check([plain_stage("build", 0, 7, needed=True), rows_stage("first", "1")])
    assert not passed and not found["pass"]
    assert outcomes(found) == {"build": "failed", "first": "not run"}
    assert found["not_run"] == {"first": "build did not pass"} and found["did_not_fit"] == []
    assert row_log.exit_status(found["rows"]) == 1


def test_a_failed_row_is_the_exit_status_and_the_other_rows_follow(check):
    _, found, _ = check([rows_stage("first", "1!,2"), rows_stage("second", "3")])
    assert found["failed"] == ["1!"] and outcomes(found)["3"] == "measured"
    assert row_log.exit_status(found["rows"]) == 1


def test_after_a_lost_device_another_process_goes_on(check):
    _, found, _ = check([rows_stage("first", "1,2?,3,4?,5")])
    assert outcomes(found) == {"1": "measured", "2?": "failed", "3": "measured", "4?": "failed", "5": "measured"}


def test_a_process_that_goes_away_is_a_failure_and_its_rows_are_named(check):
    _, found, _ = check([rows_stage("first", "1,2x,3"), rows_stage("second", "4")])
    assert outcomes(found) == {"1": "measured", "2x": "not run", "3": "not run", "first": "failed", "4": "measured"}
    assert found["not_run"]["3"] == "first ended before with exit status 9" and found["failed"] == ["first"]


def test_a_wrong_option_of_a_stage_is_a_failure_with_its_last_line(check):
    stage = rows_stage("first", "1")
    stage.command.append("--unknown")
    _, found, _ = check([stage])
    assert found["failed"] == ["first"] and "unrecognized arguments: --unknown" in found["rows"][0]["reason"]


def test_a_later_run_goes_on_where_one_was_cut(check):
    stages = [rows_stage("first", "10,20"), rows_stage("slow", "30,400,50", expected=0.1), rows_stage("last", "60", least=1)]
    _, found, _ = check(stages, budget=3)
    assert set(found["did_not_fit"]) == {"400", "50", "last"}
    stages[1] = rows_stage("slow", "30,400,50")
    _, found, _ = check(stages)
    assert set(outcomes(found).values()) == {"measured"} and set(outcomes(found)) == {"10", "20", "30", "400", "50", "60"}
    assert row_log.exit_status(found["rows"]) == 0
    lines = [json.loads(line) for line in check.path.read_text().splitlines()]
    measured = [line["row"] for line in lines if line["type"] == "row" and line["outcome"] == "measured"]
    assert sorted(measured) == sorted(set(measured)), "a row was measured again"


def test_rows_of_another_build_do_not_count(check):
    check([rows_stage("first", "1,2")])
    log = row_log.RowLog(check.path, "another build")
    assert log.latest() == {} and log.done() == set()


def test_a_kill_in_the_middle_leaves_whole_lines_and_no_process(tmp_path):
    rows, units = tmp_path / "rows.jsonl", ",".join(f"{n % 3} {n}" for n in range(2000))
    program = f"""
import sys; sys.path[:0] = [{str(ROOT / "benchmarks")!r}, {str(ROOT / "scripts")!r}]
from gpu import row_log
from gpu_checks import driver
stage = driver.Stage("layers", "first", {[sys.executable, "-c", CHILD, "--piece", "layers", "--units", units]!r}, 1, 0)
driver.Driver(row_log.RowLog({str(rows)!r}, "this build"), row_log.Budget(100)).run([stage])
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while time.monotonic() < end and (not rows.exists() or rows.read_bytes().count(b"\n") < 30):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # the child dies with its parent
    data = rows.read_bytes()
    time.sleep(0.5)
    assert rows.read_bytes() == data, "a process goes on without its driver"
    assert data.endswith(b"\n")
    lines = [json.loads(line) for line in data.splitlines()]
    log = row_log.RowLog(rows, "this build")
    assert len(lines) >= 30 and len(log.done()) == sum(line["type"] == "row" for line in lines)


def test_a_line_that_was_cut_is_removed_and_a_foreign_one_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    row_log.RowLog(path, "b").add("layers", "work", {"row": "row", "outcome": row_log.PASSED})
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert len(row_log.RowLog(path, "b").lines()) == 1 and path.read_bytes() == whole
    path.write_bytes(whole + b'{"type": "row", "outcome": "good"}\n')
    with pytest.raises(ValueError, match="rows.jsonl:2 is no row of gpu_check"):
        row_log.RowLog(path).lines()


def test_the_rows_of_a_unit_are_written_together_and_the_last_ones_count(tmp_path, monkeypatch):
    log = row_log.RowLog(tmp_path / "rows.jsonl", "b")
    calls = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: calls.append(data) or write(file, data))
    log.add("layers", "work", row_log.not_run("work", "no time"))
    log.add("layers", "work", *({"row": name, "outcome": row_log.MEASURED} for name in "ab"))
    assert len(calls) == 2
    assert [row["row"] for row in log.latest()["layers", "work"]] == ["a", "b"]


def test_the_summary_names_the_estimates_that_were_wrong(tmp_path):
    log = row_log.RowLog(tmp_path / "rows.jsonl")
    estimate = {"of": "as read", "low": 1, "high": 2, "unit": "ms", "ratio": 3.0, "wrong": True}
    log.add("layers", "work", {"row": "slow", "outcome": row_log.MEASURED, "measured": {"median": 6.0}, "unit": "ms",
                               "estimates": [estimate, {**estimate, "wrong": False}]})
    found = driver.summary(log, "a device", 10)
    assert found["wrong_estimates"] == [{"row": "slow", "measured": 6.0, **estimate}]
    assert "  a wrong estimate as read: slow: 6 ms, 3.00 of what was expected" in driver.text_of_summary(found)

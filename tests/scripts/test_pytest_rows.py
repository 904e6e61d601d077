"""The plugin that writes a row per test, in a pytest of its own."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = """
import pytest
def test_right(): pass
def test_wrong(): assert 1 + 1 == 3, "two is not three"
@pytest.mark.skip(reason="one device")
def test_skipped(): pass
@pytest.fixture
def broken(): raise ValueError("no such case")
def test_broken(broken): pass
@pytest.mark.parametrize("n", range(4))
def test_many(n): pass
"""


@pytest.fixture
def tests(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    rows = tmp_path / "rows.jsonl"

    def run(*arguments, text=None):
        if text:
            (tmp_path / "test_it.py").write_text(text)
        said = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "gpu_checks.pytest_rows",
             "--continue-on-collection-errors", "--rows", rows, *arguments, "test_it.py"], capture_output=True, text=True, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "PALIMPSEST_BUILD_DIR": str(tmp_path)})
        lines = [json.loads(line) for line in rows.read_text().splitlines()]
        found = {line["row"].split("::")[-1]: (line["outcome"], line.get("reason", "")) for line in lines
                 if line["type"] == "row"}
        return said.returncode, found, lines

    return run


MANY = {f"test_many[{n}]": ("passed", "") for n in range(4)}


def test_every_test_has_a_row_and_a_failure_is_status_1(tests):
    status, found, lines = tests()
    assert status == 1
    assert found == {"test_right": ("passed", ""), "test_wrong": ("failed", "AssertionError: two is not three"),
                     "test_skipped": ("not run", "one device"), "test_broken": ("failed", "ValueError: no such case"), **MANY}
    assert lines[0]["type"] == "plan" and len(lines[0]["works"]) == 8


def test_tests_that_have_rows_do_not_run_again(tests):
    tests("-k", "many")
    status, found, lines = tests("-k", "many or right")
    assert [len(line["works"]) for line in lines if line["type"] == "plan"] == [4, 1], "-k decides before the plan"
    assert status == 0 and found == {"test_right": ("passed", ""), **MANY}
    assert sum(line["type"] == "row" for line in lines) == 5
    assert tests("-k", "many")[0] == 0, "all have rows: nothing is left to fail"


def test_shares_make_the_whole(tests):
    for number in (1, 2, 3):
        _, found, lines = tests("--share", f"{number}/3")
    assert len(found) == 8 and sum(line["type"] == "row" for line in lines) == 8


def test_no_test_begins_when_the_budget_is_spent(tests):
    status, found, _ = tests("--budget", "0.001", "-k", "many")
    assert status == 3
    assert set(found.values()) == {("not run", "it did not fit in the budget")}


def test_tests_that_all_skip_have_tested_nothing(tests):
    status, found, _ = tests("-k", "skipped")
    assert status == 1 and found == {"test_skipped": ("not run", "one device")}


def test_a_file_that_does_not_load_is_a_failure(tests):
    status, found, _ = tests(text="import nothing_of_this_name")
    assert status == 1
    assert found == {"test_it.py": ("failed", "ModuleNotFoundError: No module named 'nothing_of_this_name'")}


def test_a_name_that_selects_nothing_is_no_success(tests):
    assert tests("-k", "such_a_test")[0] == 5

"""The page of the paper's figures is what the measurements say, and changes with them."""
import shutil

import pytest

from pages import ROOT, change, run_script

SCRIPT = ROOT / "scripts" / "paper_figures.py"


def run(*arguments):
    return run_script(SCRIPT, *arguments)


def test_the_committed_page_is_what_the_committed_measurements_say():
    assert run("--check") == (0, "")


def test_a_new_measurement_changes_the_page(results):
    def slower(content):
        row = next(row for row in content["rows"] if row["claim"] == "(512, 14) 3x3 grouped checkpoint")
        row["ratio"] = 1.125

    change(results / "block_time.json", slower)
    status, said = run("--check", results)
    assert status == 1 and "run scripts/paper_figures.py" in said
    assert run(results) == (0, "")
    assert run("--check", results) == (0, "")
    line = next(line for line in (results / "paper.md").read_text().splitlines()
                if line.startswith("| CONV3") and "3x3 grouped" in line)
    assert "| +1.6 % | +3.1 % |" in line and "| +12.5 % |" in line


def test_a_strategy_that_joins_the_measurement_joins_the_page(results):
    def add(content):
        content["rows"].append({**content["rows"][0], "claim": "(1024, 7) 1x1 inplace_1", "ratio": 0.5})

    change(results / "block_time.json", add)
    assert run(results) == (0, "")
    page = (results / "paper.md").read_text()
    assert "| `inplace_1` |" in page and "| -50.0 % |" in page


@pytest.mark.parametrize("name", ["block_time.json", "kept_bytes.json", "model_step.json"])
def test_a_missing_measurement_is_named(results, name):
    (results / name).unlink()
    status, said = run(results)
    assert status == 2 and said.count("\n") == 1
    assert f"cannot read {results / name}: No such file or directory" in said


def test_a_file_of_another_form_is_refused(results):
    (results / "kept_bytes.json").write_text("{")
    assert run(results)[0] == 2
    shutil.copy(results / "layer_time.json", results / "block_time.json")
    status, said = run(results)
    assert status == 2 and said.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--chek"], ["a", "b"]])
def test_wrong_arguments_are_answered_with_the_usage(arguments):
    status, said = run(*arguments)
    assert status == 2 and "usage: paper_figures.py [--check] [RESULTS_DIR]" in said

"""The page of the densenets' figures is what the measurements say, and changes with them."""
import pytest

from pages import ROOT, change, run_script

SCRIPT = ROOT / "scripts" / "densenet_figures.py"


def run(*arguments):
    return run_script(SCRIPT, *arguments)


def line_of(results, start):
    return next(line for line in (results / "densenet.md").read_text().splitlines() if line.startswith(start))


def test_the_committed_page_is_what_the_committed_measurements_say():
    assert run("--check") == (0, "")


def test_a_new_measurement_changes_the_page(results):
    def slower(content):
        next(row for row in content["rows"] if row["claim"] == "BC-100 k=12 step, shared")["ratio"] = 1.125

    change(results / "densenet_time.json", slower)
    status, said = run("--check", results)
    assert status == 1 and "run scripts/densenet_figures.py" in said
    assert run(results) == (0, "")
    assert run("--check", results) == (0, "")
    assert "| +12.5 % | +10.0 % |" in line_of(results, "| BC-100 k=12 step, shared")


def test_the_depth_in_12_gb_lies_on_the_line_between_two_peaks(results):
    peaks = {"naive": [7000, 14000, 21000], "fused": [100, 200, 300], "shared": [12500, 13000, 14000]}
    rows = [{"layers": layers, "form": form, "kept_mb": 1, "peak_mb": peak}
            for i, layers in enumerate((40, 110, 250)) for form, values in
            {**peaks, "shared_gradient": [1000, 12000, 23000]}.items() for peak in [values[i]]]
    change(results / "densenet_depth.json", lambda content: content.update(rows=rows))
    assert run(results) == (0, "")
    assert line_of(results, "| layers | 160 |") == "| layers | 160 | 340 | about 500 | 90 | over 250 | under 40 | 110 |"


def test_time_stands_where_it_was_measured(results):
    rows = [{"layers": layers, "form": form, "kept_mb": 1200, "peak_mb": 2000.4} for layers in (40, 100)
            for form in ("shared_gradient", "fused")]
    rows[0]["seconds"], rows[1]["seconds"] = [1, 2, 3], [0.8, 0.9, 4]
    change(results / "densenet_depth.json", lambda content: content.update(rows=rows))
    assert run(results) == (0, "")
    assert line_of(results, "| 40 |") == "| 40 | 1,200; 2,000; 1.00 | 1,200; 2,000; 0.45 |"
    assert line_of(results, "| 100 |") == "| 100 | 1,200; 2,000 | 1,200; 2,000 |"


@pytest.mark.parametrize("name", ["time", "bytes", "depth", "accuracy"])
def test_a_missing_measurement_is_named(results, name):
    (results / f"densenet_{name}.json").unlink()
    status, said = run(results)
    assert status == 2 and said.count("\n") == 1
    assert f"cannot read {results}/densenet_{name}.json: No such file or directory" in said


@pytest.mark.parametrize("name", ["time", "bytes", "depth", "accuracy"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_file_of_another_form_is_refused(results, name, content):
    before = (results / "densenet.md").read_text()
    (results / f"densenet_{name}.json").write_text(content)
    status, said = run(results)
    assert status == 2 and said.count("\n") == 1
    assert (results / "densenet.md").read_text() == before


@pytest.mark.parametrize("arguments", [["--chek"], ["a", "b"]])
def test_wrong_arguments_are_answered_with_the_usage(arguments):
    status, said = run(*arguments)
    assert status == 2 and "usage: densenet_figures.py [--check] [RESULTS_DIR]" in said

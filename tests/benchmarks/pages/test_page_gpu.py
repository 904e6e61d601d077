"""docs/results/gpu.md has every row of gpu_check, and says what did not run."""
from page_support import change, line_of, pages

FILE, PAGE = "gpu_nvidia_h100_80gb_hbm3.json", "gpu.md"
LAYER = "[64, 256, 56, 56] channels-last bf16: eager"


def row_of(found, name):
    return next(row for row in found["rows"] if row["row"] == name)


def test_a_claim_shows_its_limit_and_whether_it_holds(results):
    change(results / FILE, lambda found: row_of(found, LAYER).update(ratio=0.51234, limit=0.5, **{"pass": False}))
    assert pages("gpu", "--results", results) == (0, "")
    assert line_of(results / PAGE, f"| {LAYER}").endswith("| 0.512 | 0.50 | **fails** |")
    change(results / FILE, lambda found: row_of(found, LAYER).update(ratio=0.4, **{"pass": True}))
    assert pages("gpu", "--results", results) == (0, "")
    assert line_of(results / PAGE, f"| {LAYER}").endswith("| 0.400 | 0.50 | holds |")


def test_what_failed_without_a_figure_did_not_run_or_did_not_fit_is_listed(results):
    def broken(found):
        row_of(found, "NaN in one channel").update(outcome="failed", reason="it has 3 NaN")
        found["not_run"] = {"another device": "one device"}
        found["did_not_fit"] = ["a late row"]

    change(results / FILE, broken)
    assert pages("gpu", "--results", results) == (0, "")
    text = (results / PAGE).read_text()
    for line in ("- failed: NaN in one channel: it has 3 NaN", "- not run: another device: one device",
                 "- did not fit into the time: a late row"):
        assert line + "\n" in text


def test_tests_and_sanitizers_that_did_not_run_are_not_counted(results):
    def only(found):
        found["rows"] = [{"piece": "tests", "row": name, "outcome": outcome}
                         for name, outcome in (("a", "passed"), ("b", "failed"), ("c", "not run"))]

    change(results / FILE, only)
    assert pages("gpu", "--results", results) == (0, "")
    text = (results / PAGE).read_text()
    assert "1 of 2 tests passed, 1 did not run. compute-sanitizer: not measured." in text
    assert "A copy on the device was not measured." in text


def test_without_a_measurement_the_page_says_so(results):
    (results / FILE).unlink()
    assert pages("gpu", "--results", results) == (0, "")
    assert "No GPU: not measured." in (results / PAGE).read_text()
    assert pages("gpu", "--check", "--results", results) == (0, "")


def test_a_file_of_another_form_is_one_line(results):
    change(results / FILE, lambda found: found.pop("rows"))
    status, said = pages("gpu", "--results", results)
    assert status == 2 and said == "pages: gpu: a measurement has another form: KeyError 'rows'\n"

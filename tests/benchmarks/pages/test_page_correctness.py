"""docs/results/correctness.md has every case, with what is beyond the limit in bold."""
from page_support import change, line_of, pages

FILE, PAGE = "correctness.json", "correctness.md"


def side_of(found, side):
    return found["rows"][0]["sides"][side]


def test_what_is_beyond_the_limit_is_bold_and_counted(results):
    def break_ours(found):
        for row in found["rows"]:
            if row["issue"]:
                row["sides"]["torch"]["as_reported"] = row["issue"] == "pytorch#140112"
        side_of(found, "ours").update(right=False, layout_of_x=False, as_reported=True)
        side_of(found, "ours")["units"].update(z=None, dx=4.5)

    change(results / FILE, break_ours)
    assert pages("correctness", "--results", results) == (0, "")
    text = (results / PAGE).read_text()
    line = next(line for line in text.splitlines() if line.startswith("|  |  | ours |"))
    assert "| ours | **NaN** | **4.5** |" in line and line.endswith("| **another** | **wrong** | **yes** |")
    said = line_of(results / PAGE, "libtorch")
    assert "1 of" in said.split("with torch")[1] and said.endswith(" 1 is still as reported with torch.")


def test_a_report_is_linked_and_a_gpu_has_its_own_section(results):
    text = (results / PAGE).read_text()
    assert "[pytorch#57796](https://github.com/pytorch/pytorch/issues/57796)" in text
    assert "[NVIDIA/apex#1768](https://github.com/NVIDIA/apex/issues/1768)" in text
    for path in results.glob("correctness_*.json"):
        path.unlink()
    assert pages("correctness", "--results", results) == (0, "")
    assert "\n## GPUs\n\nNot measured." in (results / PAGE).read_text()
    (results / "correctness_some.json").write_text((results / FILE).read_text())
    change(results / "correctness_some.json", lambda found: found.update(processor="A GPU"))
    assert pages("correctness", "--results", results) == (0, "")
    text = (results / PAGE).read_text()
    assert "\n## A GPU\n" in text and "Not measured" not in text

"""docs/results/whole_step.md and its chart are what a measurement gives."""
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from page_support import change, line_of, pages

SVG = "{http://www.w3.org/2000/svg}"
FIGURES = {  # ms, MB
    "resnet50": {"eager": (2900, 1400), "torch.compile": (2500, 1390), "checkpoint": (3600, 600),
                 "torch.compile + checkpoint": (3150, 590), "torch.compile, budget 0.5": (2800, 1000), "ours": (2300, 770),
                 "ours + torch.compile": (2250, 780)},
    "densenet121": {"eager": (3900, 2800), "torch.compile": (3500, 2500), "checkpoint": (4400, 700),
                    "memory_efficient": (4300, 1200), "ours": (2900, 660), "ours + torch.compile": (2950, 680)},
}


def rows_of(name, forms):
    limits = {"step": 1.0, "peak": 0.62}
    for form, (milliseconds, megabytes) in forms.items():
        for what, index, more in (("step", 0, 0), ("peak", 1, 0), ("whole", 1, 300), ("kept", 1, -40), ("error", 1, 0)):
            spreads = [{"median": value + more, "low": value + more - (index == 0), "high": value + more + (index == 0)}
                       for value in (forms["torch.compile"][index], forms[form][index])]
            ratio = spreads[1]["median"] / spreads[0]["median"]
            limit = limits.get(what) if form == "ours" else None
            yield {"claim": f"{name} {what}: {form}", "opponent_name": "torch.compile", "opponent": spreads[0],
                   "measured": spreads[1], "ratio": ratio, "limit": limit, "pass": None if limit is None else ratio <= limit}


@pytest.fixture
def measured(results):
    """The folder of the pages with a measurement of whole_step.py and its page."""
    rows = [row for name, forms in FIGURES.items() for row in rows_of(name, forms)]
    (results / "whole_step.json").write_text(json.dumps({
        "benchmark": "whole_step", "processor": "a processor", "threads": 2, "libtorch": "2.11.0", "repeats": 7, "batch": 16,
        "size": 224, "rows": rows, "pass": True}))
    assert pages("whole_step", "--results", results) == (0, "")
    return results


def test_each_claim_says_whether_it_holds(measured):
    assert line_of(measured / "whole_step.md", "- ResNet-50: ") == "- ResNet-50: 0.92 of the time, 0.55 of the peak: holds"

    def slower(content):
        row = next(row for row in content["rows"] if row["claim"] == "resnet50 step: ours")
        row["ratio"], row["pass"] = 1.25, False

    change(measured / "whole_step.json", slower)
    assert pages("whole_step", "--check", "--results", measured)[0] == 1
    assert pages("whole_step", "--results", measured) == (0, "")
    assert line_of(measured / "whole_step.md", "- ResNet-50: ") == "- ResNet-50: 1.25 of the time, 0.55 of the peak: FAIL"


def test_a_form_with_wrong_gradients_has_its_error_alone(measured):
    form = ": torch.compile, budget 0.5"
    change(measured / "whole_step.json", lambda content: content.update(
        rows=[row for row in content["rows"] if not row["claim"].endswith(form) or " error" in row["claim"]]))
    assert pages("whole_step", "--results", measured) == (0, "")
    assert line_of(measured / "whole_step.md", "| torch.compile, budget 0.5 | wrong") == (
        "| torch.compile, budget 0.5 | wrong gradients |  |  |  |  |  |  |  | 1e+03 |")
    assert "budget" not in (measured / "whole_step.svg").read_text().replace("or a budget", "")


def test_every_form_has_a_row_with_its_figures_and_what_it_is(measured):
    assert line_of(measured / "whole_step.md", "| ours | 2300") == (
        "| ours | 2300 (2299 to 2301) | 0.92 | 770 | 0.55 | 1070 | 0.63 | 730 | 0.54 | 8e+02 |")
    text = (measured / "whole_step.md").read_text()
    assert text.count("\n| memory_efficient |") == 2  # what it is, and DenseNet-121's figures
    change(measured / "whole_step.json", lambda content: content.update(
        rows=[row for row in content["rows"] if row["claim"].startswith("resnet50")]))
    assert pages("whole_step", "--results", measured) == (0, "")
    assert "memory_efficient" not in (measured / "whole_step.md").read_text()


def test_the_chart_names_each_point_once_without_overlap(measured):
    drawing = ElementTree.parse(measured / "whole_step.svg").getroot()
    labels = [element for element in drawing.iter(f"{SVG}text") if element.get("fill") not in ("#1f2937", "#6b7280")]
    assert sorted(label.text for label in labels) == sorted(form for forms in FIGURES.values() for form in forms)
    boxes = [(float(e.get("x")), float(e.get("y")), 6.8 * len(e.text)) for e in labels]
    for i, (x, y, width) in enumerate(boxes):
        assert 0 <= x and x + width <= float(drawing.get("width"))
        for other_x, other_y, other_width in boxes[:i]:
            assert abs(y - other_y) >= 12 or x + width <= other_x or other_x + other_width <= x


def test_each_colour_of_the_chart_has_one_for_a_dark_page(measured):
    style, drawing = (measured / "whole_step.svg").read_text().split("</style>")
    assert "prefers-color-scheme: dark" in style
    colors = set(re.findall(r'(?:fill|stroke)="([^"]+)"', drawing))
    assert colors and all(f'[fill="{color}"]{{fill:#' in style for color in colors)


def test_without_a_measurement_the_page_says_so(measured):
    (measured / "whole_step.json").unlink()
    assert pages("whole_step", "--results", measured) == (0, "")
    text = (measured / "whole_step.md").read_text()
    assert text.endswith("\n\nNot measured.\n") and ".svg" not in text


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": []}'])
def test_a_measurement_of_another_form_is_one_line(measured, content):
    (measured / "whole_step.json").write_text(content)
    status, said = pages("whole_step", "--results", measured)
    assert status == 2 and said.startswith("pages: whole_step: ") and said.count("\n") == 1

"""docs/results/whole_step.md and its chart change with their measurement."""
import re
import xml.etree.ElementTree as ElementTree

import pytest

from page_support import ROOT, change, line_of, pages

SVG = "{http://www.w3.org/2000/svg}"


def row_of(content, claim):
    return next(row for row in content["rows"] if row["claim"] == claim)


def test_a_claim_that_does_not_hold_is_said_to_fail(results):
    def slower(content):
        row = row_of(content, "resnet50 step: ours")
        row["ratio"], row["pass"] = 1.25, False

    change(results / "whole_step.json", slower)
    assert pages("whole_step", "--check", "--results", results)[0] == 1
    assert pages("whole_step", "--results", results) == (0, "")
    line = line_of(results / "whole_step.md", "- ResNet-50: ")
    assert line.startswith("- ResNet-50: 1.25 of the time, 0.") and line.endswith(" of the peak: FAIL")


def test_every_form_has_a_row_with_its_figures(results):
    def known(content):
        row_of(content, "resnet50 step: ours").update(measured={"median": 1234.4, "low": 1200.2, "high": 1300.6}, ratio=0.5)
        for what, size in (("peak", 111), ("whole", 222), ("kept", 333)):
            row_of(content, f"resnet50 {what}: ours").update(measured=dict.fromkeys(("median", "low", "high"), size), ratio=0.25)

    change(results / "whole_step.json", known)
    assert pages("whole_step", "--results", results) == (0, "")
    assert line_of(results / "whole_step.md", "| ours | 1") == "| ours | 1234 (1200 to 1301) | 0.50 | 111 | 0.25 | 222 | 0.25 | 333 | 0.25 |"


def test_the_chart_names_each_form_once_per_network_without_overlap():
    drawing = ElementTree.parse(ROOT / "docs/results/whole_step.svg").getroot()
    texts = [element for element in drawing.iter(f"{SVG}text") if element.get("font-size") == "12" and element.get("fill") != "#6b7280"]
    labels = [element for element in texts if element.get("fill") != "#1f2937"]
    points = list(drawing.iter(f"{SVG}circle"))
    assert len(labels) == len(points) - 3  # three are of the legend
    boxes = [(float(e.get("x")), float(e.get("y")), 6.8 * len(e.text)) for e in labels]
    for i, (x, y, width) in enumerate(boxes):
        assert 0 <= x and x + width <= float(drawing.get("width"))
        for other_x, other_y, other_width in boxes[:i]:
            assert abs(y - other_y) >= 12 or x + width <= other_x or other_x + other_width <= x


@pytest.mark.parametrize("color", ["#d9730d", "#15803d", "#1d4ed8", "#1f2937", "#6b7280", "#e5e7eb", "white"])
def test_each_colour_of_the_chart_has_one_for_a_dark_page(color):
    text = (ROOT / "docs/results/whole_step.svg").read_text()
    style = text[text.index("<style>"):text.index("</style>")]
    assert "prefers-color-scheme: dark" in style and f'[fill="{color}"]' in style
    used = set(re.findall(r'(?:fill|stroke)="([^"]+)"', text[text.index("</style>"):]))
    assert used <= {"#d9730d", "#15803d", "#1d4ed8", "#1f2937", "#6b7280", "#e5e7eb", "white"}

"""docs/results/step_profile.md changes with its measurement."""
import json

import pytest

from page_support import ROOT, change, line_of, pages


def test_a_piece_has_its_share_of_the_step_and_the_difference(results):
    def known(content):
        for side, value in (("eager", 50), ("ours", 20)):
            found = content["networks"]["resnet50"][side]
            found["step"], found["pieces"]["addition"] = 200, value

    change(results / "step_profile.json", known)
    assert pages("step_profile", "--results", results) == (0, "")
    assert line_of(results / "step_profile.md", "| addition |") == "| addition | 50 (25 %) | 20 (10 %) | -30 |"
    assert line_of(results / "step_profile.md", "| the step |") == "| the step | 200 | 200 | +0 |"


def test_the_committed_pieces_add_up_to_the_step():
    networks = json.loads((ROOT / "docs/results/step_profile.json").read_text())["networks"]
    assert list(networks) == ["resnet50", "resnext50_32x4d", "densenet121", "efficientnet_b0"]
    for found in networks.values():
        for side in found.values():
            assert sum(side["pieces"].values()) == pytest.approx(side["step"])

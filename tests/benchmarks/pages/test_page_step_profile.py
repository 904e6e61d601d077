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


def test_the_two_largest_pieces_beside_the_convolutions_are_named(results):
    def known(content):
        ours = content["networks"]["resnet50"]["ours"]
        ours["step"], ours["pieces"] = 200, dict.fromkeys(ours["pieces"], 1)
        ours["pieces"].update({"convolution, forward": 90, "addition": 8, "optimizer": 20})

    change(results / "step_profile.json", known)
    assert pages("step_profile", "--results", results) == (0, "")
    assert line_of(results / "step_profile.md", "Beside the convolutions") == (
        "Beside the convolutions, ours takes most time for `optimizer` (10 %) and `addition` (4 %).")


def test_a_step_with_too_much_between_its_operators_is_said_to_fail(results):
    def rest_of(milliseconds):
        def do(content):
            for found in content["networks"].values():
                for side in found.values():
                    side["step"] = 200
                    side["pieces"].update({"between operators": 1, "other operators": 1})
            content["networks"]["resnet50"]["ours"]["pieces"]["between operators"] = milliseconds
        return do

    change(results / "step_profile.json", rest_of(9))
    assert pages("step_profile", "--results", results) == (0, "")
    assert "\nit holds.\n" in (results / "step_profile.md").read_text()
    change(results / "step_profile.json", rest_of(11))
    assert pages("step_profile", "--results", results) == (0, "")
    assert "\nResNet-50, ours, takes 6.0 %: FAIL.\n" in (results / "step_profile.md").read_text()


def test_the_committed_pieces_add_up_to_the_step():
    networks = json.loads((ROOT / "docs/results/step_profile.json").read_text())["networks"]
    assert list(networks) == ["resnet50", "resnext50_32x4d", "densenet121", "efficientnet_b0"]
    for found in networks.values():
        for side in found.values():
            assert sum(side["pieces"].values()) == pytest.approx(side["step"])

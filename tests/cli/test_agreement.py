"""Strategies differ in memory, not in gradients: from one seed they give one loss curve, as far as rounding goes."""
import json

import pytest

from cli_support import DATA, ROOT, succeeds


def losses(strategy, folder, steps, *arguments):
    output = folder / strategy
    succeeds("train", *arguments, "--strategy", strategy, "--max-steps", steps, "--log-every", "1",
             "--evaluate-every", "0", "--quiet", "--output", output)
    records = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    curve = [record["loss"] for record in records if "loss" in record]
    assert len(curve) == steps
    return curve


def worst_difference(folder, steps, *arguments):
    """Largest relative difference of the two strategies' losses, over all steps."""
    standard = losses("standard", folder, steps, *arguments)
    inplace = losses("inplace_2", folder, steps, *arguments)
    assert standard != inplace, "equal to the last bit: the option had no effect"
    return max(abs(a - b) / abs(a) for a, b in zip(standard, inplace))


def test_generated_losses_agree_to_1e_7_over_20_steps_in_f64(folder):
    difference = worst_difference(
        folder, 20, "--model", "deeplabv3_resnet18", "--data", "generated", "--dtype", "f64", "--images", "16",
        "--val-images", "2", "--height", "48", "--width", "64", "--crop", "48", "--batch", "4", "--epochs", "5",
        "--lr", "0.002")  # at ten times that, so few pixels per channel amplify the last bit to 1e-3
    assert difference <= 1e-7


def test_camvid_losses_agree_to_1e_3_over_5_steps_in_f32(folder):
    root = DATA / "camvid"
    if not root.is_dir():
        pytest.skip(f"no CamVid at {root}")
    difference = worst_difference(
        folder, 5, "--config", ROOT / "examples/camvid.toml", "--data-root", root, "--crop", "120", "--batch", "4",
        "--no-channels-last", "--momentum", "0")
    assert difference <= 1e-3

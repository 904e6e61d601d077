"""From options to a trained network and to what is done with it."""
import json
import tomllib

import pytest

from cli_support import TINY, fails, png, png_size, succeeds, write

import numpy as np


def test_a_run_leaves_checkpoint_log_and_configuration(trained):
    assert {path.name for path in trained.iterdir()} == {"checkpoint.safetensors", "log.jsonl", "config.toml"}
    steps = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if line["type"] == "step"] == [1, 2]
    assert all(np.isfinite(line["loss"]) and line["peak_bytes"] > line["kept_bytes"] > 0 for line in steps)


def test_the_stored_configuration_knows_the_classes_and_not_the_folder(trained):
    config = tomllib.loads((trained / "config.toml").read_text())
    assert config["model"]["classes"] == len(config["model"]["class_names"]) > 1
    assert "folder" not in config["output"]


def test_the_effective_configuration_is_printed(folder):
    printed = succeeds("train", *TINY, "--max-steps", "1", "--output", folder / "run").stdout
    assert tomllib.loads(printed) == tomllib.loads((folder / "run/config.toml").read_text())


def test_a_quiet_run_prints_nothing(folder):
    result = succeeds("train", *TINY, "--max-steps", "1", "--quiet", "--output", folder / "run")
    assert (result.stdout, result.stderr) == ("", "")


def test_the_number_of_worker_threads_changes_no_byte(folder, trained):
    succeeds("train", *TINY, "--workers", "3", "--output", folder / "run")
    losses = [[json.loads(line)["loss"] for line in (run / "log.jsonl").read_text().splitlines()]
              for run in (trained, folder / "run")]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("activation,in_place", [("leaky_relu", "inplace"), ("gelu", "inplace_bit")])
def test_both_strategies_have_the_same_loss_in_double(folder, activation, in_place):
    losses = []
    for strategy in ("standard", in_place):
        succeeds("train", *TINY, "--dtype", "f64", "--activation", activation, "--strategy", strategy,
                 "--output", folder / strategy)
        losses.append([json.loads(line)["loss"] for line in (folder / strategy / "log.jsonl").read_text().splitlines()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_eval_prints_mean_and_per_class_iou(trained):
    text = succeeds("eval", trained / "checkpoint.safetensors").stdout
    for word in ("loss", "mean IoU", "pixel accuracy", "Road"):
        assert word in text


def test_eval_as_json_agrees_with_itself(trained):
    first, second = (json.loads(succeeds("eval", trained / "checkpoint.safetensors", "--json", *extra).stdout)
                     for extra in ((), ("--workers", "0", "--eval-batch", "1")))
    assert first["images"] == second["images"] == 2
    # Sums in another order: the last digits of f32 may move, the confusion matrix hardly.
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-4)
    seen = [value for value in first["class_iou"].values() if value is not None]
    assert first["mean_iou"] == pytest.approx(sum(seen) / len(seen))


def test_eval_of_a_classifier_gives_top1_and_top5(trained_classifier):
    run, _ = trained_classifier
    result = json.loads(succeeds("eval", run / "checkpoint.safetensors", "--json").stdout)
    assert result["images"] == 8 and 0 <= result["top1"] <= 1 and result["top5"] == 1  # of two classes


def test_predict_writes_a_colour_picture_of_each_images_own_size(trained, folder):
    sizes = {"one": (61, 47), "two": (64, 48), "tiny": (5, 3)}  # widths and heights that no stride divides
    for name, (width, height) in sizes.items():
        write(folder / "in" / f"{name}.png", png(np.full((height, width, 3), 99)))
    succeeds("predict", trained / "checkpoint.safetensors", folder / "in", "--output", folder / "out")
    assert {path.name for path in (folder / "out").iterdir()} == {f"{name}.png" for name in sizes}
    for name, size in sizes.items():
        assert png_size(folder / "out" / f"{name}.png") == (*size, 2)


def test_predict_of_a_classifier_names_classes_with_probabilities(trained_classifier):
    run, data = trained_classifier
    images = [data / "val/cat/0.png", data / "val/dog/1.png"]
    text = succeeds("predict", run / "checkpoint.safetensors", *images).stdout
    assert len(text.splitlines()) == 2 and "cat" in text and "dog" in text
    listed = json.loads(succeeds("predict", run / "checkpoint.safetensors", *images, "--json").stdout)
    assert [entry["image"] for entry in listed] == [str(image) for image in images]
    assert all(sum(entry["probabilities"].values()) == pytest.approx(1) for entry in listed)


def test_info_lists_layers_parameters_and_what_each_strategy_keeps():
    result = json.loads(succeeds("info", "--model", "resnet18", "--classes", "1000", "--size", "64", "--json").stdout)
    assert result["parameters"] == 11_689_512  # torchvision's resnet18
    assert sum(layer["parameters"] for layer in result["layers"]) == result["parameters"]
    layers = {layer["name"]: layer for layer in result["layers"]}
    assert layers["conv1"]["weight"] == "64x3x7x7" and layers["conv1"]["output"] == [2, 64, 32, 32]
    assert layers["bn1"]["output"] == [2, 64, 32, 32] and layers["fc"]["output"] == [2, 1000]
    standard, *others = result["strategies"]
    names = ["checkpoint", "checkpoint_normalized", "inplace_1", "inplace_2", "inplace_bit", "store_y"]
    assert standard["strategy"] == "standard" and [s["strategy"] for s in others] == names
    for strategy in others:
        assert strategy["kept_mb_per_image"] < 0.7 * standard["kept_mb_per_image"]
        assert strategy["peak_mb_of_two_images"] <= standard["peak_mb_of_two_images"]


def test_an_activation_that_cannot_be_inverted_has_the_strategies_that_can():
    flags = ("info", "--model", "resnet18", "--size", "64", "--activation", "relu")
    result = json.loads(succeeds(*flags, "--json").stdout)
    assert [s["strategy"] for s in result["strategies"]] == [
        "standard", "checkpoint", "checkpoint_normalized", "store_y"]
    fails(2, "train", "--activation", "relu", "--strategy", "inplace",
          says=("strategy 'inplace_2'", "'relu' cannot be inverted", "standard, checkpoint, checkpoint_normalized, store_y"))
    fails(2, "train", "--activation", "hardswish", "--strategy", "inplace_bit",
          says=("strategy 'inplace_bit'", "one bit per element", "'hardswish' cannot be inverted"))


def test_an_activation_with_two_branches_has_the_strategy_with_a_bit():
    flags = ("info", "--model", "resnet18", "--size", "64", "--activation", "silu")
    strategies = {s["strategy"]: s for s in json.loads(succeeds(*flags, "--json").stdout)["strategies"]}
    assert list(strategies) == ["standard", "checkpoint", "checkpoint_normalized", "inplace_bit", "store_y"]
    kept = {name: strategy["kept_mb_per_image"] for name, strategy in strategies.items()}
    assert kept["inplace_bit"] < kept["store_y"] < kept["standard"]


def test_info_of_a_checkpoint_describes_its_model(trained):
    text = succeeds("info", trained / "checkpoint.safetensors", "--size", "64").stdout
    assert "deeplabv3_resnet18_narrow: " in text and "inplace_2" in text and "kept MB per image" in text

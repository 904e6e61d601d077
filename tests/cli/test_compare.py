"""The same training once per strategy: figures, files, and refused options."""
import json
import re
import subprocess
import tomllib

import pytest

from cli_support import (DIVERGED, OUTPUT, PROGRAM, ROOT, TINY, TINY_CLASSIFIER, USAGE, environment, error_line, fails,
                         image_folder, run, succeeds, write)

COMPARE = [*TINY, "--evaluate-every", "1"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison of two steps per strategy: (folder, what was printed)."""
    folder = tmp_path_factory.mktemp("compare")
    result = succeeds("compare", *COMPARE, "--strategies", "standard,inplace", "--output", folder)
    yield folder, result.stdout
    for checkpoint in folder.glob("*/checkpoint.safetensors"):  # too large for pytest to keep
        checkpoint.unlink()


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_both_strategies_are_trained_and_reported(compared):
    folder, printed = compared
    assert {path.name for path in folder.iterdir()} == {
        "standard", "inplace_2", "index.html", "memory.svg", "loss.svg", "results.json"}
    for strategy in ("standard", "inplace_2"):
        config = tomllib.loads((folder / strategy / "config.toml").read_text())
        assert config["model"]["strategy"] == strategy
        assert (folder / strategy / "checkpoint.safetensors").exists()
    table = printed[printed.rindex("standard  "):]
    for label in ("kept MiB", "peak MiB", "seconds per step", "loss", "mean IoU, %", "largest batch in"):
        assert label in table
    assert printed.rstrip().endswith(str(folder / "index.html"))


def test_figures_are_of_the_step_that_was_measured(compared):
    standard, inplace = results(compared[0])["runs"]
    assert (standard["name"], inplace["name"]) == ("standard", "inplace_2")
    assert inplace["kept_bytes"] < 0.9 * standard["kept_bytes"]
    # 32 x 32 pixels: here the gradients of the parameters decide the peak.
    assert inplace["peak_bytes"] <= standard["peak_bytes"]
    assert standard["largest_batch"] == 4  # the limit is its own peak with this batch
    assert inplace["largest_batch"] >= 4
    assert all(0 < run["seconds_per_step"] < 60 for run in (standard, inplace))


def test_in_place_peaks_lower_and_fits_a_larger_batch_where_activations_decide(folder):
    larger = ("--height 96 --width 96 --crop 96 --batch 8 --channels-last --max-steps 1 "
              "--quiet").split()
    succeeds("compare", *TINY, *larger, "--output", folder / "run")
    standard, inplace = results(folder / "run")["runs"]
    assert inplace["peak_bytes"] < 0.95 * standard["peak_bytes"]
    assert standard["largest_batch"] == 8
    assert inplace["largest_batch"] >= 11


def test_a_batch_that_did_not_fit_takes_no_memory_from_the_next_trial(folder):
    # 16 images fail within backward, where this network has branches; each image takes about 17 MiB.
    larger = ("--model deeplabv3_resnet50 --height 128 --width 128 --crop 128 --batch 8 --channels-last --memory 650 "
              "--strategies inplace_2,standard").split()
    command = [PROGRAM, "compare", *TINY, *larger, "--output", folder / "run"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as program:
        said = next((line for line in program.stdout if " fits a batch of " in line), "")
        program.kill()  # what follows would take ten times as long
    peak, largest = re.fullmatch(r".* peaks at ([\d.]+) MiB, fits a batch of (\d+) in 650.0 MiB\n", said).groups()
    room = int((650 - float(peak)) / 17)
    assert 0 < room < 8
    assert int(largest) >= 8 + room - 1


def test_both_start_from_the_same_weights_and_see_the_same_images(compared):
    standard, inplace = results(compared[0])["runs"]
    # f32: the rounding of one update. test_agreement.py follows 20 of them in f64.
    assert standard["losses"][0] == pytest.approx(inplace["losses"][0], rel=1e-5)
    assert standard["losses"] == pytest.approx(inplace["losses"], rel=1e-3)
    assert len(standard["losses"]) == 2


def test_the_page_is_one_file_with_curves_and_pictures(compared):
    html = (compared[0] / "index.html").read_text()
    # Memory over a step, loss, score, learning rate, throughput, peak memory, and two confusions.
    assert html.count("<svg") == html.count("</svg>") == 8
    assert html.count("src=\"data:image/png;base64,") == html.count("src=") == 2 * 4  # both images of validation
    assert "Road" in html


def test_a_training_alone_gives_the_same_losses(compared, folder):
    succeeds("train", *COMPARE, "--strategy", "inplace", "--output", folder / "run")
    alone = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in alone if line["type"] == "step"] == results(compared[0])["runs"][1]["losses"]


def test_a_memory_of_its_own_bounds_the_largest_batch(compared, folder):
    # A little less than the step takes: the search goes down, which costs a test less than up.
    memory = results(compared[0])["memory_bytes"] // 2**20 - 1
    succeeds("compare", *COMPARE, "--max-steps", "1", "--memory", memory, "--quiet", "--output", folder / "run")
    smaller = results(folder / "run")
    assert smaller["memory_bytes"] == memory * 2**20
    assert smaller["runs"][0]["largest_batch"] < 4


def test_a_memory_that_the_machine_lacks_is_refused(folder):
    fails(USAGE, "compare", *COMPARE, "--memory", 2**29, "--output", folder / "run",
          says=["[compare] memory (--memory)", "the memory of this machine", f"got {2**29}"])
    assert not (folder / "run").exists()


def test_a_classification_is_compared_by_accuracy(folder):
    data = image_folder(folder / "data")
    printed = succeeds("compare", *TINY_CLASSIFIER, "--evaluate-every", "1", "--data-root", data, "--output",
                       folder / "run").stdout
    assert "top-1 accuracy, %" in printed
    assert "top1" in results(folder / "run")["runs"][0]


def test_a_strategy_twice_is_refused_even_by_another_name(folder):
    fails(USAGE, "compare", *TINY, "--strategies", "inplace_2,inplace", "--output", folder / "run",
          says=("--strategies", "inplace_2 twice"))
    assert not (folder / "run").exists()


def test_one_strategy_is_no_comparison(folder):
    fails(USAGE, "compare", *TINY, "--strategies", "standard", "--output", folder / "run",
          says=("--strategies", "at least two"))


def test_an_unknown_strategy_is_refused_with_the_nearest_name(folder):
    fails(USAGE, "compare", *TINY, "--strategies", "standard,inplase", "--output", folder / "run", says=("inplace",))


def test_without_an_output_folder_it_is_refused():
    fails(USAGE, "compare", *TINY, says=("--output",))


def test_a_comparison_that_is_there_is_not_replaced_unasked(compared):
    fails(OUTPUT, "compare", *COMPARE, "--output", compared[0], says=("standard", "--overwrite"))


@pytest.mark.parametrize("blocked", ["run", "run/index.html/", "run/inplace_2"])
def test_an_output_that_cannot_be_written_is_told_before_anything_is_measured(folder, blocked):
    if blocked.endswith("/"):
        (folder / blocked).mkdir(parents=True)
    else:
        write(folder / blocked, b"x")
    result = run("compare", *TINY, "--max-steps", "1", "--output", folder / "run")
    assert result.returncode == OUTPUT and str(folder / blocked) in error_line(result)
    assert "memory of one step" not in result.stdout


def test_the_demonstration_runs_the_recipe_beside_the_others(folder):
    recipe = tomllib.loads((ROOT / "examples/demo.toml").read_text())
    small = ("--model deeplabv3_resnet18_narrow --images 2 --val-images 2 --height 32 --width 48 --batch 2 --epochs 2 "
             "--threads 1").split()
    before = [write(folder / "demo" / name, b"of a demonstration before")
              for name in ("index.html", "standard/checkpoint.safetensors", "standard/log.jsonl", "inplace_2/checkpoint.safetensors")]
    printed = succeeds("demo", *small, "--output", folder / "demo").stdout
    assert "ratio" in printed and not any(b"before" in file.read_bytes() for file in before)
    assert (folder / "demo/index.html").exists()
    config = tomllib.loads((folder / "demo/standard/config.toml").read_text())
    assert config["train"]["epochs"] == 2 and config["data"]["height"] == 32  # flags win
    for table, key in (("optimizer", "lr"), ("schedule", "kind"), ("data", "data_seed")):
        assert config[table][key] == recipe[table][key]
    settings = tomllib.loads(succeeds("demo", "--dry-run", "--output", folder / "demo").stdout)
    assert settings["model"]["name"] == recipe["model"]["name"]


def test_the_recipe_of_the_demonstration_is_its_built_in_settings(folder):
    with_file, without = (succeeds("demo", *arguments, "--dry-run", "--output", folder / "demo").stdout
                          for arguments in (("--config", ROOT / "examples/demo.toml"), ()))
    assert with_file == without


SPENDS = [*TINY, *"--images 64 --height 96 --width 96 --crop 64 --batch 8 --channels-last --max-steps 1 "
          "--evaluate-every 1 --quiet".split()]


@pytest.mark.parametrize("spend", ["batch", "crop"])
def test_saved_memory_is_spent_on_more_pixels(spend, folder):
    succeeds("compare", *SPENDS, "--spend", spend, "--output", folder / "run")
    report = results(folder / "run")
    standard, inplace = (tomllib.loads((folder / "run" / name / "config.toml").read_text())
                         for name in ("standard", "inplace_2"))
    assert (standard["train"]["batch"], standard["data"]["crop"]) == (8, 64)
    if spend == "batch":
        assert inplace["train"]["batch"] == report["runs"][1]["largest_batch"] > 8
        assert inplace["data"]["crop"] == 64
    else:
        assert inplace["data"]["crop"] > 64 and inplace["data"]["crop"] % 8 == 0
        assert inplace["train"]["batch"] == 8
    crop, batch = inplace["data"]["crop"], inplace["train"]["batch"]
    more = 100 * (batch * crop**2 / (8 * 64**2) - 1)
    assert report["setup"]["trained on"] == (
        f"standard: 8 x 64 x 64 pixels [+0 %]; inplace_2: {batch} x {crop} x {crop} pixels [+{more:.0f} %]")
    assert all(run["training_seconds"] > 0 for run in report["runs"])


def test_the_largest_crop_is_the_last_one_whose_peak_fits(folder):
    """The peak of a step with momentum: the memory of a first step is less."""
    succeeds("compare", *SPENDS, "--spend", "crop", "--output", folder / "run")
    crop = tomllib.loads((folder / "run/inplace_2/config.toml").read_text())["data"]["crop"]

    def peak(side):
        succeeds("compare", *SPENDS, "--crop", side, "--strategies", "inplace_2,standard", "--output", folder / f"crop{side}")
        return results(folder / f"crop{side}")["runs"][0]["peak_bytes"]

    assert peak(crop) <= results(folder / "run")["memory_bytes"] < peak(crop + 8)


def test_variants_differ_in_precision_and_activation(folder):
    succeeds("compare", *COMPARE, "--strategies", "standard,inplace+bf16,standard+relu", "--output", folder / "run")
    assert [run["name"] for run in results(folder / "run")["runs"]] == ["standard", "inplace_2+bf16", "standard+relu"]
    configs = {name: tomllib.loads((folder / "run" / name / "config.toml").read_text())
               for name in ("standard", "inplace_2+bf16", "standard+relu")}
    assert configs["inplace_2+bf16"]["train"]["precision"] == "bf16"
    assert configs["standard"]["train"].get("precision", "f32") == "f32"
    assert configs["standard+relu"]["model"]["activation"] == "relu"


def test_a_setting_that_one_variant_uses_has_an_effect(folder):
    flags = ("compare", *COMPARE, "--activation", "relu", "--strategies", "standard,store_y+f16+leaky_relu", "--loss-scale", "64",
             "--slope", "0.2")
    shown = succeeds(*flags, "--output", folder / "run", "--dry-run").stdout
    assert 'loss_scale = "64"' in shown and "slope = 0.2" in shown
    succeeds(*flags, "--output", folder / "run", "--max-steps", "1", "--quiet")
    standard, other = (tomllib.loads((folder / "run" / name / "config.toml").read_text())
                       for name in ("standard", "store_y+f16+leaky_relu"))
    assert "loss_scale" not in standard["train"] and "slope" not in standard["model"]
    assert other["train"]["loss_scale"] == "64" and other["model"]["slope"] == 0.2
    fails(USAGE, *flags[:-1], "2", "--output", folder / "run", "--overwrite", says=["slope in [0, 1]", "got 2"])


@pytest.mark.parametrize("strategies", ["standard,inplace_2", "standard,store_y+bf16", "standard+f32,inplace_2+bf16"])
def test_a_setting_that_no_variant_uses_is_refused(strategies, folder):
    precision = ("--precision", "f16") if "+f32" in strategies else ()
    line = fails(USAGE, "compare", *COMPARE, *precision, "--strategies", strategies, "--loss-scale", "64", "--output", folder / "run",
                 says=["--loss-scale has no effect", "f16 or f16-pseudo, which is f32"])
    assert ("no variant of [compare] strategies (--strategies) uses it" in line) == ("+" in strategies)


def test_a_step_that_loss_scaling_skips_is_not_measured(folder):
    """The gradients overflow at the scale of 65536 and not at 1. A skipped step allocates no momentum."""
    root = image_folder(folder / "data", images=8)
    measured = {}
    for scale in ("1", "dynamic"):
        succeeds("compare", *TINY_CLASSIFIER, "--data-root", root, "--crop", "32", "--strategies", "standard+f16-pseudo,store_y+f16-pseudo",
                 "--loss-scale", scale, "--momentum", "0.9", "--max-steps", "1", "--quiet", "--output", folder / scale)
        measured[scale] = [(run["kept_bytes"], run["peak_bytes"], run["largest_batch"]) for run in results(folder / scale)["runs"]]
        steps = [json.loads(line) for line in (folder / scale / "standard+f16-pseudo/log.jsonl").read_text().splitlines()]
        assert steps[0].get("skipped_steps", 0) == (scale == "dynamic"), steps[0]
    assert measured["1"] == measured["dynamic"]


def test_a_training_whose_steps_are_all_skipped_cannot_be_measured(folder):
    root = image_folder(folder / "data", images=8)
    fails(DIVERGED, "compare", *TINY_CLASSIFIER, "--data-root", root, "--crop", "32", "--strategies", "standard+f16-pseudo,store_y+f16-pseudo",
          "--loss-scale", "1e30", "--quiet", "--output", folder / "run", says=["50 steps in a row are not finite", "--loss-scale", "1e+30"])


def test_a_network_without_normalizations_compares_precisions(folder):
    root = image_folder(folder / "data", classes=["a", "b"], images=4)
    succeeds("compare", "--model", "alexnet_cifar_narrow", "--data", "image_folder", "--data-root", root, "--crop", "32", "--batch", "4",
             "--strategies", "standard,standard+bf16", "--max-steps", "1", "--quiet", "--output", folder / "run")
    assert [run["name"] for run in results(folder / "run")["runs"]] == ["standard", "standard+bf16"]


@pytest.mark.parametrize("variants,message", [
    ("standard,inplace_2+bf61", "unknown precision, dense strategy or activation 'bf61'; did you mean 'bf16'?"),
    ("standard,inplace_2+bf16+f16", "bf16 and f16 exclude each other"),
    ("standard,inplace_2+fused", "fused needs a densely connected network"),
    ("inplace,inplace_2", "must differ, got inplace_2 twice"),
    ("store_y+bf16+relu,store_y+relu+bf16", "must differ, got store_y+bf16+relu twice ('store_y+relu+bf16' is another name for it)"),
    ("standard,standard+f32", "must differ, got standard twice ('standard+f32' is another name for it)"),
    ("standard,inplace_2+relu", "relu"),
])
def test_variants_that_cannot_work_are_refused(variants, message, folder):
    assert message in fails(USAGE, "compare", *COMPARE, "--strategies", variants, "--output", folder / "run")
    assert not (folder / "run").exists()


def test_spending_on_a_crop_needs_a_crop(folder):
    line = fails(USAGE, "compare", *TINY, "--crop", "0", "--spend", "crop", "--output", folder / "run")
    assert "--spend has no effect: it needs [data] crop (--crop) > 0, which is 0" in line

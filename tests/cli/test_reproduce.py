"""`palimpsest reproduce`: every row is listed, parses, and its small form compares what the row compares."""
import json
import math
import re
import subprocess
import tomllib

import pytest

from cli_support import BUILD, ROOT, USAGE, environment, fails, image_folder, succeeds
from layouts_support import published

PAPER = ROOT / "examples/paper"
ROWS = sorted(path.stem for path in PAPER.glob("*.toml"))
TINY_SCENES = "--model deeplabv3_resnet18_narrow --crop 32 --batch 2 --max-steps 1 --workers 0 --threads 1 --quiet".split()
TINY_CIFAR = "--batch 4 --max-steps 1 --workers 0 --threads 1 --quiet".split()


def test_every_row_takes_two_steps_and_an_evaluation(folder):
    """With its own network, loss, precision, sampler and optimizer, on generated data of its layout."""
    for kind in ("imagenet", "cityscapes", "cocostuff164k", "vistas"):
        published(kind, folder / kind, images=4)
    result = subprocess.run([BUILD / "tests/cli/recipe_steps_program", folder], capture_output=True, text=True,
                            env=environment(), cwd=folder)
    assert result.returncode == 0, result.stderr
    rows = {line["row"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert sorted(rows) == ROWS
    assert {row: line["error"] for row, line in rows.items() if "error" in line} == {}
    for row, line in rows.items():
        assert len(line["losses"]) == 2 and all(math.isfinite(loss) for loss in line["losses"]), row
        assert line["evaluated"] == (12 if "imagenet" in (PAPER / f"{row}.toml").read_text() else 4), row


def comments(row):
    return dict(re.findall(r"^# (paper|baseline|differs|small): (.*)$", (PAPER / f"{row}.toml").read_text(), flags=re.M))


def test_every_row_is_listed_with_what_the_paper_reports():
    listed = succeeds("reproduce", "--list").stdout
    assert re.findall(r"^(\w+)$", listed, flags=re.M) == ROWS
    for row in ROWS:
        assert comments(row)["paper"] in listed
        baseline = comments(row).get("baseline", "")
        named = re.match(r"(table|figure)\w+", baseline)
        assert not named or named[0] in ROWS, f"{row}: no row {named[0]}"


@pytest.mark.parametrize("given", [("--output", "here"), ("--small",), ("--config", "recipe.toml"), ("--device", "cpu")])
def test_the_list_takes_no_other_flag(given):
    fails(USAGE, "reproduce", "--list", *given, says=[f"{given[0]} has no effect with reproduce --list"])


def test_a_row_whose_network_is_not_the_papers_says_how_it_differs():
    listed = succeeds("reproduce", "--list").stdout
    differ = [row for row in ROWS if "differs" in comments(row)]
    assert differ == ["mixed_precision_alexnet", "mixed_precision_googlenet"]
    for row in differ:
        assert f"  differs:   {comments(row)['differs']}\n" in listed


@pytest.mark.parametrize("row", ROWS)
def test_the_recipe_of_a_row_is_what_the_program_carries(row):
    """reproduce and train --config have the same settings, and each row is a whole one: nothing has to be guessed."""
    effective = succeeds("reproduce", row, "--data-root", "ROOT", "--dry-run").stdout
    assert succeeds("train", "--config", PAPER / f"{row}.toml", "--data-root", "ROOT", "--dry-run").stdout == effective
    settings = tomllib.loads(effective)
    assert settings["train"]["seed"] == 1
    text = (PAPER / f"{row}.toml").read_text()
    assert text.startswith("# ") and f"palimpsest reproduce {row} --data-root PATH/TO/" in text


# What the papers print: (batch of all GPUs, crop, epochs, learning rate, figures in per cent).
IMAGENET, CITYSCAPES, COCO, VISTAS = (90, 0.1), (360, 2.5e-3), (30, 2.5e-3), (90, 3.5e-3)
PRINTED = {
    "table1_relu": (256, 224, *IMAGENET, "77.74 79.21 79.17 76.88 78.74 78.37"),
    "table1_leaky_relu": (256, 224, *IMAGENET, "77.04 78.72 77.92 76.81 78.46 77.84"),
    "table2_resnext101_standard": (256, 224, *IMAGENET, "77.04 78.72 77.92"),
    "table2_resnext101_inplace": (512, 224, *IMAGENET, "78.08 79.52 79.38"),
    "table2_resnext152_inplace": (256, 224, *IMAGENET, "78.28 79.73 79.56"),
    "table2_wide_resnet38_inplace": (256, 224, *IMAGENET, "79.72 81.03 80.69"),
    "table1_densenet264_inplace": (256, 224, *IMAGENET, "78.57 79.72 79.49"),
    "table2_resnext101_sync": (256, 224, *IMAGENET, "77.70 79.18 78.98"),
    "table3_resnext101_cityscapes_standard": (16, 512, *CITYSCAPES, "74.42"),
    "table3_resnext101_cityscapes_fixed_crop": (28, 512, *CITYSCAPES, "75.80"),
    "table3_resnext101_cityscapes_fixed_batch": (16, 672, *CITYSCAPES, "77.04"),
    "table3_resnext101_cityscapes_sync": (16, 672, *CITYSCAPES, "77.58"),
    "table3_resnext101_cocostuff_standard": (16, 480, *COCO, "20.30"),
    "table3_resnext101_cocostuff_fixed_crop": (24, 480, *COCO, "22.63"),
    "table3_resnext101_cocostuff_fixed_batch": (16, 600, *COCO, "23.35"),
    "table3_resnext101_cocostuff_sync": (16, 600, *COCO, "24.91"),
    "table3_wide_resnet38_cityscapes_standard": (20, 512, *CITYSCAPES, "75.82"),
    "table3_wide_resnet38_cityscapes_fixed_crop": (28, 512, *CITYSCAPES, "77.75"),
    "table3_wide_resnet38_cityscapes_fixed_batch": (20, 640, *CITYSCAPES, "78.31"),
    "table3_wide_resnet38_cityscapes_sync": (20, 640, *CITYSCAPES, "78.06"),
    "table3_wide_resnet38_cocostuff_standard": (20, 496, *COCO, "22.44"),
    "table3_wide_resnet38_cocostuff_fixed_crop": (28, 496, *COCO, "22.96"),
    "table3_wide_resnet38_cocostuff_fixed_batch": (20, 576, *COCO, "24.10"),
    "table3_wide_resnet38_cocostuff_sync": (20, 576, *COCO, "25.11"),
    "table4_resnext152_cityscapes_680_sync": (12, 680, *CITYSCAPES, "78.49"),
    "table4_wide_resnet38_cityscapes_712": (16, 712, *CITYSCAPES, "78.45"),
    "table4_wide_resnet38_cityscapes_712_sync": (16, 712, *CITYSCAPES, "79.02"),
    "table4_wide_resnet38_cityscapes_872_sync": (12, 872, *CITYSCAPES, "79.16"),
    "table4_wide_resnet38_cityscapes_872_class_uniform": (12, 872, *CITYSCAPES, "79.40"),
    "table4_wide_resnet38_vistas_776_class_uniform": (12, 776, *VISTAS, "53.12"),
    "mixed_precision_alexnet": (None, None, None, None, "56.93 56.77"),
    "mixed_precision_vgg16": (None, None, None, None, "65.43 65.40"),
    "mixed_precision_googlenet": (None, None, None, None, "68.43 68.33"),
    "mixed_precision_inception_v2": (None, None, None, None, "70.02 70.03"),
    "mixed_precision_inception_v3": (None, None, None, None, "74.13 73.85"),
    "mixed_precision_resnet50": (None, None, None, None, "76.04 75.92"),
}


@pytest.mark.parametrize("row", PRINTED)
def test_a_row_has_what_the_paper_prints(row):
    batch, crop, epochs, lr, figures = PRINTED[row]
    settings = tomllib.loads((PAPER / f"{row}.toml").read_text())
    if batch:
        assert (settings["train"]["batch"], settings["data"]["crop"]) == (batch, crop)
        assert (settings["train"]["epochs"], settings["optimizer"]["lr"]) == (epochs, lr)
    said = " ".join(comments(row).get(name, "") for name in ("paper", "baseline"))
    for figure in figures.split():
        assert figure in said, f"{row}: {figure} % is not in '{said}'"


def test_every_row_of_a_table_is_compared_with_what_the_paper_prints():
    assert [row for row in ROWS if row not in PRINTED and not row.startswith("figure6")] == []


@pytest.mark.parametrize("row", ROWS)
def test_the_small_form_of_a_row_has_settings_that_work(row):
    settings = tomllib.loads(succeeds("reproduce", row, "--small", "--data-root", "ROOT", "--dry-run").stdout)
    assert len(settings["compare"]["strategies"]) == 2
    flags = comments(row)["small"].split()[1:]
    assert "--spend" not in flags or settings["compare"]["spend"] == flags[flags.index("--spend") + 1]
    assert "--model" not in flags or settings["model"]["name"] == flags[flags.index("--model") + 1]


@pytest.mark.parametrize("row", ["table3_resnext101_cityscapes_fixed_crop", "table4_wide_resnet38_cityscapes_872_class_uniform"])
def test_small_segmentation_spends_the_memory_as_the_row_does(row, folder):
    root = published("camvid", folder / "camvid", images=4)
    printed = succeeds("reproduce", row, "--small", "--data-root", root, "--output", folder / "run", *TINY_SCENES).stdout
    standard, inplace = (tomllib.loads((folder / "run" / name / "config.toml").read_text())
                         for name in ("standard", "inplace_2"))
    spent = "batch" if row.endswith("fixed_crop") else "crop"
    table = "train" if spent == "batch" else "data"
    assert inplace[table][spent] > standard[table][spent]
    assert "trained on: standard: 2 x 32 x 32 pixels [+0 %]; inplace_2: " in printed
    assert f"the paper: {comments(row)['paper']}\n  against:   {comments(row)['baseline']}\n  changed:   " in printed
    changed = re.search(r"^  changed:   (.*): this was not the row at a size for two cores$", printed, flags=re.M)[1].split(", ")
    assert {"--model", "--crop", "--batch", "--max-steps"} == set(changed)


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory):
    root = image_folder(tmp_path_factory.mktemp("data") / "cifar10", classes=[f"class{i}" for i in range(10)], images=1)
    (root / "val").rename(root / "test")
    return root


def test_small_activation_rows_exchange_the_activations(cifar10, folder):
    printed = succeeds("reproduce", "table1_relu", "--small", "--data-root", cifar10, "--output", folder / "run", *TINY_CIFAR).stdout
    rows = json.loads((folder / "run/exchange.json").read_text())
    assert [(r["trained"], r["evaluated"]) for r in rows] == [
        ("relu", "relu"), ("relu", "leaky_relu"), ("leaky_relu", "relu"), ("leaky_relu", "leaky_relu")]
    runs = json.loads((folder / "run/results.json").read_text())["runs"]
    assert [rows[0]["top1"], rows[3]["top1"]] == [run["top1"] for run in runs]  # not exchanged: that of the training
    assert [rows[0]["loss"], rows[3]["loss"]] == [run["evaluations"][-1]["loss"] for run in runs]
    assert rows[0]["loss"] != rows[1]["loss"] and rows[2]["loss"] != rows[3]["loss"]
    assert "evaluated with relu" in printed and comments("table1_relu")["paper"] in printed


@pytest.mark.parametrize("row", ["table2_resnext101_inplace", "figure6_densenet264", "mixed_precision_vgg16"])
def test_small_classification_rows_compare(row, cifar10, folder):
    printed = succeeds("reproduce", row, "--small", "--data-root", cifar10, "--output", folder / "run", *TINY_CIFAR).stdout
    assert len(json.loads((folder / "run/results.json").read_text())["runs"]) == 2
    assert comments(row)["paper"] in printed


def test_one_process_says_that_it_normalizes_over_more_images_than_the_papers_gpus(folder):
    root = published("imagenet", folder / "imagenet", images=8)
    row = ["reproduce", "table1_relu", "--data-root", root, "--output", folder / "run", "--workers", "0", "--quiet", "--overwrite",
           "--model", "resnet18_narrow", "--crop", "32", "--batch", "8", "--max-steps", "1", "--threads", "1"]
    said = "each of the paper's 4 GPUs normalized over its 2 of 8 images, and this process normalizes over all 8"
    assert said in succeeds(*row).stderr
    for more in (["--accumulate", "4"], ["--batch", "2"]):
        assert "GPUs" not in succeeds(*row, *more).stderr
    for name in ROWS:  # whoever normalizes apart has the line, and whoever shares the statistics does not
        text = (PAPER / f"{name}.toml").read_text()
        assert ("\n# gpus: 4\n" in text) == (name.startswith("table") and "sync_norm = true" not in text), name


def test_segmentation_rows_scale_as_pillow_does():
    for name in ROWS:
        data = tomllib.loads((PAPER / f"{name}.toml").read_text())["data"]
        if data["kind"] != "imagenet":
            assert data["resize"] == "bilinear", name
            assert data.get("reduce_jpeg", False) == (data["kind"] == "vistas"), name


def test_another_number_of_epochs_keeps_the_share_of_the_warm_up():
    def small(*more):
        return tomllib.loads(succeeds("reproduce", "table3_resnext101_cityscapes_fixed_crop", "--small", "--data-root", "ROOT",
                                      "--dry-run", *more).stdout)

    recipe = small()
    share = recipe["schedule"]["warmup_epochs"] / recipe["train"]["epochs"]
    assert 0 < share < 1
    assert math.isclose(small("--epochs", "1")["schedule"]["warmup_epochs"], share)
    assert small("--epochs", "4", "--warmup", "0.5")["schedule"]["warmup_epochs"] == 0.5


def test_a_resumed_row_keeps_the_settings_of_its_run(folder):
    root = published("imagenet", folder / "imagenet", images=2)
    row = ["reproduce", "table1_relu", "--data-root", root, "--output", folder / "run", "--workers", "0", "--quiet"]
    changes = ["--model", "resnet18_narrow", "--brightness", "0", "--lighting", "0", "--crop", "64", "--short-side", "0",
               "--batch", "4", "--accumulate", "4", "--threads", "1", "--ema-decay", "0.9", "--clip-norm", "1", "--label-smoothing", "0.1"]

    def changed_in(printed):
        return re.search(r"^  changed:   (.*): this was not the paper's row$", printed, flags=re.M)[1].split(", ")

    first = changed_in(succeeds(*row, *changes, "--max-steps", "1").stdout)
    printed = succeeds(*row, "--resume", "--max-steps", "2").stdout
    data = tomllib.loads((folder / "run/config.toml").read_text())["data"]
    assert (data.get("brightness", 0), data.get("lighting", 0), data.get("short_side", 0)) == (0, 0, 0)
    assert data["contrast"] == 0.4  # the recipe's
    assert "here:      top-1 " in printed
    assert changed_in(printed) == first and set(first) == {
        "--model", "--crop", "--short-side", "--brightness", "--lighting", "--max-steps", "--batch", "--ema-decay",
        "--clip-norm", "--label-smoothing"}

    before = (folder / "run/checkpoint.safetensors").read_bytes()
    for other in ("table1_leaky_relu", "table3_wide_resnet38_cityscapes_fixed_crop"):  # of another task
        fails(USAGE, "reproduce", other, *row[2:], "--resume", says=[
            f"reproduce {other} --resume needs a run of this row", "one of the row table1_relu", "name another --output",
            "reproduce table1_relu --resume"])
    assert (folder / "run/checkpoint.safetensors").read_bytes() == before
    succeeds("train", "--resume", "--max-steps", "3", "--output", folder / "run", "--quiet")
    succeeds(*row, "--resume", "--max-steps", "4")  # still a run of the row


def test_a_row_does_not_go_on_in_a_run_of_no_row(copy_of_run):
    before = {path.name: path.read_bytes() for path in copy_of_run.iterdir()}
    fails(USAGE, "reproduce", "table1_relu", "--resume", "--output", copy_of_run,
          says=["reproduce table1_relu --resume needs a run of this row", copy_of_run, "a run of no row", "train --resume"])
    assert {path.name: path.read_bytes() for path in copy_of_run.iterdir()} == before


@pytest.mark.parametrize("arguments,message", [
    ([], "reproduce needs the argument ROW"),
    (["table3_resnext101_cityscapes_fixed_crap"], "did you mean 'table3_resnext101_cityscapes_fixed_crop'?"),
    (["table1"], "unknown row 'table1'; these begin so: table1_densenet264_inplace, table1_leaky_relu, table1_relu"),
    (["table1_relu", "--config", "x.toml"], "reproduce has the recipe of its row: leave out --config"),
    (["table1_relu", "--small", "--resume"], "reproduce --small does not use the option '--resume'"),
    (["table1_relu", "--spend", "batch"], "reproduce without --small does not use the option '--spend'"),
    (["table1_relu", "--spent", "batch"], "unknown option '--spent' for reproduce; did you mean '--spend'?"),
    (["table1_relu"], "needs the folder of the data set: give --data-root"),
])
def test_a_wrong_call_is_one_line(arguments, message, folder):
    assert message in fails(USAGE, "reproduce", *arguments, cwd=folder)
    assert not any(folder.iterdir())

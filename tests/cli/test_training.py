"""From options to a trained network and to what is done with it."""
import json
import tomllib

import numpy as np
import pytest
import safetensors.numpy

from cli_support import (CHECKPOINT, DATA_ERROR, ROOT, TINY, TINY_CLASSIFIER, USAGE, fails, image_folder, png, png_size,
                         segmentation_folder, succeeds, write)

TINY_SEGMENTATION = ("--model deeplabv3_resnet18_narrow --data segmentation_folder --classes 3 --crop 32 --batch 4 --threads 1 "
                     "--evaluate-every 0").split()


def test_a_run_leaves_checkpoint_log_and_configuration(trained):
    assert {path.name for path in trained.iterdir()} == {"checkpoint.safetensors", "log.jsonl", "config.toml",
                                                         "step_memory.safetensors"}
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
    assert layers["conv1"]["multiply_adds"] == 64 * 3 * 7 * 7 * 32 * 32  # of one image
    assert sum(layer["multiply_adds"] for layer in result["layers"]) == result["multiply_adds"]
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


def test_info_of_a_run_says_first_what_it_is(trained_classifier):
    run, data = trained_classifier
    text = succeeds("info", run).stdout
    lines = dict(line.split(maxsplit=1) for line in text.splitlines()[:7])
    assert lines["checkpoint"] == str(run / "checkpoint.safetensors")
    assert lines["network"] == "resnet18_narrow, 2 classes, leaky_relu with slope 0.01"
    assert (lines["classes"], lines["strategy"], lines["state"]) == ("cat, dog", "inplace_2", "step 2 of 2, epoch 1 of 1")
    assert lines["data"].startswith("image_folder") and " images (" in lines["data"]
    assert lines["training"].startswith("batch 4, SGD with lr 0.01")
    assert "kept MB" not in text and f"palimpsest info {run / 'checkpoint.safetensors'} --size 224" in text
    measured = succeeds("info", run, "--size", "32").stdout
    assert measured.startswith("\n".join(text.splitlines()[:7])) and "kept MB" in measured

    said = json.loads(succeeds("info", run, "--json").stdout)
    assert said["class_names"] == ["cat", "dog"] and "strategies" not in said
    assert [said[key] for key in ("model", "step", "steps", "epoch", "epochs", "folded")] == \
        ["resnet18_narrow", 2, 2, 1, 1, False]
    assert len(json.loads(succeeds("info", run, "--size", "32", "--json").stdout)["strategies"]) > 3


def test_info_of_weights_says_that_they_have_no_state(trained_classifier, folder):
    succeeds("export", trained_classifier[0], "--fold", "--output", folder / "w.safetensors")
    text = succeeds("info", folder / "w.safetensors").stdout
    assert "weights folded for inference" in text and "cat, dog" in text and "batch" not in text
    said = json.loads(succeeds("info", folder / "w.safetensors", "--json").stdout)
    assert said["folded"] and said["step"] is said["steps"] is said["epoch"] is said["epochs"] is None


def test_a_run_is_named_by_its_folder(trained_classifier, folder):
    run, data = trained_classifier
    image = data / "val/cat/0.png"
    for command in (("eval", "--json"), ("predict", image), ("info", "--json")):
        name, *rest = command
        assert succeeds(name, run, *rest).stdout == succeeds(name, run / "checkpoint.safetensors", *rest).stdout
    (folder / "empty").mkdir()
    fails(CHECKPOINT, "eval", folder / "empty", says=[f"'{folder / 'empty'}' holds no checkpoint.safetensors"])


def test_epochs_count_from_1_in_the_log_as_on_the_terminal(folder):
    result = succeeds("train", *TINY, "--epochs", "2", "--evaluate-every", "1", "--output", folder / "run")
    log = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in log if line["type"] == "step"] == [1, 1, 2, 2]
    assert [line["epoch"] for line in log if line["type"] == "evaluation"] == [1, 2]
    assert [f"step {n}/4  epoch {(n + 1) // 2}/2" in result.stderr for n in range(1, 5)] == [True] * 4


def test_the_manual_names_the_members_of_the_log(trained, trained_classifier):
    manual = (ROOT / "docs/cli.md").read_text()
    manual = manual[manual.index("## log.jsonl"):manual.index("## On a GPU")]
    for run in (trained, trained_classifier[0]):
        for line in (run / "log.jsonl").read_text().splitlines():
            assert [key for key in json.loads(line) if f"`{key}`" not in manual] == []


def jpeg(folder, name, orientation, width=20, height=12):
    """A picture with a bright left half as it is stored, and Exif data that say how it is to be turned."""
    from PIL import Image
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, :width // 2] = 200
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = write(folder / name, b"")
    Image.fromarray(pixels).save(path, quality=95, exif=exif)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_predicted_as_viewers_show_it(trained, folder, orientation):
    from PIL import Image, ImageOps
    photo = jpeg(folder / "in", "photo.jpg", orientation)
    for shown, flags in ((ImageOps.exif_transpose(Image.open(photo)), ()), (Image.open(photo), ("--no-exif-orientation",))):
        plain = write(folder / "in/plain.png", png(np.asarray(shown)))
        succeeds("predict", trained, photo, plain, *flags, "--logits", folder / "l.safetensors", "--overwrite")
        logits = safetensors.numpy.load_file(folder / "l.safetensors")
        assert np.array_equal(logits[str(photo)], logits[str(plain)])


def test_a_run_of_a_program_that_knew_no_exif_data_reads_the_stored_pixels(folder):
    """Its configuration does not have the setting. The header is padded, so that the offsets stay."""
    data = image_folder(folder / "data")
    for path in list((data / "train").glob("*/*")):
        jpeg(path.parent, f"{path.stem}.jpg", 6, 24, 16)
        path.unlink()
    flags = ("--model", "resnet18_narrow", "--data", "image_folder", "--data-root", data, "--crop", "16", "--batch", "4",
             "--threads", "1", "--workers", "0", "--evaluate-every", "0", "--epochs", "2")
    for name, orientation in (("stored", "--no-exif-orientation"), ("shown", "--exif-orientation")):
        succeeds("train", *flags, orientation, "--output", folder / name)
    succeeds("train", *flags, "--no-exif-orientation", "--max-steps", "1", "--output", folder / "old")
    for name in ("checkpoint.safetensors", "config.toml"):
        file = folder / "old" / name
        bytes_ = file.read_bytes()
        header_end = 8 + int.from_bytes(bytes_[:8], "little") if name.startswith("checkpoint") else len(bytes_)
        line = b"exif_orientation = false\\n" if name.startswith("checkpoint") else b"exif_orientation = false\n"
        header = bytes_[:header_end].replace(line, b"")
        assert len(header) < header_end
        file.write_bytes(header + b" " * (header_end - len(header) if name.startswith("checkpoint") else 0) + bytes_[header_end:])
    succeeds("train", "--resume", "--max-steps", "0", "--output", folder / "old")

    def tensors(name):
        return safetensors.numpy.load_file(folder / name / "checkpoint.safetensors")
    assert all(np.array_equal(tensors("old")[key], value) for key, value in tensors("stored").items())
    assert not all(np.array_equal(tensors("old")[key], value) for key, value in tensors("shown").items())


def test_a_slope_of_0_is_relu(folder):
    for name, flags in (("slope", ["--activation", "leaky_relu", "--slope", "0"]), ("relu", ["--activation", "relu"])):
        succeeds("train", *TINY, *flags, "--max-steps", "2", "--output", folder / name)
    slope, relu = (safetensors.numpy.load_file(folder / name / "checkpoint.safetensors") for name in ("slope", "relu"))
    assert all(np.allclose(slope[key], value, rtol=1e-4, atol=1e-6) for key, value in relu.items())


def test_a_label_drawn_on_the_stored_pixels_is_told_the_way_out(folder):
    data = segmentation_folder(folder / "data")
    photo = jpeg(data / "train", "0.jpg", 6, 64, 48)
    (data / "train/0.png").unlink()
    flags = ("train", *TINY_SEGMENTATION, "--data-root", data, "--output", folder / "run")
    fails(DATA_ERROR, *flags, says=[photo, "48x64", "64x48", "--no-exif-orientation"])
    succeeds(*flags, "--no-exif-orientation", "--overwrite")
    for orientation, width, height in ((1, 64, 48), (3, 64, 48), (8, 64, 64)):
        write(data / "trainannot/0.png", png(np.zeros((height, width), np.uint8)))
        jpeg(data / "train", "0.jpg", orientation, width, height)
        for more in ((), ("--no-exif-orientation",)):
            result = succeeds(*flags, *more, "--overwrite")
            warned = [line for line in result.stderr.splitlines() if "turned or mirrored" in line]
            assert len(warned) == (orientation > 1 and not more) and all(str(photo) in line for line in warned)
    fails(USAGE, "train", *TINY, "--no-exif-orientation", "--dry-run", says=["--no-exif-orientation has no effect", "generated"])


def test_files_that_are_no_images_are_counted_and_named_once(trained, trained_classifier, folder):
    data = segmentation_folder(folder / "data")
    for name in ("train/a.bmp", "train/.hidden.png", "trainannot/b.webp", "val/more/c.png"):
        write(data / name, b"x")
    result = succeeds("train", *TINY_SEGMENTATION, "--data-root", data, "--evaluate-every", "1", "--output", folder / "run")
    line, = [line for line in result.stderr.splitlines() if "skipped" in line]
    assert line == ("palimpsest: skipped 4 files or folders, which are hidden or no .jpg, .jpeg or .png file: "
                    f"{data / 'train/.hidden.png'}, {data / 'train/a.bmp'}, {data / 'trainannot/b.webp'}, ...")
    quiet = succeeds("train", *TINY_SEGMENTATION, "--data-root", data, "--quiet", "--output", folder / "quiet")
    assert "skipped" not in quiet.stderr

    told = succeeds("predict", trained, data / "train", "--output", folder / "out").stderr
    assert told.count("skipped 2 files or folders") == 1 and "a.bmp" in told and ".hidden.png" in told
    assert "skipped" not in succeeds("predict", trained, data / "train/0.png", "--output", folder / "one").stderr

    classes = image_folder(folder / "classes")
    write(classes / "train/notes.txt", b"x")
    write(classes / "train/cat/d.gif", b"x")
    told = succeeds("train", *TINY_CLASSIFIER, "--data-root", classes, "--output", folder / "classifier").stderr
    assert "skipped 2 files or folders" in told and "notes.txt" in told and "d.gif" in told

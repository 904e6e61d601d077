"""Images, labels and folders that are not as they must be: one line that names them, exit code 3, nothing written."""
import json

import numpy as np
import pytest

from cli_support import (DATA_ERROR, OUTPUT, TINY_CLASSIFIER, USAGE, error_line, fails, image_folder, png, run,
                         segmentation_folder, succeeds, write)

OPTIONS = ("--model deeplabv3_resnet18 --data segmentation_folder --classes 3 --batch 2 --threads 1 --workers 1 "
           "--evaluate-every 0 --quiet").split()


@pytest.fixture
def data(folder):
    return segmentation_folder(folder / "data")


def train_fails(code, data, *arguments, says):
    run = data.parent / "run"
    return fails(code, "train", *OPTIONS, "--data-root", data, "--output", run, *arguments, says=says)


def test_a_missing_root_is_named(folder):
    train_fails(DATA_ERROR, folder / "nowhere", says=[folder / "nowhere"])


def test_a_root_is_required(folder):
    fails(USAGE, "train", *OPTIONS, "--output", folder / "run", says=["--data-root"])


def test_the_number_of_classes_is_required(data):
    fails(USAGE, "train", "--data", "segmentation_folder", "--data-root", data, "--output", data.parent / "run",
          says=["--classes"])


def test_an_empty_folder_is_named(data):
    for path in (data / "train").iterdir():
        path.unlink()
    train_fails(DATA_ERROR, data, says=[data / "train"])


def test_a_missing_label_is_named(data):
    (data / "trainannot/2.png").unlink()
    train_fails(DATA_ERROR, data, says=["trainannot/2"])


def test_a_missing_label_is_counted_and_named_as_other_bad_images_are(data):
    (data / "trainannot/2.png").unlink()
    (data / "valannot/1.png").unlink()
    run, loud = data.parent / "run", [option for option in OPTIONS if option != "--quiet"]
    flags = (*loud, "--data-root", data, "--bad-images", "skip", "--crop", "32", "--output", run)
    told = succeeds("train", *flags, "--epochs", "2").stderr
    assert "train/2.png' has no label" in told
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    reasons = [record["reason"] for record in records if record["type"] == "bad_image"]
    assert len(reasons) == 1 and "train/2.png' has no label" in reasons[0]
    evaluated = succeeds("eval", run, "--json")
    assert (json.loads(evaluated.stdout)["images"], json.loads(evaluated.stdout)["bad_images"]) == (3, 1)
    assert "val/1.png' has no label" in evaluated.stderr

    told = succeeds("train", *flags, "--sampler", "class_uniform", "--overwrite").stderr
    assert "no class is drawn of 1 image that cannot be used: image" in told and "train/2.png' has no label" in told
    assert not (run / "class_presence.safetensors").exists()


def test_labels_that_are_all_missing_are_an_error_with_either_policy(data):
    for label in (data / "trainannot").iterdir():
        label.rename(label.with_name(f"x{label.name}"))
    for policy in ("fail", "skip"):
        train_fails(DATA_ERROR, data, "--bad-images", policy, says=["train/0.png", "has no label", "7 faults more"])


def test_validation_images_that_all_cannot_be_read_are_an_error_before_the_training(data):
    succeeds("train", *OPTIONS, "--data-root", data, "--crop", "32", "--max-steps", "1", "--output", data.parent / "earlier")
    for image in (data / "val").iterdir():
        image.write_bytes(b"damaged")
    train_fails(DATA_ERROR, data, "--bad-images", "skip", "--evaluate-every", "1", "--crop", "32",
                says=["none of the 4 validation images can be read", "val/0.png"])
    assert not (data.parent / "run").exists()
    fails(DATA_ERROR, "eval", data.parent / "earlier", "--bad-images", "skip",
          says=["none of the 4 images of the evaluation could be read", "val/0.png"])
    (data / "val/3.png").write_bytes((data / "train/3.png").read_bytes())
    succeeds("train", *OPTIONS, "--data-root", data, "--bad-images", "skip", "--evaluate-every", "1", "--crop", "32",
             "--output", data.parent / "run")


def test_a_missing_image_is_named_by_its_label(data):
    (data / "train/2.png").unlink()
    train_fails(DATA_ERROR, data, says=["trainannot/2.png", "has no image"])


@pytest.mark.parametrize("contents", [b"", b"not an image", png(np.zeros((48, 64, 3)))[:60]],
                         ids=["empty", "foreign", "truncated"])
def test_an_unreadable_image_is_named(data, contents):
    write(data / "train/3.png", contents)
    train_fails(DATA_ERROR, data, says=["train/3.png"])


def test_a_label_of_another_size_is_named_with_both_sizes(data):
    write(data / "trainannot/0.png", png(np.zeros((48, 63))))
    train_fails(DATA_ERROR, data, says=["0.png", "63", "64"])


def test_a_class_id_out_of_range_is_named(data):
    label = np.zeros((48, 64))
    label[7, 9] = 17
    write(data / "trainannot/0.png", png(label))
    train_fails(DATA_ERROR, data, says=["trainannot/0.png", "17"])


def test_an_id_that_is_not_the_ignored_one_is_out_of_range(data):
    write(data / "trainannot/0.png", png(np.full((48, 64), 255)))
    train_fails(DATA_ERROR, data, "--ignore-id", "18", says=["trainannot/0.png", "255"])


def test_a_crop_larger_than_the_image_needs_padding(data):
    train_fails(USAGE, data, "--crop", "96", "--no-pad", says=["train/", "96", "64"])


def test_a_batch_that_leaves_one_value_per_channel_is_an_error(data):
    train_fails(USAGE, data, "--batch", "1", says=["one value per image and channel", "batch"])


def test_a_crop_that_leaves_one_value_per_channel_is_an_error(folder):
    data = image_folder(folder / "data")
    fails(USAGE, "train", *TINY_CLASSIFIER, "--batch", "1", "--data-root", data, "--output", folder / "run",
          says=["one value per channel", "step 1", "batch"])


def test_a_batch_larger_than_the_data_set_is_an_error(data):
    train_fails(USAGE, data, "--batch", "5", says=["--batch", "4", "5"])


def test_a_model_that_names_images_does_not_take_labelled_pixels(data):
    fails(USAGE, "train", "--model", "resnet18", "--data", "segmentation_folder", "--classes", "3", "--batch", "5",
          "--data-root", data, "--output", data.parent / "run", says=["--model", "segmentation", "resnet18"])


def test_a_class_folder_without_images_is_named(folder):
    data = image_folder(folder / "data")
    for path in (data / "train/dog").iterdir():
        path.unlink()
    fails(DATA_ERROR, "train", *TINY_CLASSIFIER, "--data-root", data, "--output", folder / "run", says=["dog"])


def test_another_number_of_classes_than_folders_is_an_error(folder):
    data = image_folder(folder / "data")
    fails(USAGE, "train", *TINY_CLASSIFIER, "--classes", "3", "--data-root", data, "--output", folder / "run",
          says=["--classes", "2", "3"])


def test_nothing_is_written_before_the_data_is_found(folder):
    train_fails(DATA_ERROR, folder / "nowhere", says=[])
    assert not (folder / "run").exists()


def renamed_class(folder, split, old, new):
    data = image_folder(folder / "data")
    (data / split / old).rename(data / split / new)
    return data


def test_class_folders_that_differ_between_the_splits_are_named(folder):
    data = renamed_class(folder, "val", "dog", "ant")  # sorts before cat: every id would mean another class
    train = ("train", *TINY_CLASSIFIER, "--evaluate-every", "1", "--data-root", data, "--output", folder / "run")
    fails(DATA_ERROR, *train, says=["same classes", f"only in {data}/train: dog", f"only in {data}/val: ant"])
    (data / "val/ant").rename(data / "val/dog")
    (data / "val/emu").mkdir()
    write(data / "val/emu/0.png", (data / "val/dog/0.png").read_bytes())
    line = fails(DATA_ERROR, *train, says=["got 2 and 3", f"only in {data}/val: emu"])
    assert f"only in {data}/train" not in line


def test_eval_over_other_classes_than_those_of_the_training_is_refused(trained_classifier, folder):
    data = renamed_class(folder, "val", "dog", "ant")
    checkpoint = trained_classifier[0] / "checkpoint.safetensors"
    fails(DATA_ERROR, "eval", checkpoint, "--data-root", data, says=["same classes", "ant", "dog"])


def test_classes_may_be_renamed_by_the_user(folder):
    data = image_folder(folder / "data")
    succeeds("train", *TINY_CLASSIFIER, "--data-root", data, "--class-names", "Katze,Hund", "--output", folder / "run")
    succeeds("eval", folder / "run/checkpoint.safetensors")


def test_class_names_in_another_order_are_refused(folder):
    data = image_folder(folder / "data")
    fails(USAGE, "train", *TINY_CLASSIFIER, "--data-root", data, "--class-names", "dog,cat", "--output", folder / "run",
          says=["has 'dog' as class 0, which is class 1 of the data set", "class 0 is 'cat' there"])
    for names in ("cat,,dog", "cat,dog,"):
        fails(USAGE, "train", *TINY_CLASSIFIER, "--data-root", data, "--class-names", names, "--output", folder / "run",
              says=["--class-names", "no empty name"])
    assert not (folder / "run").exists()


def test_a_scale_that_leaves_no_pixel_is_an_error(data):
    line = train_fails(DATA_ERROR, data, "--crop", "32", "--scale-min", "0.01", "--scale-max", "0.01",
                       says=["the scale 0.01 leaves no pixel of", "which has 64x48 pixels", "at least 0.0105"])
    assert "train" in line
    succeeds("train", *OPTIONS, "--data-root", data, "--crop", "32", "--scale-min", "0.0105", "--scale-max", "0.0105",
             "--output", data.parent / "coarse", "--max-steps", "1")


def test_an_evaluation_without_a_labelled_pixel_has_no_loss(data):
    for label in (data / "valannot").iterdir():
        write(label, png(np.full((48, 64), 255)))
    run = data.parent / "run"
    told = succeeds("train", *OPTIONS[:-1], "--evaluate-every", "1", "--data-root", data, "--crop", "32", "--max-steps", "2",
                    "--epochs", "1", "--keep-best", "loss", "--output", run).stderr
    assert "no pixel of the 4 evaluated images has a class" in told
    evaluation, = (line for line in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if line["type"] == "evaluation")
    assert evaluation["loss"] is None and evaluation["mean_iou"] is None and not evaluation["best"]
    assert not (run / "best.safetensors").exists()
    told = succeeds("eval", run, "--json")
    assert "no pixel of the 4 evaluated images has a class" in told.stderr and json.loads(told.stdout)["loss"] is None


def test_an_evaluation_in_whose_loss_nothing_counts_keeps_its_metrics(data):
    run = data.parent / "run"
    told = succeeds("train", *OPTIONS[:-1], "--evaluate-every", "1", "--data-root", data, "--crop", "32", "--max-steps", "2",
                    "--epochs", "1", "--loss", "bootstrap", "--bootstrap-probability", "1e-9", "--keep-best", "metric",
                    "--output", run).stderr
    assert told.count("nothing in its batch counts in the loss") == 1 and "step 1: nothing" in told
    assert "nothing of the 4 evaluated images counts in the loss" in told
    evaluation, = (line for line in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if line["type"] == "evaluation")
    assert evaluation["loss"] is None and evaluation["mean_iou"] > 0 and evaluation["best"]
    assert (run / "best.safetensors").exists()
    told = succeeds("eval", run, "--json")
    assert "counts in the loss" in told.stderr and json.loads(told.stdout)["mean_iou"] == evaluation["mean_iou"]


def test_an_evaluation_that_cannot_be_is_an_error_before_the_training(data):
    train_fails(USAGE, data, "--evaluate-every", "1", "--crop", "32", "--eval-crop", "49", "--no-pad",
                says=["49x49 does not fit into", "val/0.png", "an eval_crop of at most 48"])
    train_fails(USAGE, data, "--evaluate-every", "1", "--crop", "32", "--eval-crop", "4096",
                says=["4096x4096 would be padding", "set an eval_crop of at most 512"])
    write(data / "val/0.png", b"text")
    train_fails(DATA_ERROR, data, "--evaluate-every", "1", "--crop", "32", says=["val/0.png", "neither JPEG nor PNG"])
    assert not (data.parent / "run/log.jsonl").exists()


def test_an_index_of_classes_that_cannot_be_written_is_an_error_before_the_labels_are_read(data):
    write(data.parent / "file", b"")
    for cache in (data.parent / "file", data.parent / "file/below"):
        result = run("train", *OPTIONS[:-1], "--data-root", data, "--crop", "32", "--sampler", "class_uniform", "--cache", cache,
                     "--output", data.parent / "run")
        assert result.returncode == OUTPUT and "index of classes goes there (--cache)" in error_line(result)
        assert "labels read" not in result.stderr


def test_one_class_is_told(folder):
    flags = ("train", "--model", "resnet18_narrow", "--data", "image_folder", "--data-root", image_folder(folder / "one", ("cat",)),
             "--batch", "2", "--threads", "1", "--evaluate-every", "0", "--max-steps", "1", "--output", folder / "run")
    assert "one class" in succeeds(*flags).stderr


def test_an_ignore_id_that_is_a_class_unasked_is_an_error(data):
    train_fails(USAGE, data, "--classes", "256", says=["--classes make 255 a class, which is the ignore id", "--ignore-id", "got 256"])
    for ignored in ("255", "2"):  # this class does not count
        succeeds("train", *OPTIONS, "--data-root", data, "--crop", "32", "--ignore-id", ignored, "--classes", "256", "--dry-run")

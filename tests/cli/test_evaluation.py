"""eval and predict with several views of an image, confusion matrices, label images and exchanged activations."""
import csv
import json
import math
import os
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from cli_support import (DIVERGED, OUTPUT, TINY, TINY_CLASSIFIER, USAGE, change_checkpoint, fails, image_folder, png, png_size,
                         segmentation_folder, succeeds, write)

VIEWS = "--eval-scales 0.75,1.25 --eval-flip --window 32 --window-stride 20".split()


@pytest.fixture(scope="module")
def run21(tmp_path_factory):
    """(run folder, data folder) of a segmentation network of 21 classes."""
    folder = tmp_path_factory.mktemp("run21")
    data = segmentation_folder(folder / "data", classes=21)
    flags = "--data segmentation_folder --classes 21 --crop 32 --batch 4 --threads 1 --evaluate-every 0".split()
    succeeds("train", *TINY[:2], *flags, "--data-root", data, "--output", folder / "run")
    return folder / "run", data


def evaluation(*arguments):
    return json.loads(succeeds("eval", *arguments, "--json", "--threads", "1").stdout)


def test_views_do_not_depend_on_the_batch_and_change_the_result(run21):
    run, _ = run21
    one = evaluation(run, *VIEWS, "--eval-batch", "1")
    assert one == evaluation(run, *VIEWS, "--eval-batch", "3") != evaluation(run)


@pytest.mark.parametrize("flags", ["--channels-last", "--precision bf16", "--dtype f64"])
def test_every_format_has_views(run21, flags):
    said, f32 = evaluation(run21[0], *VIEWS, *flags.split()), evaluation(run21[0], *VIEWS)
    assert said["loss"] == pytest.approx(f32["loss"], rel=0.05 if "bf16" in flags else 1e-4)


def test_a_run_stores_its_views_and_eval_and_predict_use_them(folder):
    recipe = folder / "recipe.toml"
    recipe.write_text("[eval]\nscales = [0.75, 1]\nflip = true\nwindow = 32\n")
    succeeds("train", *TINY, "--config", recipe, "--output", folder / "run")
    assert "[eval]\nscales = [0.75, 1]\nflip = true\nwindow = 32\n" in (folder / "run/config.toml").read_text()
    stored = evaluation(folder / "run")
    plain = ("--eval-scales", "1", "--no-eval-flip", "--window", "0")
    assert stored == evaluation(folder / "run", "--eval-scales", "0.75,1") != evaluation(folder / "run", *plain)


def test_a_run_without_views_has_the_configuration_that_it_always_had(trained):
    assert "[eval]" not in (trained / "config.toml").read_text()


@pytest.mark.parametrize("device, says", [("gpu", ["unknown device 'gpu'", "cpu", "cuda"]),
                                          ("cuda:128", ["unknown device 'cuda:128'", "cuda:0"]),
                                          ("cuda", ["device 'cuda'", "needs a build with kernels for GPUs", "or use cpu"])])
def test_a_device_that_is_not_there_is_refused(trained, folder, device, says):
    fails(USAGE, "eval", trained, "--device", device, says=says)
    fails(USAGE, "predict", trained, folder, "--output", folder / "out", "--device", device, says=says)
    assert not (folder / "out").exists()


@pytest.mark.parametrize("form", ["csv", "json"])
def test_the_confusion_matrix_has_a_row_per_true_class(run21, folder, form):
    run, data = run21
    file = folder / f"confusion.{form}"
    said = evaluation(run, "--confusion", file, "--labels", "train", "--output", folder / "labels")
    want = np.zeros((21, 21), dtype=int)
    for label in (data / "valannot").iterdir():
        truth, predicted = np.array(Image.open(label)), np.array(Image.open(folder / "labels" / label.name))
        np.add.at(want, (truth, predicted), 1)
    assert said["confusion"] == want.tolist()
    if form == "csv":
        header, *rows = csv.reader(file.open(newline=""))
        assert header == ["truth"] + [f"class {i}" for i in range(21)]
        assert [row[0] for row in rows] == header[1:] and [list(map(int, row[1:])) for row in rows] == want.tolist()
    else:
        read = json.loads(file.read_text())
        assert read["confusion"] == want.tolist() and read["classes"][20] == "class 20"
    fails(OUTPUT, "eval", run, "--confusion", file, says=["exists", "--overwrite"])
    before = file.read_bytes()
    succeeds("eval", run, "--confusion", file, "--overwrite", "--threads", "1")
    assert file.read_bytes() == before


@pytest.fixture(scope="module")
def damaged(run21, tmp_path_factory):
    """(run folder, data folder) of run21 with a NaN among the weights."""
    folder = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(run21[0], folder)

    def damage(tensors, _):
        next(value for name, value in tensors.items() if name.endswith("weight") and value.ndim == 4).flat[0] = math.nan

    change_checkpoint(folder / "checkpoint.safetensors", damage)
    return folder, run21[1]


@pytest.mark.parametrize("views", [(), VIEWS])
def test_outputs_that_are_nan_are_no_confusion_matrix_and_no_prediction_without_a_word(damaged, folder, views):
    run, data = damaged
    file = folder / "confusion.csv"
    fails(DIVERGED, "eval", run, *views, "--confusion", file, says=[file, "is not written", "are NaN"])
    assert not file.exists()
    assert "confusion" not in evaluation(run, *views)
    image = next((data / "val").iterdir())
    for flags in (("--output", folder / "out"), ("--logits", folder / "logits")):
        assert "outputs are NaN" in succeeds("predict", run, image, *views, *flags).stderr


def test_classification_has_a_confusion_matrix_on_request(trained_classifier, folder):
    run, data = trained_classifier
    assert "confusion" not in evaluation(run)
    said = evaluation(run, "--confusion", folder / "c.json")
    assert sum(map(sum, said["confusion"])) == 8
    assert said["top1"] == sum(said["confusion"][i][i] for i in range(2)) / 8
    assert json.loads((folder / "c.json").read_text()) == {"classes": ["cat", "dog"], "confusion": said["confusion"]}


def test_label_images_of_eval_and_predict_are_the_same(run21, folder):
    run, data = run21
    for views in ((), VIEWS):
        for command, images in (("eval", ()), ("predict", (data / "val",))):
            succeeds(command, run, *images, *views, "--labels", "train", "--output", folder / command, "--overwrite",
                     "--threads", "1")
        for image in (data / "val").iterdir():
            assert png_size(folder / "eval" / image.name) == (64, 48, 0)
            assert (folder / "eval" / image.name).read_bytes() == (folder / "predict" / image.name).read_bytes()


def test_logits_of_several_views_are_the_logarithms_of_their_mean_probabilities(run21, folder):
    run, data = run21
    image = data / "val/0.png"

    def predicted(name, *flags):
        succeeds("predict", run, image, *flags, "--logits", folder / name, "--labels", "train", "--output", folder / f"{name}.out",
                 "--threads", "1")
        with safetensors.safe_open(folder / name, "pt") as file:
            labels = np.array(Image.open(folder / f"{name}.out/0.png"))
            return file.get_tensor(str(image)), labels, file.metadata().get("values")

    plain, _, values = predicted("plain")
    assert values is None
    mirrored, labels, values = predicted("mirrored", "--eval-flip")
    assert values == "logarithms of the probabilities averaged over the views"
    assert mirrored.shape == plain.shape and (mirrored.argmax(0).numpy() == labels).mean() > 0.999  # but for ties
    torch.testing.assert_close(mirrored.exp().sum(0), torch.ones(48, 64))
    Image.open(image).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "0.png")
    succeeds("predict", run, folder / "0.png", "--logits", folder / "of_mirror", "--threads", "1")
    of_mirror = safetensors.torch.load_file(folder / "of_mirror")[str(folder / "0.png")].flip(2)
    torch.testing.assert_close(mirrored.exp(), (plain.softmax(0) + of_mirror.softmax(0)) / 2, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("resize", ["auto", "interpolate"])
def test_predict_shows_a_classifier_what_eval_shows_it(folder, resize):
    data = image_folder(folder / "data")
    seen = ("--eval-crop", "24", *(("--eval-short-side", "29") if resize == "auto" else ()))
    succeeds("train", *TINY_CLASSIFIER, *seen, "--resize", resize, "--data-root", data, "--output", folder / "run")
    images = sorted((data / "val").glob("*/*.png"))

    def loss(*flags):
        succeeds("predict", folder / "run", *images, "--logits", folder / "l", "--overwrite", "--threads", "1", *flags)
        logits = safetensors.torch.load_file(folder / "l")
        return -sum(logits[str(image)].double().log_softmax(0)[["cat", "dog"].index(image.parent.name)].item()
                    for image in images) / len(images)

    assert loss() == pytest.approx(evaluation(folder / "run")["loss"], rel=1e-5)
    whole = ("--eval-crop", "0", *(("--eval-short-side", "0") if resize == "auto" else ()))
    assert loss(*whole) == pytest.approx(evaluation(folder / "run", *whole)["loss"], rel=1e-5)
    assert loss(*whole) != pytest.approx(loss(), rel=1e-3)


def test_predict_of_pixels_takes_whole_images(trained, folder):
    write(folder / "0.png", png(np.full((48, 64, 3), 99)))
    for flag in ("--eval-crop", "--eval-short-side"):
        fails(USAGE, "predict", trained, folder / "0.png", flag, "32", "--output", folder / "out",
              says=[f"{flag} has no effect", "classification", "whole images"])


def test_predict_has_no_protocol(trained_classifier):
    run, data = trained_classifier
    fails(USAGE, "predict", run, data / "val/cat/0.png", "--protocol", "ten_crop",
          says=["predict does not use the option '--protocol'"])


def test_official_label_images_have_the_palette_of_the_data_set(run21, folder):
    run, data = run21
    for encoding in ("train", "voc"):
        succeeds("predict", run, data / "val", "--labels", encoding, "--output", folder / encoding, "--threads", "1")
    for image in (data / "val").iterdir():
        train, voc = (Image.open(folder / encoding / image.name) for encoding in ("train", "voc"))
        assert (train.mode, voc.mode) == ("L", "P")
        assert (np.array(train) == np.array(voc)).all()  # VOC's ids are the train ids
        assert voc.getpalette()[3 * 15:3 * 16] == [192, 128, 128]  # person
    fails(USAGE, "predict", run, data / "val", "--labels", "cityscapes", "--output", folder / "o",
          says=["--labels cityscapes", "19 classes", "21"])
    fails(USAGE, "eval", run, "--labels", "official", "--output", folder / "o",
          says=["--labels official", "'segmentation_folder'"])


def test_ten_crop_is_the_mean_of_torchvisions_crops(trained_classifier, folder):
    transforms = pytest.importorskip("torchvision.transforms")
    run, data = trained_classifier
    losses, hits, images = [], 0, sorted((data / "val").glob("*/*.png"))
    for number, image in enumerate(images):
        crops = transforms.TenCrop(24)(Image.open(image).convert("RGB"))
        (folder / str(number)).mkdir()
        for i, crop in enumerate(crops):
            crop.save(folder / str(number) / f"{i}.png")
        succeeds("predict", run, folder / str(number), "--logits", folder / f"{number}.safetensors", "--threads", "1")
        logits = torch.stack(list(safetensors.torch.load_file(folder / f"{number}.safetensors").values())).double()
        assert len(logits) == 10
        truth = ["cat", "dog"].index(image.parent.name)
        losses.append(-logits.mean(0).log_softmax(0)[truth].item())
        hits += logits.mean(0).argmax().item() == truth
    said = evaluation(run, "--protocol", "ten_crop", "--eval-crop", "24")
    assert said["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert said["top1"] == hits / len(images)
    assert said["loss"] != evaluation(run, "--eval-crop", "24")["loss"]


def test_another_activation_is_named_and_changes_the_strategy_if_it_must(trained, trained_classifier):
    run, _ = trained_classifier  # leaky_relu with slope 0.01, inplace_2
    as_trained = evaluation(run)
    assert "activation" not in as_trained
    relu = evaluation(run, "--activation", "relu")
    assert relu["activation"] == {"trained": "leaky_relu with slope 0.01", "evaluated": "relu"}
    assert relu["loss"] != as_trained["loss"]
    # ReLU is leaky ReLU of slope 0, and the slope of the training is the training.
    assert evaluation(run, "--activation", "leaky_relu", "--slope", "0.01") == as_trained
    assert evaluation(run, "--slope", "0.2")["activation"]["evaluated"] == "leaky_relu with slope 0.2"
    assert evaluation(run, "--slope", "1e-30")["loss"] == pytest.approx(relu["loss"], rel=1e-6)
    assert "trained with leaky_relu with slope 0.01, evaluated with relu\n" in \
        succeeds("eval", run, "--activation", "relu", "--threads", "1").stdout


def test_a_network_of_relu_is_evaluated_with_leaky_relu(folder):
    data = image_folder(folder / "data")
    succeeds("train", *TINY_CLASSIFIER, "--activation", "relu", "--data-root", data, "--output", folder / "run")
    said = evaluation(folder / "run", "--activation", "leaky_relu")
    assert said["activation"] == {"trained": "relu", "evaluated": "leaky_relu with slope 0.01"}
    assert math.isfinite(said["loss"]) and said["loss"] != evaluation(folder / "run")["loss"]


@pytest.mark.parametrize("flags, says", [
    ("--eval-scales=0.5 --resize=bicubic", ["--resize has no effect", "--eval-short-side"]),
    ("--eval-scales=0", ["--eval-scales", "(0, 4]", "[0]"]),
    ("--eval-scales=-1,1", ["--eval-scales", "(0, 4]"]),
    ("--eval-scales=5", ["--eval-scales", "(0, 4]"]),
    ("--eval-scales=one", ["--eval-scales", "a list of numbers", "'one'"]),
    ("--eval-scales=", ["--eval-scales= has no value"]),
    ("--eval-scales=0.001", ["scale 0.001 leaves no pixel", "64 x 48", "at least 0.0105"]),
    ("--window=20 --window-stride=21", ["--window-stride", "at most [eval] window (--window), which is 20", "got 21"]),
    ("--window-stride=21", ["--window-stride has no effect", "--window"]),
    ("--window=-1", ["--window", "[0, 16384]"]),
    ("--protocol=ten_crop", ["--protocol has no effect", "classification", "deeplabv3_resnet18_narrow"]),
    ("--protocol=tencrop", ["did you mean 'ten_crop'"]),
    ("--labels=official --output=o", ["--labels official", "'generated'"]),
    ("--labels=trian --output=o", ["did you mean 'train'"]),
    ("--labels=train", ["--output", "label images"]),
    ("--labels=train --output=o --eval-crop=32", ["--labels needs whole images", "eval_crop (--eval-crop) to 0", "32"]),
    ("--labels=train --output=o --eval-short-side=24", ["--labels needs whole images", "eval_short_side (--eval-short-side) to 0", "24"]),
    ("--output=o", ["--output has no effect without --labels"]),
    ("--overwrite", ["--overwrite has no effect"]),
    ("--confusion=c.txt", [".csv or .json", "c.txt"]),
])
def test_what_cannot_work_is_one_line(trained, folder, flags, says):
    fails(USAGE, "eval", trained, *flags.split(), says=says, cwd=folder)
    assert not os.listdir(folder)


def test_an_empty_list_of_scales_is_one_line(trained, folder):
    (folder / "c.toml").write_text("[eval]\nscales = []\n")
    fails(USAGE, "train", *TINY, "--config", folder / "c.toml", "--output", folder / "run",
          says=["c.toml:2: [eval] scales", "at least one factor"])
    fails(USAGE, "eval", trained, "--eval-scales", "", says=["--eval-scales", "at least one factor"])


@pytest.mark.parametrize("flags, says", [
    ("--eval-scales=1,2", ["--eval-scales has no effect", "segmentation model"]),
    ("--eval-flip", ["--eval-flip has no effect", "segmentation model"]),
    ("--window=32", ["--window has no effect", "segmentation model"]),
    ("--protocol=ten_crop", ["ten_crop needs", "--eval-crop", "which is 0"]),
    ("--protocol=ten_crop --eval-crop=33", ["ten crops of 33 x 33", "got 32 x 32"]),
    ("--labels=train --output=o", ["--labels has no effect", "resnet18_narrow"]),
    ("--activation=rellu", ["did you mean 'relu'"]),
])
def test_what_cannot_work_for_classification_is_one_line(trained_classifier, folder, flags, says):
    run, _ = trained_classifier
    fails(USAGE, "eval", run, *flags.split(), says=says, cwd=folder)
    assert not os.listdir(folder)


def test_labels_never_overwrite_the_truth_or_each_other(run21, folder):
    run, data = run21
    truth = (data / "valannot/0.png").read_bytes()
    fails(USAGE, "eval", run, "--labels", "train", "--overwrite", "--output", data / "valannot", says=["outside of the data set"])
    fails(USAGE, "eval", run, "--labels", "train", "--output", data, says=["outside of the data set"])
    assert (data / "valannot/0.png").read_bytes() == truth
    beside = f"{data.parent}/labels/"
    succeeds("eval", run, "--labels", "train", "--output", beside, "--threads", "1")
    fails(OUTPUT, "eval", run, "--labels", "train", "--output", beside, says=["exists", "--overwrite"])
    succeeds("eval", run, "--labels", "train", "--output", folder / "o", "--threads", "1")
    fails(OUTPUT, "eval", run, "--labels", "train", "--output", folder / "o", says=["exists", "--overwrite"])
    succeeds("eval", run, "--labels", "train", "--output", folder / "o", "--overwrite", "--threads", "1")


def test_only_pictures_of_the_program_are_replaced(run21, folder):
    run, data = run21
    truth = {path: path.read_bytes() for path in (data / "valannot").iterdir()}
    for flags in ([], ["--labels", "train"]):
        fails(USAGE, "predict", run, data / "val", *flags, "--output", data / "valannot", "--overwrite",
              says=["--overwrite replaces the pictures of an earlier predict or eval", "valannot/0.png", "name another --output"])
    assert {path: path.read_bytes() for path in (data / "valannot").iterdir()} == truth
    shutil.copytree(data / "valannot", folder / "copy")
    fails(USAGE, "eval", run, "--labels", "train", "--output", folder / "copy", "--overwrite", says=["copy/0.png", "is none"])
    (folder / "damaged").mkdir()
    (folder / "damaged/0.png").write_bytes(b"notes")
    fails(USAGE, "predict", run, data / "val/0.png", "--output", folder / "damaged", "--overwrite", says=["damaged/0.png"])
    for flags in ([], ["--overwrite"], ["--overwrite", "--labels", "train"], ["--overwrite"]):
        succeeds("predict", run, data / "val/0.png", *flags, "--output", folder / "own", "--threads", "1")
    assert Image.open(folder / "own/0.png").text == {"Software": "palimpsest"}

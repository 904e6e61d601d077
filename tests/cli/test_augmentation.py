"""The augmentations of the papers and the class-uniform sampler, from settings to a run."""
import json
import resource
import shutil
import tomllib

import numpy as np
import pytest

from cli_support import (DATA_ERROR, MEMORY, TINY, TINY_CLASSIFIER, USAGE, fails, image_folder, png,
                         segmentation_folder, succeeds, write)

IMAGENET = ("--short-side 40 --crop 32 --eval-short-side 40 --eval-crop 32 --brightness 0.4 --contrast 0.4 --saturation 0.4 "
            "--lighting 0.1").split()
UNIFORM = ("--model deeplabv3_resnet18_narrow --data segmentation_folder --classes 3 --crop 32 --batch 2 --threads 1 "
           "--evaluate-every 0 --log-every 1 --epochs 2 --sampler class_uniform").split()
INDEX = "class_presence.safetensors"


def losses(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["type"] == "step"]


@pytest.mark.parametrize("settings", [
    IMAGENET,
    "--crop 32 --crop-mode area --area-min 0.3 --resize bicubic".split(),
    "--crop 24 --scale-min 0.7 --scale-max 2 --resize bilinear".split(),
])
def test_a_classification_trains_and_evaluates_the_same_for_any_number_of_workers(settings, folder):
    data = image_folder(folder / "data", size=48)
    for workers in (0, 1, 3):
        prefetch = ["--prefetch", "1"] if workers else []
        succeeds("train", *TINY_CLASSIFIER, "--data-root", data, *settings, "--workers", workers, *prefetch, "--output",
                 folder / str(workers))
    assert losses(folder / "0") == losses(folder / "1") == losses(folder / "3")
    evaluated = json.loads(succeeds("eval", folder / "1", "--json").stdout)
    assert evaluated["images"] == 8 and evaluated["loss"] > 0


def test_a_run_with_changed_colours_resumes_to_the_same_bytes(folder):
    data = image_folder(folder / "data", size=48)
    arguments = [*TINY_CLASSIFIER, "--data-root", data, *IMAGENET, "--epochs", "2"]
    succeeds("train", *arguments, "--output", folder / "whole")
    succeeds("train", *arguments, "--max-steps", "3", "--output", folder / "parts")
    succeeds("train", "--resume", "--max-steps", "0", "--output", folder / "parts")
    whole, parts = ((folder / run / "checkpoint.safetensors").read_bytes() for run in ("whole", "parts"))
    assert whole == parts


def test_settings_that_are_not_used_stay_out_of_the_configuration(trained):
    data = tomllib.loads((trained / "config.toml").read_text())["data"]
    new = {"crop_mode", "area_min", "area_max", "aspect_max", "short_side", "eval_short_side", "resize", "reduce_jpeg",
           "brightness", "contrast", "saturation", "lighting", "sampler", "cache"}
    assert not new & data.keys()


def test_strategies_are_compared_on_images_of_bytes(folder):
    succeeds("compare", *TINY, "--images", "4", "--max-steps", "1", "--resize", "bilinear", "--brightness", "0.2",
             "--evaluate-every", "1", "--output", folder / "out")
    assert (folder / "out/index.html").stat().st_size > 0


@pytest.fixture
def scenes(folder):
    return segmentation_folder(folder / "data", images=6)


def test_a_class_uniform_run_has_the_same_steps_for_any_workers_and_resumed(scenes, folder):
    for workers in (0, 3):
        succeeds("train", *UNIFORM, "--data-root", scenes, "--workers", workers, "--output", folder / str(workers))
    assert len(losses(folder / "0")) == 6
    assert losses(folder / "0") == losses(folder / "3")
    succeeds("train", *UNIFORM, "--data-root", scenes, "--max-steps", "4", "--output", folder / "parts")
    succeeds("train", "--resume", "--max-steps", "0", "--output", folder / "parts")
    whole, parts = ((folder / run / "checkpoint.safetensors").read_bytes() for run in ("0", "parts"))
    assert whole == parts
    fails(USAGE, "train", "--resume", "--epochs", "3", "--sampler", "shuffle", "--output", folder / "parts",
          says=["--sampler must stay", "class_uniform"])


def test_the_index_of_classes_is_read_again_and_built_again_if_it_is_damaged_or_of_other_data(scenes, folder):
    arguments = [*UNIFORM, "--data-root", scenes, "--cache", folder / "cache"]
    first = succeeds("train", *arguments, "--output", folder / "first").stderr
    assert "6 of 6 labels read" in first and (folder / "cache" / INDEX).exists()
    assert not (folder / "first" / INDEX).exists()
    assert "labels read" not in succeeds("train", *arguments, "--output", folder / "second").stderr
    assert losses(folder / "first") == losses(folder / "second")
    whole = (folder / "cache" / INDEX).read_bytes()
    for damaged in (whole[:50], b""):
        (folder / "cache" / INDEX).write_bytes(damaged)
        told = succeeds("train", *arguments, "--overwrite", "--output", folder / "second").stderr
        assert told.count("built again") == 1 and "6 of 6 labels read" in told
        assert (folder / "cache" / INDEX).read_bytes() == whole
    shutil.copy(scenes / "train/0.png", scenes / "train/9.png")
    shutil.copy(scenes / "trainannot/0.png", scenes / "trainannot/9.png")
    told = succeeds("train", *arguments, "--overwrite", "--output", folder / "second").stderr
    assert "other data" in told and "7 of 7 labels read" in told
    told = succeeds("train", *arguments, "--ignore-id", "2", "--overwrite", "--output", folder / "second").stderr
    assert "ignore id 255, the data set has 2; it is built again" in told and "7 of 7 labels read" in told


def test_a_run_that_is_refused_leaves_the_index_of_its_data(scenes, folder):
    succeeds("train", *UNIFORM, "--data-root", scenes, "--max-steps", "1", "--output", folder / "run")
    before = (folder / "run" / INDEX).read_bytes()
    other = segmentation_folder(folder / "other", images=9)
    line = fails(USAGE, "train", "--resume", "--max-steps", "2", "--data-root", other, "--output", folder / "run",
                 says=["was made with the training data", "restore the data"])
    assert "9 images" in line and (folder / "run" / INDEX).read_bytes() == before


def test_threads_of_the_index_that_the_system_does_not_start_are_one_line(scenes, folder):
    def few():  # each thread has a stack of 1 GiB
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    fails(MEMORY, "train", *UNIFORM, "--data-root", scenes, "--workers", "60", "--output", folder / "run", preexec_fn=few,
          says=["the index of classes cannot start 60 threads", "--workers", "ulimit -u"])


def test_generated_scenes_have_classes_too(folder):
    succeeds("train", *TINY, "--sampler", "class_uniform", "--output", folder / "run")
    assert not (folder / "run" / INDEX).exists()


def test_data_without_classes_cannot_be_sampled_by_class(folder):
    root = segmentation_folder(folder / "data", images=2)
    for label in (root / "trainannot").iterdir():
        write(label, png(np.full((48, 64), 255)))
    fails(DATA_ERROR, "train", *UNIFORM, "--data-root", root, "--output", folder / "run",
          says=["class_uniform needs images that have a class"])


WRONG = [
    ("--brightness 1.5 --resize bilinear", ["--brightness must be a number in [0, 1]", "1.5"]),
    ("--lighting -1", ["--lighting must be", "-1"]),
    ("--scale-min 0.001", ["--scale-min must be", "0.001"]),
    ("--crop 8 --scale-min 2 --scale-max 1", ["--scale-min must be at most [data] scale_max"]),
    ("--crop 8 --crop-mode area --area-min 0.5 --area-max 0.2", ["--area-min must be at most [data] area_max", "0.2"]),
    ("--crop 8 --crop-mode area --aspect-max 0.5", ["--aspect-max must be", "0.5"]),
    ("--crop 8 --crop-mode circle", ["--crop-mode: unknown crop-mode 'circle'", "window, area"]),
    ("--resize lanczos", ["--resize: unknown resize 'lanczos'", "bicubic"]),
    ("--sampler class_unifrom", ["--sampler: unknown sampler", "did you mean 'class_uniform'"]),
    ("--crop-mode area", ["--crop-mode has no effect", "crop (--crop) > 0"]),
    ("--crop 8 --crop-mode area --short-side 9", ["--short-side has no effect", "window"]),
    ("--crop 8 --crop-mode area --scale-max 2", ["--scale-max has no effect", "window"]),
    ("--area-min 0.5", ["--area-min has no effect", "area"]),
    ("--short-side 40 --resize interpolate", ["--short-side has no effect", "bilinear or bicubic"]),
    ("--contrast 0.1 --resize interpolate", ["--contrast has no effect", "bilinear or bicubic"]),
    ("--reduce-jpeg", ["--reduce-jpeg has no effect", "generated"]),
    ("--cache x", ["--cache has no effect", "class_uniform"]),
]


@pytest.mark.parametrize("arguments, says", WRONG)
def test_a_wrong_augmentation_is_one_line(arguments, says):
    fails(USAGE, "train", "--dry-run", *arguments.split(), says=says)


def test_a_crop_that_does_not_fit_the_short_side_is_one_line(folder):
    data = image_folder(folder / "data", size=48)
    fails(USAGE, "train", *TINY_CLASSIFIER, "--data-root", data, "--short-side", "20", "--crop", "32", "--no-pad", "--output",
          folder / "run", says=["32x32 does not fit", "scaled to 20", "at most 20"])

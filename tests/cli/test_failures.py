"""Checkpoints that do not fit, disks that are full, losses that are no numbers: one line, a code, nothing lost."""
import json
import pathlib
import re
import resource
import shutil
import struct
import subprocess

import numpy as np
import pytest
import safetensors.numpy

from cli_support import (CHECKPOINT, DATA_ERROR, DIVERGED, MEMORY, OUTPUT, PROGRAM, TINY, TINY_CLASSIFIER, USAGE, change_checkpoint,
                         environment, error_line, fails, image_folder, png, run, succeeds, write)


def limit_file_size(megabytes):
    """Files may not grow beyond this: what a full disk does to a program, without filling one."""
    size = int(megabytes * 1e6)
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def leftovers(folder):
    return {path.name for path in folder.iterdir()} - {"checkpoint.safetensors", "log.jsonl", "config.toml",
                                                       "step_memory.safetensors"}


def test_a_full_disk_keeps_the_last_checkpoint(copy_of_run):
    before = (copy_of_run / "checkpoint.safetensors").read_bytes()
    megabytes = len(before) / 1e6 / 2
    line = fails(OUTPUT, "train", "--resume", "--epochs", "2", "--output", copy_of_run,
                 preexec_fn=limit_file_size(megabytes), says=[copy_of_run / "checkpoint.safetensors"])
    assert "File too large" in line
    assert (copy_of_run / "checkpoint.safetensors").read_bytes() == before
    assert not leftovers(copy_of_run)
    succeeds("train", "--resume", "--epochs", "2", "--output", copy_of_run)


def test_an_output_that_nobody_can_read_is_an_error(folder):
    for command in (("info", "--help"), ("data", "check", image_folder(folder / "data"))):
        with open("/dev/full", "w") as full:
            result = subprocess.run([PROGRAM, *command], stdout=full, stderr=subprocess.PIPE, text=True, env=environment())
        assert result.returncode == OUTPUT and "standard output" in error_line(result)


def test_a_full_disk_at_the_start_leaves_no_half_checkpoint(folder):
    fails(OUTPUT, "train", *TINY, "--output", folder / "run", preexec_fn=limit_file_size(1),
          says=[folder / "run/checkpoint.safetensors"])
    assert not (folder / "run").exists()


def test_an_output_folder_that_cannot_be_made_is_named(folder):
    write(folder / "file", b"")
    fails(OUTPUT, "train", *TINY, "--output", folder / "file/run", says=[folder / "file/run"])


def test_pictures_that_cannot_be_written_are_named(trained, folder):
    image = write(folder / "in.png", png(np.zeros((32, 32, 3))))
    write(folder / "file", b"")
    fails(OUTPUT, "predict", trained / "checkpoint.safetensors", image, "--output", folder / "file/out",
          says=[folder / "file/out"])


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_checkpoint(folder):
    fails(DIVERGED, "train", *TINY, "--epochs", "4", "--lr", "1e30", "--checkpoint-every", "1", "--schedule", "constant",
          "--output", folder / "run", says=["diverged", "step", "lr"])
    succeeds("eval", folder / "run/checkpoint.safetensors", "--json")


def test_a_memory_limit_ends_with_its_own_code(folder):
    fails(MEMORY, "train", *TINY, "--memory-limit", "10", "--output", folder / "run", says=["memory"])


@pytest.mark.parametrize("command", ["eval", "predict", "resume"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "foreign", "header"])
def test_a_damaged_checkpoint_is_named(copy_of_run, damage, command):
    checkpoint = copy_of_run / "checkpoint.safetensors"
    contents = checkpoint.read_bytes()
    checkpoint.unlink()
    damaged = {"empty": b"", "truncated": contents[:len(contents) // 2], "foreign": b"PK\3\4" + bytes(1000),
               "header": struct.pack("<Q", 1 << 60) + contents[8:]}
    if damage != "missing":
        checkpoint.write_bytes(damaged[damage])
    image = write(copy_of_run.parent / "in.png", png(np.zeros((32, 32, 3))))
    arguments = {"eval": ("eval", checkpoint), "predict": ("predict", checkpoint, image, "--output", image.parent / "out"),
                 "resume": ("train", "--resume", "--output", copy_of_run)}[command]
    fails(CHECKPOINT, *arguments, says=[checkpoint])
    assert damage == "missing" or checkpoint.read_bytes() == damaged[damage]


@pytest.mark.parametrize("command", ["train", "info"])
def test_an_instruction_set_that_nobody_knows_is_named(folder, command):
    arguments = {"train": ("train", *TINY, "--output", folder / "run"), "info": ("info", "--size", "32")}[command]
    line = fails(USAGE, *arguments, variables={"PALIMPSEST_ISA": "x86-64-v9"}, says=["PALIMPSEST_ISA", "'x86-64-v9'"])
    assert not any(folder.iterdir()), "nothing is written before"
    known = re.search(r"runs here \((.*)\)", line).group(1).split(", ")
    # Any of those that it lists is taken.
    succeeds("info", "--size", "32", variables={"PALIMPSEST_ISA": known[-1]})


def test_weights_without_a_configuration_need_one(folder):
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights = write(folder / "w.safetensors", struct.pack("<Q", len(header)) + header + bytes(4))
    fails(CHECKPOINT, "eval", weights, says=[weights, "configuration", "--config"])


@pytest.mark.parametrize("command", ["eval", "resume"])
def test_another_architecture_than_the_checkpoints_is_refused(copy_of_run, command):
    config = (copy_of_run / "config.toml").read_text()
    other = write(copy_of_run.parent / "other.toml", config.replace("resnet18_narrow", "resnet50").encode())
    checkpoint = copy_of_run / "checkpoint.safetensors"
    before = checkpoint.read_bytes()
    if command == "eval":
        fails(CHECKPOINT, "eval", checkpoint, "--config", other, says=[checkpoint, "layer1.0.conv3.weight"])
    else:
        fails(USAGE, "train", "--resume", "--config", other, "--output", copy_of_run,
              says=[f"{other}:2: [model] name must stay", "resnet50"])
    assert checkpoint.read_bytes() == before


def test_a_configuration_inside_a_checkpoint_may_be_replaced(trained):
    result = succeeds("eval", trained / "checkpoint.safetensors", "--config", trained / "config.toml", "--json")
    assert result.stdout == run("eval", trained / "checkpoint.safetensors", "--json").stdout


@pytest.fixture(scope="module")
def trained_otherwise(tmp_path_factory):
    """A run whose settings are not the defaults."""
    folder = tmp_path_factory.mktemp("otherwise") / "run"
    succeeds("train", *TINY, "--slope", "0.3", "--mean", "0,0,0", "--std", "1,1,1", "--output-stride", "8", "--output", folder)
    return folder


def test_a_file_adds_to_the_configuration_inside_a_checkpoint(trained_otherwise, folder):
    """It takes the place of the settings that it names alone."""
    flip = write(folder / "flip.toml", b"[eval]\nflip = true\n")
    want = succeeds("eval", trained_otherwise, "--eval-flip", "--json").stdout
    assert succeeds("eval", trained_otherwise, "--config", flip, "--json").stdout == want
    assert succeeds("eval", trained_otherwise, "--json").stdout != want
    shows = succeeds("info", trained_otherwise, "--config", flip).stdout
    assert shows == succeeds("info", trained_otherwise).stdout
    exported = folder / "exported.safetensors"
    succeeds("export", trained_otherwise, "--config", flip, "--output", exported)
    assert json.loads(succeeds("eval", exported, "--json").stdout) == json.loads(want)


def test_a_file_may_change_what_stored_settings_depend_on(trained_otherwise, folder):
    """As flags may: another activation has no slope, another kind of data no seed."""
    root = folder / "data"
    for part, pixels in (("val", np.zeros((40, 40, 3))), ("valannot", np.zeros((40, 40)))):
        write(root / part / "a.png", png(pixels))
    data = f'[data]\nkind = "segmentation_folder"\nroot = "{root}"\n'
    for text, flags in (('[model]\nactivation = "relu"\n', ("--activation", "relu")),
                        (data, ("--data", "segmentation_folder", "--data-root", root))):
        file = write(folder / "other.toml", text.encode())
        want = succeeds("eval", trained_otherwise, *flags, "--json").stdout
        assert succeeds("eval", trained_otherwise, "--config", file, "--json").stdout == want
    file = write(folder / "other.toml", b'[model]\nactivation = "relu"\nslope = 0.3\n')
    fails(USAGE, "eval", trained_otherwise, "--config", file, says=[f"{file}:3: [model] slope has no effect"])


def test_a_file_takes_the_place_of_a_configuration_that_cannot_be_read(trained, folder):
    shutil.copytree(trained, folder / "run")
    file = folder / "run/checkpoint.safetensors"
    change_checkpoint(file, lambda _, metadata: metadata.update(
        config=metadata["config"].replace("[model]", "[model]\nof_a_later_version = 1", 1)))
    fails(CHECKPOINT, "eval", file, says=["of_a_later_version"])
    result = succeeds("eval", file, "--config", trained / "config.toml", "--json")
    assert "of_a_later_version" in result.stderr and "alone describes the network" in result.stderr
    assert result.stdout == succeeds("eval", trained, "--json").stdout


def test_predict_takes_bad_images_from_a_file(trained_otherwise, folder):
    for name in ("bad.png", "good.png"):
        write(folder / "images" / name, b"no image" if name == "bad.png" else png(np.zeros((40, 40, 3))))
    skip = write(folder / "skip.toml", b'[data]\nbad_images = "skip"\n')
    fails(DATA_ERROR, "predict", trained_otherwise, folder / "images", "--output", folder / "out")
    said = succeeds("predict", trained_otherwise, folder / "images", "--output", folder / "out", "--overwrite", "--config", skip).stderr
    assert "bad.png" in said and [path.name for path in (folder / "out").iterdir() if "good" in path.name]


def test_predict_names_a_missing_image(trained, folder):
    fails(DATA_ERROR, "predict", trained / "checkpoint.safetensors", folder / "none.png", "--output", folder / "out",
          says=[folder / "none.png"])


def test_predict_names_an_empty_folder(trained, folder):
    (folder / "in").mkdir()
    fails(DATA_ERROR, "predict", trained / "checkpoint.safetensors", folder / "in", "--output", folder / "out",
          says=[folder / "in"])


def test_predict_names_an_unreadable_image(trained, folder):
    image = write(folder / "in.png", b"no image")
    fails(DATA_ERROR, "predict", trained / "checkpoint.safetensors", image, "--output", folder / "out", says=[image])


def test_predict_leaves_out_unreadable_images_if_told_to(trained, folder):
    """The network of generated scenes has no bad images of its own, but photos may be bad."""
    for name in ("a.png", "c.png"):
        write(folder / name, png(np.full((48, 64, 3), 90)))
    bad = write(folder / "b.png", (folder / "a.png").read_bytes()[:60])
    predict = ("predict", trained / "checkpoint.safetensors", folder, "--bad-images", "skip")
    fails(DATA_ERROR, *predict[:3], "--output", folder / "out", says=["b.png"])
    result = succeeds(*predict, "--output", folder / "out", "--overwrite", "--logits", folder / "logits.safetensors",
                      "--json")
    lines = result.stderr.splitlines()
    assert "left out" in lines[-2] and str(bad) in lines[-2] and lines[-1].endswith("1 of 3 images could not be read")
    entries = {pathlib.Path(entry["image"]).name: entry for entry in json.loads(result.stdout)}
    assert list(entries) == ["a.png", "b.png", "c.png"]
    assert "b.png" in entries["b.png"]["error"] and "picture" not in entries["b.png"]
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["a.png", "c.png"]
    earlier = pathlib.Path(shutil.copy(folder / "out/a.png", folder / "out/b.png"))
    told = succeeds(*predict, "--output", folder / "out", "--overwrite").stderr
    assert f"{earlier} stays as an earlier predict wrote it" in told
    assert len(safetensors.numpy.load_file(folder / "logits.safetensors")) == 2
    listed = json.loads(succeeds(*predict, "--logits", folder / "logits.safetensors", "--overwrite", "--json").stdout)
    assert [sorted(entry) for entry in listed] == [["image"], ["error", "image"], ["image"]]
    write(folder / "a.png", b"")
    write(folder / "c.png", b"")
    fails(DATA_ERROR, *predict, "--output", folder / "none", says=["3 of 3 images could not be read"])


def test_predict_names_what_can_be_read_of_a_folder(trained_classifier, folder):
    run_folder, data = trained_classifier
    for name, bytes_ in (("a.png", next((data / "val/cat").iterdir()).read_bytes()), ("b.png", b"")):
        write(folder / "in" / name, bytes_)
    predict = ("predict", run_folder, folder / "in", "--bad-images", "skip")
    result = succeeds(*predict)
    assert result.stdout.count("\n") == 1 and "a.png: " in result.stdout
    assert result.stderr.splitlines()[-1].endswith("1 of 2 images could not be read")
    listed = json.loads(succeeds(*predict, "--json").stdout)
    assert [sorted(entry) for entry in listed] == [["image", "probabilities"], ["error", "image"]]


def test_predict_does_not_leave_out_images_because_the_training_did(folder):
    data = image_folder(folder / "data")
    succeeds("train", *TINY_CLASSIFIER, "--data-root", data, "--bad-images", "skip", "--output", folder / "run")
    bad = write(folder / "bad.png", b"")
    fails(DATA_ERROR, "predict", folder / "run", data / "val/cat", bad, says=[bad])
    succeeds("predict", folder / "run", data / "val/cat", bad, "--config", folder / "run/config.toml")


def test_predict_does_not_write_one_picture_over_another(trained, folder):
    images = [write(folder / name / "same.png", png(np.zeros((32, 32, 3)))) for name in ("a", "b")]
    fails(USAGE, "predict", trained / "checkpoint.safetensors", *images, "--output", folder / "out", says=images)
    fails(USAGE, "predict", trained / "checkpoint.safetensors", images[0], "--output", folder / "a", says=[images[0]])
    assert images[0].read_bytes() == png(np.zeros((32, 32, 3)))


def test_a_diverged_run_is_no_best_and_its_report_and_predictions_say_so(folder):
    message = fails(DIVERGED, "train", *TINY, "--epochs", "20", "--evaluate-every", "1", "--keep-best", "metric", "--lr", "1e9",
                    "--output", folder / "run", says=["diverged: "])
    lines = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
    end, = (line for line in lines if line["type"] == "end")
    assert end["reason"] == message.split("palimpsest: error: ")[1]
    bad = [line for line in lines if line["type"] == "evaluation" and line["loss"] is None]
    for line in bad:  # NaN is in no class, although argmax says the first one
        assert line["mean_iou"] is None and line["pixel_accuracy"] is None and line["best"] is False
    succeeds("report", folder / "run", "--output", folder / "page.html")
    page = (folder / "page.html").read_text()
    assert "Ended early: " in page and "diverged: " in page and "Unfinished" not in page
    if not bad:
        pytest.skip("this processor's training diverged before an evaluation")
    assert "its evaluation was not finite already" in message
    assert "outputs are not finite" in succeeds("eval", folder / "run").stderr
    image = write(folder / "in.png", png(np.zeros((32, 32, 3))))
    assert "outputs are NaN" in succeeds("predict", folder / "run", image, "--output", folder / "out").stderr


def test_a_failed_run_is_not_reported_as_one_at_work(folder):
    data = image_folder(folder / "data")
    image = (data / "train/cat/2.png").read_bytes()
    write(data / "train/cat/2.png", bytes(len(image)))
    message = fails(DATA_ERROR, "train", *TINY_CLASSIFIER, "--data-root", data, "--epochs", "9", "--output", folder / "run")
    succeeds("report", folder / "run", "--output", folder / "page.html")
    page = (folder / "page.html").read_text()
    assert "Ended " in page and "train/cat/2.png" in page and "Unfinished" not in page
    assert "2.png" in message
    write(data / "train/cat/2.png", image)
    succeeds("train", "--resume", "--output", folder / "run", "--epochs", "1")
    assert '"end"' not in (folder / "run/log.jsonl").read_text()


@pytest.mark.parametrize("command", ["predict", "export"])
def test_tensors_replace_tensors_alone(trained, folder, command):
    image = write(folder / "photo.png", png(np.zeros((32, 32, 3))))
    mine = write(folder / "mine.png", png(np.zeros((32, 32, 3))))
    flags, flag = ([image, "--logits"], "--logits") if command == "predict" else (["--output"], "--output")
    fails(USAGE, command, trained, *flags, mine, "--overwrite", says=[mine, "replaces an earlier file of tensors", flag])
    assert mine.read_bytes() == png(np.zeros((32, 32, 3)))
    succeeds(command, trained, *flags, folder / "tensors")
    succeeds(command, trained, *flags, folder / "tensors", "--overwrite")


def test_logits_replace_no_file_without_a_word(trained, folder):
    checkpoint = folder / "c.safetensors"
    shutil.copy(trained / "checkpoint.safetensors", checkpoint)
    image = write(folder / "a.png", png(np.full((48, 64, 3), 99)))
    before = checkpoint.read_bytes()
    for flags in ((), ("--overwrite",)):
        fails(USAGE, "predict", checkpoint, image, "--logits", checkpoint, *flags, says=["--logits", checkpoint, "is the checkpoint"])
        fails(USAGE, "predict", checkpoint, image, "--logits", image, *flags, says=[image, "itself an input"])
    logits = write(folder / "l.safetensors", b"precious")
    fails(OUTPUT, "predict", checkpoint, image, "--logits", logits, says=[logits, "--overwrite"])
    assert checkpoint.read_bytes() == before and logits.read_bytes() == b"precious"
    succeeds("predict", checkpoint, image, "--logits", logits, "--overwrite")
    assert logits.read_bytes() != b"precious"


def test_a_folder_is_no_file_for_logits(trained, folder):
    image = write(folder / "in/a.png", png(np.full((48, 64, 3), 99)))
    (folder / "l").mkdir()
    for flags in ((), ("--overwrite",)):
        fails(OUTPUT, "predict", trained, image, "--output", folder / "out", "--logits", folder / "l", *flags,
              says=["l' is a folder", "--logits"])
    assert not (folder / "out").exists()


def test_predict_replaces_no_picture_without_a_word(trained, trained_classifier, folder):
    image = write(folder / "in/a.png", png(np.full((48, 64, 3), 99)))
    picture = folder / "out/a.png"
    succeeds("predict", trained, image, "--output", folder / "out")
    before = picture.read_bytes()
    fails(OUTPUT, "predict", trained, image, "--labels", "train", "--output", folder / "out", says=[picture, "--overwrite", "another --output"])
    assert picture.read_bytes() == before
    succeeds("predict", trained, image, "--labels", "train", "--output", folder / "out", "--overwrite")
    assert picture.read_bytes() != before
    fails(USAGE, "predict", trained_classifier[0], image, "--overwrite", says=["--overwrite has no effect without --logits"])


def test_predict_never_replaces_an_input_through_a_link(trained, folder):
    checkpoint = folder / "c.safetensors"
    shutil.copy(trained / "checkpoint.safetensors", checkpoint)
    images = [write(folder / f"in/{name}.png", png(np.full((48, 64, 3), 99))) for name in ("a", "b")]
    before = [path.read_bytes() for path in (checkpoint, *images)]
    out = folder / "out"
    out.mkdir()
    for target, what in ((checkpoint, "is the checkpoint"), (images[1], "is itself an input")):
        (out / "a.png").symlink_to(target)
        fails(USAGE, "predict", checkpoint, *images, "--output", out, "--overwrite", says=[out / "a.png", what])
        (out / "a.png").unlink()
    assert [path.read_bytes() for path in (checkpoint, *images)] == before and not list(out.iterdir())
    for logits in (out / "b.png", folder / "in/../out/b.png"):
        fails(USAGE, "predict", checkpoint, *images, "--output", out, "--logits", logits, says=["--logits", "the picture of", images[1]])


def test_a_folder_without_a_checkpoint_names_the_runs_in_it(trained, folder):
    (folder / "two/plain").mkdir(parents=True)
    for name in ("b", "a"):
        shutil.copytree(trained, folder / "two" / name)
    for command in ("eval", "info", "export"):
        fails(CHECKPOINT, command, folder / "two",
              says=[f"'{folder / 'two'}' holds no checkpoint.safetensors; these do: '{folder / 'two/a'}', '{folder / 'two/b'}'"])
    fails(CHECKPOINT, "train", *TINY, "--weights", folder / "in", "--output", folder / "run", says=[folder / "in"])
    said = succeeds("train", *TINY, "--max-steps", "1", "--weights", trained, "--output", folder / "run").stderr
    assert f"the whole network starts from {trained / 'checkpoint.safetensors'}" in said


def test_info_shows_the_network_of_the_checkpoint_alone(trained):
    for flag, value in (("--model", "resnet50"), ("--classes", "9"), ("--slope", "0.5")):
        fails(USAGE, "info", trained, flag, value, says=[f"{flag} has no effect", "checkpoint.safetensors"])


@pytest.mark.parametrize("name, least", [("densenet_bc10_k2", 4), ("densenet_bc22_k4", 4), ("densenet121", 29)])
def test_an_image_that_poolings_halve_to_nothing_is_named(folder, name, least):
    data = image_folder(folder / "data", images=1)
    run = folder / "run"
    succeeds("train", "--model", name, "--data", "image_folder", "--data-root", data, "--batch", "2", "--threads", "1",
             "--max-steps", "1", "--evaluate-every", "0", "--quiet", "--output", run)
    for width, height in ((1, 1), (least - 1, 300), (300, least - 1)):
        image = write(folder / "small.png", png(np.full((height, width, 3), 99)))
        fails(USAGE, "predict", run, image, says=[f"{name} needs images of at least {least} pixels", f"got {height} x {width}"])
    succeeds("predict", run, write(folder / "least.png", png(np.full((least, least, 3), 99))))


def test_the_length_of_the_warm_up_and_the_loss_are_told_in_words(folder):
    fails(USAGE, "train", *TINY, "--warmup", "1", "--output", folder / "run",
          says=["the warm-up must be shorter than the training: warmup_epochs 1 are 2 steps", "the training has 2"])
    line = fails(DIVERGED, "train", *TINY, "--lr", "1e30", "--epochs", "9", "--output", folder / "run", "--overwrite",
                 says=["the loss became "])
    assert "became NaN in step" in line or "became infinite in step" in line
    line = fails(MEMORY, "train", *TINY, "--memory-limit", "1", "--output", folder / "other", says=["bytes live would exceed"])
    assert " ;" not in line and "  " not in line

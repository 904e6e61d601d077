"""Output folders: who may write there, what a refused or killed run leaves, and what a resumed run goes on with."""
import json
import os
import shutil
import signal
import subprocess
import time
import tomllib

import numpy as np
import pytest

from cli_support import (CHECKPOINT, DATA_ERROR, MEMORY, OUTPUT, PROGRAM, TINY, TINY_CLASSIFIER, USAGE, environment, fails,
                         image_folder, mixed_sizes, png, run, segmentation_folder, start, succeeds, write)
from kill_runs import kill_runs

CHECKPOINT_FILE = "checkpoint.safetensors"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def config(folder):
    return tomllib.loads((folder / "config.toml").read_text())


def stored_config(checkpoint):
    data = checkpoint.read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    return tomllib.loads(header["__metadata__"]["config"])


def stop_early(folder, *arguments):
    """A run of four steps that ended after the first."""
    succeeds("train", *TINY, "--epochs", "2", "--max-steps", "1", *arguments, "--output", folder)
    return folder


def test_random_kills_resume_to_the_bytes_of_the_unbroken_run():
    seed = int.from_bytes(os.urandom(4), "little")
    hits, failures = kill_runs(6, seed)
    assert not failures
    assert hits > 0


# A second program.

def test_a_folder_serves_one_program_at_a_time(folder):
    first = start("train", *TINY, "--epochs", "1000", "--output", folder / "run")
    try:
        while not (folder / "run" / CHECKPOINT_FILE).exists():
            assert first.poll() is None
            time.sleep(0.01)
        for arguments in (["--resume"], [*TINY, "--overwrite"]):
            fails(OUTPUT, "train", *arguments, "--output", folder / "run",
                  says=[folder / "run", "in use", f"process {first.pid}", "--output"])
        held = [folder / "run", "in use", f"process {first.pid}"]
        fails(OUTPUT, "compare", *TINY, "--output", folder / "run", says=held)
        weights = write(folder / "other.safetensors", (folder / "run" / CHECKPOINT_FILE).read_bytes())
        mine = write(folder / "run/mine.safetensors", b"old")
        (folder / "link.safetensors").symlink_to(mine)
        for target in (mine, folder / "link.safetensors"):
            fails(OUTPUT, "export", weights, "--output", target, "--overwrite", says=held)
        fails(OUTPUT, "export", weights, "--output", folder / "run/new.safetensors", says=held)
    finally:
        first.kill()
        first.communicate()
    succeeds("train", "--resume", "--max-steps", "1", "--output", folder / "run")  # the lock went with the program


def test_a_lock_that_is_no_lock_is_left_alone(folder):
    stop_early(folder / "run")
    own = write(folder / "mine.txt", b"mine")
    (folder / "run/.lock").symlink_to(own)
    fails(OUTPUT, "train", "--resume", "--output", folder / "run", says=[folder / "run/.lock", "is no lock", "move it away"])
    assert own.read_bytes() == b"mine" and (folder / "run/.lock").is_symlink()


# What a run that never began leaves.

@pytest.mark.parametrize("code, flags", [(USAGE, ["--batch", "1", "--crop", "16"]), (MEMORY, ["--memory-limit", "1"])])
def test_a_run_that_is_refused_in_its_first_step_is_not_in_the_way_of_the_corrected_one(folder, code, flags):
    fails(code, "train", *TINY, *flags, "--output", folder / "deep/run")
    assert not (folder / "deep").exists()
    succeeds("train", *TINY, "--max-steps", "1", "--output", folder / "deep/run")


def test_a_run_that_is_refused_leaves_what_was_in_the_folder(folder):
    note = write(folder / "run/note.txt", b"mine")
    fails(USAGE, "train", *TINY, "--batch", "1", "--crop", "16", "--output", folder / "run")
    assert contents(folder / "run") == {"note.txt": note.read_bytes()}


@pytest.mark.parametrize("arguments", [["--resume"], [*TINY, "--epochs", "2", "--max-steps", "1"]])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins(folder, arguments):
    expected = stop_early(folder / "expected")
    killed = folder / "run"
    write(killed / "config.toml", (expected / "config.toml").read_bytes())
    write(killed / "log.jsonl", b"")
    write(killed / ".lock", b"4711")
    write(killed / f".{CHECKPOINT_FILE}.0.tmp", b"half")
    succeeds("train", *arguments, "--output", killed)
    assert (killed / CHECKPOINT_FILE).read_bytes() == (expected / CHECKPOINT_FILE).read_bytes()


def test_a_run_that_replaces_another_leaves_no_chart_of_it(folder):
    succeeds("train", *TINY, "--max-steps", "1", "--histogram-every", "1", "--quiet", "--output", folder / "run")
    chart = (folder / "run/exponents.svg").read_bytes()
    fails(USAGE, "train", *TINY, "--batch", "1", "--crop", "16", "--overwrite", "--output", folder / "run")
    assert (folder / "run/exponents.svg").read_bytes() == chart
    succeeds("train", *TINY, "--max-steps", "1", "--quiet", "--overwrite", "--output", folder / "run")
    assert not (folder / "run/exponents.svg").exists()


@pytest.mark.parametrize("code, flags", [(USAGE, ["--batch", "1", "--crop", "16"]), (MEMORY, ["--memory-limit", "4"])])
def test_a_refused_run_leaves_the_run_that_it_was_to_replace(folder, code, flags):
    stop_early(folder / "run")
    before = contents(folder / "run")
    fails(code, "train", *TINY, "--seed", "9", *flags, "--overwrite", "--output", folder / "run")
    assert contents(folder / "run") == before
    succeeds("train", *TINY, "--seed", "9", "--max-steps", "1", "--overwrite", "--output", folder / "run")
    after = contents(folder / "run")
    assert after.keys() == before.keys() and after[CHECKPOINT_FILE] != before[CHECKPOINT_FILE]


def test_a_refused_run_leaves_the_files_that_links_name(folder):
    linked, store = stop_early(folder / "run"), folder / "store"
    store.mkdir()
    for name in (CHECKPOINT_FILE, "log.jsonl", "config.toml"):
        (linked / name).rename(store / name)
        (linked / name).symlink_to(f"../store/{name}")
    before = contents(store)
    fails(USAGE, "train", *TINY, "--batch", "1", "--crop", "16", "--overwrite", "--output", linked)
    assert contents(store) == before and all(path.is_symlink() for path in linked.iterdir())
    succeeds("train", *TINY, "--seed", "9", "--max-steps", "1", "--overwrite", "--output", linked)
    after = contents(store)
    assert after.keys() == before.keys() and after[CHECKPOINT_FILE] != before[CHECKPOINT_FILE]
    assert {path.name for path in linked.iterdir()} == set(before)


def killed_before_its_first_step(folder, *flags):
    """A run that --overwrite was to replace, and the files of the new one. Returns the earlier run's contents."""
    before = contents(stop_early(folder))
    new = start("train", *TINY, "--images", "20000", "--height", "256", "--width", "256", "--batch", "2000", "--seed", "9",
                "--overwrite", *flags, "--output", folder)
    try:
        while (folder / CHECKPOINT_FILE).read_bytes() == before[CHECKPOINT_FILE]:
            assert new.poll() is None
            time.sleep(0.005)
    finally:
        new.kill()
        new.communicate()
    assert (folder / ".earlier").is_dir()
    return before


def test_a_kill_before_the_first_step_loses_no_earlier_run(folder):
    run_folder = folder / "run"
    before = killed_before_its_first_step(run_folder)
    (run_folder / ".config.toml.0.tmp").write_text("half of a fi")  # a kill may come while a file is written
    fails(DATA_ERROR, "train", *TINY_CLASSIFIER, "--data-root", folder / "none", "--overwrite", "--output", run_folder)
    assert contents(run_folder) == before
    killed_before_its_first_step(folder / "other")
    succeeds("train", *TINY, "--seed", "9", "--max-steps", "1", "--overwrite", "--output", folder / "other")
    assert contents(folder / "other").keys() == before.keys()


def test_a_stop_before_the_first_step_leaves_the_earlier_run(folder):
    before = contents(stop_early(folder / "run"))
    new = start("train", *TINY, "--images", "20000", "--height", "256", "--width", "256", "--batch", "1000", "--overwrite",
                "--output", folder / "run")
    while not (folder / "run/.earlier").is_dir():
        assert new.poll() is None
        time.sleep(0.005)
    new.send_signal(signal.SIGTERM)
    _, said = new.communicate()
    # Before the program polls, a signal ends it at once; the next program then finds the earlier run.
    assert new.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM), said
    if new.returncode > 0:
        assert "before the first step" in said or "checkpoint saved" in said
    fails(USAGE, "train", *TINY, "--batch", "1", "--crop", "16", "--overwrite", "--output", folder / "run")
    if "checkpoint saved" not in said:
        assert contents(folder / "run") == before


def test_an_empty_lock_is_no_sign_of_a_killed_run(folder):
    own = write(folder / "own/config.toml", b"# mine\n")
    write(folder / "own/.lock", b"")
    fails(OUTPUT, "train", *TINY, "--output", folder / "own", says=["config.toml", "--overwrite"])
    assert own.read_bytes() == b"# mine\n"


def test_a_configuration_of_the_users_in_the_output_folder_is_not_written_over(folder):
    own = write(folder / "own/config.toml", b"# mine\n[train]\nepochs = 1\n")
    before = contents(folder / "own")
    fails(OUTPUT, "train", *TINY, "--config", own, "--output", folder / "own", says=["config.toml", "--overwrite"])
    line = fails(CHECKPOINT, "train", "--resume", "--output", folder / "own", says=["nothing to --resume", "--overwrite"])
    assert contents(folder / "own") == before, line


def test_a_run_that_dies_early_leaves_the_configuration_of_a_killed_one(folder):
    killed = folder / "run"
    text = (stop_early(folder / "expected") / "config.toml").read_bytes()
    write(killed / "config.toml", text)
    write(killed / ".lock", b"4711")
    fails(MEMORY, "train", *TINY, "--memory-limit", "4", "--output", killed)
    assert (killed / "config.toml").read_bytes() == text and not (killed / CHECKPOINT_FILE).exists()


@pytest.mark.parametrize("content", [b"another tool's", b"1" * 20])
def test_a_lock_of_another_tool_is_left_alone(folder, content):
    lock = write(folder / "run/.lock", content)
    fails(OUTPUT, "train", *TINY, "--output", folder / "run", says=[lock, "is no lock of palimpsest"])
    assert contents(folder / "run") == {".lock": content}


def test_a_lock_with_another_name_and_a_pipe_are_left_alone(folder):
    precious = write(folder / "precious.txt", b"")
    for make in (lambda lock: os.link(precious, lock), os.mkfifo):
        (folder / "run").mkdir(exist_ok=True)
        make(folder / "run/.lock")
        fails(OUTPUT, "train", *TINY, "--output", folder / "run", says=["is no lock of palimpsest"])
        assert (folder / "run/.lock").exists() and precious.read_bytes() == b""
        (folder / "run/.lock").unlink()


def test_a_log_without_its_checkpoint_is_protected_and_not_circular(folder):
    lost = stop_early(folder / "run")
    (lost / CHECKPOINT_FILE).unlink()
    before = contents(lost)
    for code, arguments in ((CHECKPOINT, ["--resume"]), (OUTPUT, TINY)):
        line = fails(code, "train", *arguments, "--output", lost, says=[lost / CHECKPOINT_FILE, "--overwrite"])
        assert "start without it" not in line and "continue it" not in line
    assert contents(lost) == before


def test_compare_does_not_advise_a_flag_that_it_has_not(folder):
    stop_early(folder / "run/standard")
    line = fails(OUTPUT, "compare", *TINY, "--output", folder / "run", says=["already holds a run", "--overwrite"])
    assert "--resume" not in line


# What a resumed run goes on with.

def test_a_finished_run_says_so_and_changes_nothing(copy_of_run):
    before = contents(copy_of_run)
    result = succeeds("train", "--resume", "--output", copy_of_run, "--lr", "0.5")
    assert "resumed at step 2 of 2" in result.stderr
    assert "is complete" in result.stderr and "--epochs N" in result.stderr
    assert contents(copy_of_run) == before


def test_a_resumed_run_says_its_step_and_each_changed_setting(folder):
    resumed = stop_early(folder / "run")
    result = succeeds("train", "--resume", "--max-steps", "2", "--lr", "0.5", "--output", resumed)
    assert "resumed at step 1 of 2" in result.stderr
    assert "[optimizer] lr (--lr) = 0.5; it was 0.01" in result.stderr
    assert "[train] max_steps (--max-steps) = 2; it was 1" in result.stderr
    assert config(resumed)["optimizer"]["lr"] == stored_config(resumed / CHECKPOINT_FILE)["optimizer"]["lr"] == 0.5


@pytest.mark.parametrize("flags", ["--activation elu", "--slope 0.2", "--model deeplabv3_resnet18", "--seed 2", "--batch 2",
                                   "--classes 5", "--images 9", "--height 64", "--dtype f64", "--mean 0,0,0", "--optimizer adamw"])
def test_a_setting_that_makes_it_another_run_is_refused(copy_of_run, flags):
    before = contents(copy_of_run)
    flag = flags.split()[0]
    fails(USAGE, "train", "--resume", "--output", copy_of_run, "--epochs", "2", *flags.split(), says=[flag])
    assert contents(copy_of_run) == before


def test_a_resumed_run_that_fails_leaves_its_configuration(copy_of_run):
    before = contents(copy_of_run)
    fails(MEMORY, "train", "--resume", "--output", copy_of_run, "--epochs", "2", "--lr", "0.5", "--memory-limit", "1")
    assert contents(copy_of_run) == before


def test_without_config_toml_the_checkpoints_configuration_counts(folder):
    succeeds("train", *TINY, "--epochs", "2", "--output", folder / "unbroken")
    broken = stop_early(folder / "run")
    (broken / "config.toml").unlink()
    succeeds("train", "--resume", "--max-steps", "0", "--threads", "1", "--output", broken)
    assert (broken / CHECKPOINT_FILE).read_bytes() == (folder / "unbroken" / CHECKPOINT_FILE).read_bytes()
    assert config(broken)["train"]["batch"] == 4


@pytest.mark.parametrize("flags, says", [
    (["--max-steps", "2"], ["--max-steps M with M > 3, or 0, goes on"]),
    (["--epochs", "1", "--max-steps", "0"], ["--epochs N with N > 1 goes on"]),
    (["--epochs", "1", "--max-steps", "2"], ["--epochs N with N > 1 and --max-steps M with M > 3, or 0, go on"]),
])
def test_a_run_beyond_the_given_end_is_told_how_it_goes_on(folder, flags, says):
    run = folder / "run"
    succeeds("train", *TINY, "--epochs", "2", "--max-steps", "3", "--output", run)
    said = succeeds("train", "--resume", *flags, "--output", run).stderr
    assert "complete at step 3" in said and all(text in said for text in says), said


def test_a_config_toml_that_cannot_be_read_does_not_count(folder):
    held = stop_early(folder / "run")
    (held / "config.toml").unlink()
    (held / "config.toml").mkdir()
    end = run("train", "--resume", "--max-steps", "2", "--output", held)
    assert "config.toml': Is a directory; the checkpoint's configuration counts" in end.stderr
    assert end.returncode == OUTPUT and "config.toml" in end.stderr.splitlines()[-1]  # it cannot be written, either


def test_an_edited_config_toml_does_not_count_and_is_named(folder):
    edited = stop_early(folder / "run")
    text = (edited / "config.toml").read_text()
    (edited / "config.toml").write_text(text.replace("\nlr = 0.01\n", "\nlr = 0.7\n"))
    result = succeeds("train", "--resume", "--max-steps", "2", "--output", edited)
    assert "says 0.7 for [optimizer] lr" in result.stderr and "checkpoint's 0.01 counts" in result.stderr
    assert config(edited)["optimizer"]["lr"] == 0.01


def test_a_recipe_may_be_given_again_with_resume(folder):
    write(folder / "mine.toml", b'[output]\nfolder = "run"\n[optimizer]\nlr = 0.02\n')
    succeeds("train", "--config", "mine.toml", *TINY, "--max-steps", "1", cwd=folder)
    result = succeeds("train", "--config", "mine.toml", "--resume", "--max-steps", "2", cwd=folder)
    assert "resumed at step 1 of 2" in result.stderr and "[optimizer]" not in result.stderr


def test_the_images_must_be_those_of_the_run(folder):
    data = image_folder(folder / "data", images=4)  # eight training images, two batches
    succeeds("train", *TINY_CLASSIFIER, "--data-root", data, "--max-steps", "1", "--output", folder / "run")
    write(data / "train/cat/more.png", png(np.zeros((32, 32, 3))))  # still two batches
    fails(USAGE, "train", "--resume", "--max-steps", "2", "--output", folder / "run",
          says=["8 images", "this run reads 9 images", "names and sizes"])
    (data / "train/cat/more.png").unlink()
    moved = shutil.move(data, folder / "moved")
    result = succeeds("train", "--resume", "--max-steps", "2", "--data-root", moved, "--output", folder / "run")
    assert "[data] root (--data-root)" in result.stderr


def test_a_broken_configuration_beside_the_checkpoint_does_not_stop_a_resumed_run(folder):
    run = stop_early(folder / "run")
    (run / "config.toml").write_text("garbage [[[ =")
    said = succeeds("train", "--resume", "--max-steps", "2", "--output", run).stderr
    assert "config.toml:1" in said and "the checkpoint's configuration counts" in said
    assert config(run)["train"]["max_steps"] == 2


def test_another_number_of_classes_is_refused_by_its_name(folder):
    fails(USAGE, "train", "--resume", "--classes", "4", "--output", stop_early(folder / "run"), says=["--classes must stay 11", "got 4"])


def test_a_checkpoint_of_an_older_program_keeps_the_order_of_its_data(folder):
    """It names no order. The header is padded, so that the offsets stay."""
    old = stop_early(folder / "run")
    data = (old / CHECKPOINT_FILE).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8:8 + size].replace(b'"palimpsest_order":"own_stream",', b"")
    assert len(header) < size
    (old / CHECKPOINT_FILE).write_bytes(data[:8] + header + b" " * (size - len(header)) + data[8 + size:])
    succeeds("train", "--resume", "--max-steps", "2", "--output", old)
    assert b'"palimpsest_order"' not in (old / CHECKPOINT_FILE).read_bytes()[:size]


# What a checkpoint hands on.

def test_settings_of_a_machine_and_a_terminal_are_no_part_of_a_checkpoint(folder):
    plain, special = folder / "plain", folder / "special"
    succeeds("train", *TINY, "--output", plain)
    succeeds("train", *TINY, "--log-every", "7", "--workers", "0", "--memory-limit", "5000", "--quiet", "--output", special)
    assert (plain / CHECKPOINT_FILE).read_bytes() == (special / CHECKPOINT_FILE).read_bytes()
    stored, beside = stored_config(special / CHECKPOINT_FILE), config(special)
    assert not {"threads", "memory_limit"} & stored["train"].keys() and "workers" not in stored["data"]
    assert beside["train"]["threads"] == 1 and beside["train"]["memory_limit"] == 5000
    assert "quiet" not in beside["output"]
    assert "resumed at step 2 of 3" in succeeds("train", "--resume", "--epochs", "2", "--max-steps", "3", "--output", special).stderr


def test_predict_does_not_write_where_a_checkpoint_says(copy_of_run):
    """A stored configuration of another's checkpoint: its output folder is ignored."""
    checkpoint = copy_of_run / CHECKPOINT_FILE
    data = checkpoint.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    config_text = header["__metadata__"]["config"]
    assert "[output]\n" in config_text
    header["__metadata__"]["config"] = config_text.replace("[output]\n", '[output]\nfolder = "PWNED"\n')
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    checkpoint.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size:])
    image = write(copy_of_run.parent / "in.png", png(np.zeros((32, 32, 3))))
    fails(USAGE, "predict", checkpoint, image, says=["--output"], cwd=copy_of_run.parent)
    assert not (copy_of_run.parent / "PWNED").exists()


@pytest.mark.parametrize("command", ["eval", "predict", "info"])
def test_a_run_folder_stands_for_its_checkpoint(trained, folder, command):
    image = write(folder / "in.png", png(np.zeros((32, 32, 3))))
    rest = {"eval": ["--json"], "predict": [image, "--output", folder / "out", "--overwrite"],
            "info": ["--size", "32", "--json"]}[command]
    assert succeeds(command, trained, *rest).stdout == succeeds(command, trained / CHECKPOINT_FILE, *rest).stdout


def test_logits_never_replace_the_checkpoint_or_an_image(copy_of_run):
    image = write(copy_of_run.parent / "in.png", png(np.zeros((32, 32, 3))))
    before = contents(copy_of_run)
    for file in (copy_of_run / CHECKPOINT_FILE, image):
        fails(USAGE, "predict", copy_of_run, image, "--logits", file, says=["--logits", file])
    assert contents(copy_of_run) == before and image.read_bytes() == png(np.zeros((32, 32, 3)))


RUN_FILES = [CHECKPOINT_FILE, "log.jsonl", "config.toml", "step_memory.safetensors"]


@pytest.mark.parametrize("target", [*RUN_FILES, "best.safetensors", "evaluation.safetensors",
                                    "events.out.tfevents.0000000000.palimpsest", "a link"])
@pytest.mark.parametrize("command", ["report", "predict", "export"])
def test_no_command_replaces_a_file_of_a_training(trained, folder, command, target):
    """Not those of the run that it reads, and not those of another one."""
    image = write(folder / "in.png", png(np.zeros((32, 32, 3))))
    (folder / "run").mkdir()
    for file in RUN_FILES:
        os.link(trained / file, folder / "run" / file)
    before = contents(folder / "run")
    output = folder / "run" / target
    if target == "a link":
        output = folder / "link.html"
        output.symlink_to(folder / "run" / "log.jsonl")
    flags = {"report": ["--output", output], "predict": [image, "--logits", output], "export": ["--output", output]}[command]
    for run_folder in (trained, folder / "run"):
        fails(USAGE, command, run_folder, *flags, "--overwrite", says=[flags[-2], output])
    assert contents(folder / "run") == before


def test_the_configuration_of_a_command_is_not_its_output(trained, folder):
    image = write(folder / "in.png", png(np.zeros((32, 32, 3))))
    mine = shutil.copy(trained / "config.toml", folder / "mine.toml")
    before = mine.read_bytes()
    fails(USAGE, "predict", trained, image, "--config", mine, "--logits", mine, "--overwrite",
          says=["--logits must be another file than the input", mine])
    assert mine.read_bytes() == before


def test_files_of_the_users_in_the_folder_of_a_run_are_replaced(copy_of_run):
    write(copy_of_run / "weights.safetensors", b"old")
    succeeds("export", copy_of_run, "--output", copy_of_run / "weights.safetensors", "--overwrite")
    assert (copy_of_run / "weights.safetensors").read_bytes() != b"old"


# Signals.

def test_a_lost_terminal_saves_the_run(folder):
    process = start("train", *TINY, "--epochs", "1000", "--output", folder / "run")
    log = folder / "run/log.jsonl"
    while not (log.exists() and log.read_text().count("\n") > 1):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGHUP)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 129 and "--resume" in stderr.splitlines()[-1]
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert f"resumed at step {steps[-1]} of" in succeeds("train", "--resume", "--max-steps", steps[-1] + 1, "--output",
                                                        folder / "run").stderr


def test_nohup_goes_on(folder):
    process = subprocess.Popen(["nohup", PROGRAM, "train", *TINY, "--epochs", "4", "--output", folder / "run"], env=environment(),
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    while not (folder / "run" / CHECKPOINT_FILE).exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0


# Numbers.

@pytest.mark.parametrize("flags, says", [
    ("--dtype f64 --histogram-every 1", ["--histogram-every must be 0", "f64"]),
    (f"--memory-limit {2**44}", ["--memory-limit", "1073741824", str(2**44)]),
    (f"--epochs {2**62}", ["epochs must be at most", str(2**62)]),
])
def test_numbers_that_cannot_work_are_refused_at_the_start(folder, flags, says):
    fails(USAGE, "train", *TINY, *flags.split(), "--output", folder / "run", says=says)
    assert not (folder / "run").exists()


# Images of mixed sizes.

@pytest.mark.parametrize("kind", ["segmentation", "classification"])
def test_images_of_mixed_sizes_train_and_evaluate_as_one_by_one(folder, kind):
    folder_of, flags = {
        "segmentation": (segmentation_folder, "--model deeplabv3_resnet18_narrow --data segmentation_folder --classes 3"),
        "classification": (image_folder, "--model resnet18_narrow --data image_folder")}[kind]
    data = mixed_sizes(folder_of, folder / "data")
    succeeds("train", *flags.split(), "--data-root", data, "--crop", "32", "--batch", "4", "--threads", "1", "--output",
             folder / "run")
    together, alone = (json.loads(succeeds("eval", folder / "run", "--json", "--threads", "1", "--eval-batch", n).stdout)
                       for n in (4, 1))
    assert together.pop("loss") == pytest.approx(alone.pop("loss"), rel=1e-5)
    assert together == alone
    fails(USAGE, "train", *flags.split(), "--data-root", data, "--batch", "4", "--output", folder / "whole", says=["set a crop"])
    assert not (folder / "whole").exists()

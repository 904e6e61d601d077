"""Whatever ends a run, --resume gives the bytes of the run that nothing ended."""
import json
import os
import random
import signal
import time

import pytest

from cli_support import CHECKPOINT, OUTPUT, TINY, TINY_CLASSIFIER, USAGE, fails, image_folder, run, start, succeeds

STEPS = 6  # three epochs of two
SLOW = [*TINY, "--model", "deeplabv3_resnet18"]  # steps long enough to send a signal within one on a busy machine
LONG = [*SLOW, "--epochs", "3", "--checkpoint-every", "1"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    succeeds("train", *LONG, "--output", "run", cwd=folder)
    contents = (folder / "run/checkpoint.safetensors").read_bytes()
    (folder / "run/checkpoint.safetensors").unlink()  # pytest keeps the folder
    return contents


def logged_steps(folder):
    try:
        lines = (folder / "run/log.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines if json.loads(line)["type"] == "step"]
    except (FileNotFoundError, json.JSONDecodeError):
        return []


def send_at(folder, number, at_step):
    """Starts the run, sends the signal when `at_step` steps are logged, waits; (exit status, stderr)."""
    process = start("train", *LONG, "--output", "run", cwd=folder)
    deadline = time.monotonic() + 60
    while len(logged_steps(folder)) < at_step and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


def resume_and_compare(folder, unbroken):
    assert succeeds("train", "--resume", "--output", "run", "--threads", "1", cwd=folder)
    assert (folder / "run/checkpoint.safetensors").read_bytes() == unbroken
    assert logged_steps(folder) == list(range(1, STEPS + 1))


def test_a_killed_run_resumes_to_the_same_bytes(folder, unbroken):
    seed = int.from_bytes(os.urandom(4), "little")
    draw = random.Random(seed)
    at_step = draw.randrange(1, STEPS - 1)
    status, _ = send_at(folder, signal.SIGKILL, at_step)
    print(f"seed {seed}: killed after step {at_step}")  # shown if the test fails
    assert status == -signal.SIGKILL, "the run was over before the signal"
    resume_and_compare(folder, unbroken)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_finishes_its_step_saves_and_resumes_to_the_same_bytes(folder, unbroken, number, code):
    status, stderr = send_at(folder, number, 2)
    assert status == code
    assert "--resume" in stderr.splitlines()[-1]
    done = logged_steps(folder)
    assert 2 <= len(done) < STEPS
    resume_and_compare(folder, unbroken)


def test_a_second_signal_ends_the_run_at_once(folder):
    process = start("train", *SLOW, "--crop", "256", "--epochs", "1000", "--output", "run", cwd=folder)
    while not logged_steps(folder) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    # The step may have ended between the two: then it was the ordinary end.
    assert process.returncode in (-signal.SIGTERM, 130)


def test_dropout_goes_on_with_the_masks_of_the_unbroken_run(folder):
    data = image_folder(folder / "data")
    command = [*TINY_CLASSIFIER, "--data-root", data, "--model", "alexnet_cifar_narrow", "--epochs", "3", "--precision", "f16-pseudo"]
    succeeds("train", *command, "--output", folder / "unbroken")
    succeeds("train", *command, "--output", folder / "broken", "--max-steps", "3")
    succeeds("train", "--resume", "--output", folder / "broken", "--max-steps", "0")
    unbroken, broken = ((folder / run / "checkpoint.safetensors").read_bytes() for run in ("unbroken", "broken"))
    assert unbroken == broken


def test_stochastic_depth_is_a_setting_of_the_run(folder):
    data = image_folder(folder / "data")
    command = [*TINY_CLASSIFIER, "--data-root", data, "--model", "efficientnet_b0", "--dropout", "0"]
    for depth in ("0", "0.9"):
        succeeds("train", *command, "--stochastic-depth", depth, "--output", folder / depth)
    assert "stochastic_depth = 0.9" in (folder / "0.9/config.toml").read_text()
    losses = [[json.loads(line)["loss"] for line in (folder / depth / "log.jsonl").read_text().splitlines()] for depth in ("0", "0.9")]
    assert losses[0][0] != losses[1][0]  # of the same weights and images
    fails(USAGE, "train", "--resume", "--output", folder / "0.9", "--stochastic-depth", "0.5", says=["--stochastic-depth must stay"])


def test_a_run_in_the_folder_is_protected(copy_of_run):
    before = {path: path.read_bytes() for path in copy_of_run.iterdir()}
    fails(OUTPUT, "train", *TINY, "--output", copy_of_run,
          says=[copy_of_run, "already holds a run", "--resume", "--overwrite"])
    assert {path: path.read_bytes() for path in copy_of_run.iterdir()} == before


def test_overwrite_replaces_the_run(copy_of_run):
    succeeds("train", *TINY, "--max-steps", "1", "--overwrite", "--output", copy_of_run)
    assert len((copy_of_run / "log.jsonl").read_text().splitlines()) == 1


def test_overwrite_keeps_the_run_when_the_new_one_cannot_begin(copy_of_run):
    before = {path: path.read_bytes() for path in copy_of_run.iterdir()}
    fails(USAGE, "train", *TINY, "--batch", "9", "--overwrite", "--output", copy_of_run, says=["--batch", "8", "9"])
    assert {path: path.read_bytes() for path in copy_of_run.iterdir()} == before


def test_there_must_be_something_to_resume(folder):
    fails(CHECKPOINT, "train", *TINY, "--resume", "--output", folder / "none",
          says=[folder / "none/checkpoint.safetensors", "--resume"])
    assert not (folder / "none").exists()


def test_another_batch_cannot_continue_a_run(copy_of_run):
    before = (copy_of_run / "checkpoint.safetensors").read_bytes()
    fails(USAGE, "train", "--resume", "--output", copy_of_run, "--batch", "2", "--epochs", "2", says=["batch"])
    assert (copy_of_run / "checkpoint.safetensors").read_bytes() == before


def test_a_finished_run_resumes_to_itself(copy_of_run):
    before = (copy_of_run / "checkpoint.safetensors").read_bytes()
    assert run("train", "--resume", "--output", copy_of_run).returncode == 0
    assert (copy_of_run / "checkpoint.safetensors").read_bytes() == before

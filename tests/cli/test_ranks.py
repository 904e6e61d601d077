"""Several processes train one network: as one process would, bit for bit when resumed, and together when one of them fails."""
import contextlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import struct
import threading
import time

import numpy as np
import pytest

from cli_support import (CHECKPOINT, DATA_ERROR, DIVERGED, OUTPUT, TINY, TINY_CLASSIFIER, USAGE, change_checkpoint, fails,
                         image_folder, png, succeeds, write_shard)
from ranks import Ranks, children, free_port, run_ranks, succeed_on_ranks, torchrun

PEER = 8
CHECKPOINT_FILE = "checkpoint.safetensors"
LONG = [*TINY, "--epochs", "50", "--checkpoint-every", "1"]  # a hundred steps: long enough for a signal
F64 = "--dtype f64 --epochs 12 --lr 0.002 --evaluate-every 6".split()  # at a high rate rounding grows from step to step


def log(folder, kind="step"):
    try:
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or half a line
        return []
    return [line for line in lines if line["type"] == kind]


def steps(folder):
    return [line["step"] for line in log(folder)]


def checkpoint(folder):
    return (folder / CHECKPOINT_FILE).read_bytes()


def tensors(folder):
    """The floating-point tensors of a checkpoint."""
    data = checkpoint(folder)
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    types = {"F32": np.float32, "F64": np.float64}
    return {name: np.frombuffer(data[8 + size:][slice(*entry["data_offsets"])], types[entry["dtype"]])
            for name, entry in header.items() if name != "__metadata__" and entry["dtype"] in types}


def wait_for_step(folder, step, *processes):
    deadline = time.monotonic() + 100
    while len(steps(folder)) < step:
        assert time.monotonic() < deadline
        for process in processes:
            assert process.poll() is None, process.communicate()
        time.sleep(0.002)


def wait_for_thread(process, name):
    deadline = time.monotonic() + 60
    while name not in (file.read_text().strip() for file in pathlib.Path(f"/proc/{process.pid}/task").glob("*/comm")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)


def error_lines(text):
    return [line for line in text.splitlines() if line.startswith("palimpsest: error: ")]


# The same training.

@pytest.mark.parametrize("size, batch", [(2, 4), (3, 8)])
def test_the_losses_and_weights_are_those_of_one_process(folder, size, batch):
    command = ["train", *TINY, "--images", "16", "--batch", batch, *F64, "--output"]
    succeeds(*command, folder / "one")
    succeed_on_ranks(size, *command, folder / "many", "--sync-norm")
    assert len(steps(folder / "one")) == 12 * 16 // batch >= 20
    for one, many in zip(log(folder / "one"), log(folder / "many"), strict=True):
        assert many["step"] == one["step"] and many["loss"] == pytest.approx(one["loss"], rel=1e-10)
    want, got = tensors(folder / "one"), tensors(folder / "many")
    assert got.keys() == want.keys()
    for name, values in want.items():
        assert np.abs(got[name] - values).max() <= 1e-9 * max(np.abs(values).max(), 1e-3), name
    for one, many in zip(log(folder / "one", "evaluation"), log(folder / "many", "evaluation"), strict=True):
        assert many["loss"] == pytest.approx(one["loss"], rel=1e-9)
        assert many["images"] == one["images"]


def test_the_order_of_the_images_does_not_depend_on_the_number_of_processes(folder):
    """Without synchronized statistics the runs differ, but the first loss of the same weights is nearly the same."""
    data = image_folder(folder / "data")
    command = ["train", *TINY_CLASSIFIER, "--data-root", data, "--batch", "8", "--dtype", "f64", "--sync-norm", "--output"]
    succeed_on_ranks(2, *command, folder / "two")
    succeed_on_ranks(4, *command, folder / "four")
    assert log(folder / "two")[0]["loss"] == pytest.approx(log(folder / "four")[0]["loss"], rel=1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_an_evaluation_is_that_of_one_process(trained, trained_classifier, folder, size):
    run_folder, data = trained_classifier
    for arguments in (["eval", trained, "--val-images", "5", "--eval-batch", "2", "--dtype", "f64"],
                      ["eval", trained, "--val-images", "3", "--eval-batch", "1", "--eval-scales", "0.75,1.25", "--eval-flip",
                       "--window", "32", "--labels", "train", "--output", folder / "labels", "--overwrite"],
                      ["eval", run_folder, "--data-root", data, "--eval-batch", "1"],
                      ["eval", run_folder, "--data-root", data, "--confusion", folder / "c.csv", "--overwrite"]):
        want = json.loads(succeeds(*arguments, "--json").stdout)
        out, _ = succeed_on_ranks(size, *arguments, "--json")
        got = json.loads(out[0])
        assert got.pop("loss") == pytest.approx(want.pop("loss"), rel=1e-12)
        assert got == want
        assert out[1:] == [""] * (size - 1)


def test_a_confusion_matrix_of_nan_ends_every_process_with_the_same_status(trained_classifier, folder):
    run_folder, data = trained_classifier
    shutil.copytree(run_folder, folder / "damaged")

    def damage(tensors, _):
        for value in tensors.values():
            if value.ndim == 4:
                value.fill(np.nan)

    change_checkpoint(folder / "damaged/checkpoint.safetensors", damage)
    statuses, out, errors = run_ranks(2, "eval", folder / "damaged", "--data-root", data, "--eval-batch", "1", "--json", "--confusion",
                                      folder / "c.csv")
    assert statuses == [DIVERGED, DIVERGED], errors
    assert json.loads(out[0])["top1"] is None and out[1] == ""
    assert len(error_lines(errors[0])) == 1 and "is not written" in errors[0] and error_lines(errors[1]) == []
    assert not (folder / "c.csv").exists()


@pytest.mark.parametrize("size", [1, 2])
def test_labels_of_equal_names_are_an_error_of_each_process_before_one_is_written(trained, folder, size):
    """The two images of a name are in the parts of different processes."""
    for shard in ("a", "b"):
        write_shard(folder / f"data/{shard}.tar", [(f"{shard}/{i}.{ending}", png(np.zeros(shape))) for i in range(3)
                                                   for ending, shape in (("png", (32, 40, 3)), ("seg.png", (32, 40)))])
    statuses, _, errors = run_ranks(size, "eval", trained, "--data", "webdataset", "--data-root", folder / "data", "--val-split",
                                    "{a,b}.tar", "--eval-batch", "1", "--labels", "train", "--output", folder / "labels")
    assert statuses == [USAGE] * size
    for error in errors:
        assert "b.tar: b/0.png and " in error and "a.tar: a/0.png would both be written to " in error
    assert not (folder / "labels").exists()


def test_one_process_of_a_launcher_is_a_run_without_one(folder):
    succeeds("train", *TINY, "--output", folder / "alone")
    succeed_on_ranks(1, "train", *TINY, "--output", folder / "one")
    assert checkpoint(folder / "one") == checkpoint(folder / "alone")


def test_torchrun_starts_them_and_the_first_alone_speaks(folder):
    with torchrun("train", *TINY, "--threads", "0", "--lr", "0.1", "--lr-for-batch", "8",
                  "--output", "run", cwd=folder) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.count("[model]") == 1 and "lr_for_batch = 8" in out
    threads = max(len(os.sched_getaffinity(0)) // 2, 1)
    assert f"palimpsest: 2 processes (torchrun), 2 on this machine, {threads} thread{'s' * (threads > 1)} each\n" in err
    assert "palimpsest: lr 0.1 for 8 images -> 0.05 for 4\n" in err
    assert sum(line.startswith("step 1/2 ") for line in err.splitlines()) == 1
    assert {path.name for path in (folder / "run").iterdir()} == {CHECKPOINT_FILE, "log.jsonl", "config.toml",
                                                                   "step_memory.safetensors"}
    assert log(folder / "run")[0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize("compression", ["none", "bf16", "f16"])
def test_gradients_may_travel_in_16_bits(folder, compression):
    succeed_on_ranks(2, "train", *TINY, "--epochs", "5", "--gradient-compression", compression, "--output", folder / "run")
    losses = [line["loss"] for line in log(folder / "run")]
    assert len(losses) == 10 and losses[-1] < losses[0]


# Resuming.

@pytest.mark.parametrize("flags", [[], ["--sync-norm"]])
def test_a_run_that_is_resumed_on_as_many_processes_has_the_bytes_of_an_unbroken_one(folder, flags):
    command = ["train", *TINY, *flags, "--epochs", "3", "--evaluate-every", "1"]
    succeed_on_ranks(2, *command, "--output", "unbroken", cwd=folder)
    succeed_on_ranks(2, *command, "--output", "broken", "--max-steps", "3", cwd=folder)
    succeed_on_ranks(2, "train", "--resume", "--max-steps", "0", "--output", "broken", cwd=folder)
    assert checkpoint(folder / "broken") == checkpoint(folder / "unbroken")
    assert steps(folder / "broken") == list(range(1, 7))


def test_a_run_goes_on_with_another_number_of_processes(folder):
    run_folder = folder / "run"
    succeed_on_ranks(2, "train", *TINY, "--images", "12", "--batch", "6", "--epochs", "4", "--max-steps", "2", "--output", run_folder)
    said = succeeds("train", "--resume", "--max-steps", "4", "--output", run_folder).stderr
    assert said.count("note: the checkpoint is of a run of 2 processes, this one has 1") == 1
    _, err = succeed_on_ranks(3, "train", "--resume", "--max-steps", "6", "--output", run_folder)
    assert err[0].count("note: the checkpoint is of a run of 1 process, this one has 3") == 1
    assert "processes from number 1 on draw new random numbers" in err[0]
    _, err = succeed_on_ranks(3, "train", "--resume", "--max-steps", "8", "--output", run_folder)
    assert "the checkpoint is of a run" not in err[0]
    assert steps(run_folder) == list(range(1, 9))


def test_only_the_first_needs_the_output_folder(folder):
    def command(*flags):
        return lambda rank: ["train", *TINY, "--epochs", "2", "--resume-if-possible", *flags, "--output", folder / str(rank) / "run"]

    for flags in (["--max-steps", "2"], ["--max-steps", "0"]):
        with Ranks(2, command(*flags)) as ranks:
            codes, _, err = ranks.wait()
        assert codes == [0, 0], err
    assert "resumed at step 2 of 4" in err[0]
    assert not (folder / "1").exists()
    succeed_on_ranks(2, "train", *TINY, "--epochs", "2", "--output", folder / "unbroken")
    assert steps(folder / "0/run") == [1, 2, 3, 4]
    want, got = tensors(folder / "unbroken"), tensors(folder / "0/run")
    assert all(np.array_equal(got[name], values) for name, values in want.items())


def test_resume_if_possible_begins_or_continues(folder):
    command = ["train", *TINY, "--epochs", "2", "--resume-if-possible", "--output", "run"]
    succeeds(*command, "--max-steps", "1", cwd=folder)
    assert "resumed at step 1 of 4" in succeeds(*command, "--max-steps", "0", cwd=folder).stderr
    assert steps(folder / "run") == [1, 2, 3, 4]
    assert "is complete at step 4" in succeeds(*command, cwd=folder).stderr
    fails(USAGE, *command, "--overwrite", cwd=folder, says=["--resume-if-possible", "--overwrite"])


def test_weights_to_start_from_do_not_prevent_resume_if_possible(trained, folder):
    command = ["train", *TINY, "--epochs", "2", "--resume-if-possible", "--weights", trained / CHECKPOINT_FILE, "--output", "run"]
    succeeds(*command, "--max-steps", "1", cwd=folder)
    assert "resumed at step 1 of 4" in succeeds(*command, "--max-steps", "0", cwd=folder).stderr


# Stopping and failing.

@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_on_one_stops_both_after_the_same_step(folder, rank):
    with Ranks(2, ["train", *LONG, "--output", "run"], cwd=folder) as ranks:
        wait_for_step(folder / "run", 3, *ranks.processes)
        ranks.processes[rank].send_signal(signal.SIGTERM)
        codes, _, err = ranks.wait()
    assert codes == [143, 143], err
    assert "stopped by signal 15 (SIGTERM)" in err[0] and "--resume" in err[0].splitlines()[-1]
    assert "palimpsest" not in err[1]
    done = steps(folder / "run")
    assert 3 <= len(done) < 100
    succeed_on_ranks(2, "train", "--resume", "--max-steps", len(done) + 2, "--output", "run", cwd=folder)
    succeed_on_ranks(2, "train", *LONG, "--max-steps", len(done) + 2, "--output", "unbroken", cwd=folder)
    assert steps(folder / "run") == list(range(1, len(done) + 3))
    want, got = tensors(folder / "unbroken"), tensors(folder / "run")
    assert all(np.array_equal(got[name], values) for name, values in want.items())


def test_torchrun_passes_sigterm_on_and_the_run_is_saved(folder):
    with torchrun("train", *LONG, "--output", "run", cwd=folder) as process:
        wait_for_step(folder / "run", 2, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert "stopped by signal 15 (SIGTERM); checkpoint saved" in err
    done = steps(folder / "run")
    assert 2 <= len(done) < 100
    succeed_on_ranks(2, "train", "--resume", "--max-steps", len(done) + 1, "--output", "run", cwd=folder)
    assert steps(folder / "run") == list(range(1, len(done) + 2))


def test_a_killed_process_ends_the_other_with_a_line_that_names_it(folder):
    with Ranks(2, ["train", *LONG, "--output", "run"], cwd=folder) as ranks:
        wait_for_step(folder / "run", 2, *ranks.processes)
        ranks.processes[1].kill()
        codes, _, err = ranks.wait(timeout=60)
    assert codes == [PEER, -signal.SIGKILL], err
    line, = error_lines(err[0])
    assert "rank 1" in line


def test_bad_data_of_one_ends_both_with_its_message(folder):
    data = image_folder(folder / "data")
    bad = data / "train/cat/1.png"
    bad.write_bytes(b"no image")
    codes, _, err = run_ranks(2, "train", *TINY_CLASSIFIER, "--data-root", data, "--output", folder / "run")
    assert codes == [DATA_ERROR, DATA_ERROR], err
    assert all(str(bad) in text for text in err), err
    assert sum(len(error_lines(text)) for text in err) == 1, err
    assert not (folder / "run").exists(), "a run that ended before its first step leaves nothing"


def test_a_loss_that_is_no_number_ends_both_with_one_message(folder):
    codes, _, err = run_ranks(2, "train", *TINY, "--epochs", "4", "--lr", "1e30", "--schedule", "constant", "--output", folder / "run")
    assert codes == [DIVERGED, DIVERGED], err
    line, = error_lines(err[0])
    assert "diverged" in line and error_lines(err[1]) == []


def test_a_full_disk_of_the_first_ends_both(folder):
    def limit(rank):
        size = 1_000_000
        return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))} if rank == 0 else {}

    codes, _, err = run_ranks(2, "train", *TINY, "--output", folder / "run", options=limit)
    assert codes == [OUTPUT, OUTPUT], err
    assert len(error_lines(err[0])) == 1 and "rank 0 of 2" in err[1]


def test_other_settings_on_one_are_told_at_once(folder):
    begin = time.monotonic()
    with Ranks(2, lambda rank: ["train", *TINY, "--lr", 0.1 * (rank + 1), "--output", "run"], cwd=folder) as ranks:
        codes, _, err = ranks.wait(timeout=60)
    assert codes == [USAGE, USAGE], err
    assert all("lr = 0.1" in text and "lr = 0.2" in text for text in err), err
    assert time.monotonic() - begin < 30, "not after the timeout"
    assert not (folder / "run").exists()


def test_other_data_on_one_is_told(folder):
    for rank in (0, 1):
        image_folder(folder / str(rank), images=4 + rank)
    with Ranks(2, lambda rank: ["train", *TINY_CLASSIFIER, "--data-root", str(rank), "--output", "run"], cwd=folder) as ranks:
        codes, _, err = ranks.wait(timeout=60)
    assert codes == [USAGE, USAGE], err
    assert all("training images 8" in text and "training images 10" in text for text in err), err


def test_other_data_of_the_same_size_on_one_is_told(folder):
    for rank in (0, 1):
        image_folder(folder / str(rank), images=4)
    renamed = next((folder / "1" / "train").rglob("*.png"))
    renamed.rename(renamed.with_name("renamed.png"))
    with Ranks(2, lambda rank: ["train", *TINY_CLASSIFIER, "--data-root", str(rank), "--output", "run"], cwd=folder) as ranks:
        codes, _, err = ranks.wait(timeout=60)
    assert codes == [USAGE, USAGE] and all("training images 8, of the files" in text for text in err), err


def test_a_folder_that_holds_a_run_ends_both(copy_of_run):
    before = {path: path.read_bytes() for path in copy_of_run.iterdir()}
    codes, _, err = run_ranks(2, "train", *TINY, "--output", copy_of_run)
    assert codes == [OUTPUT, OUTPUT], err
    assert all("already holds a run" in text for text in err)
    assert {path: path.read_bytes() for path in copy_of_run.iterdir()} == before


def test_what_cannot_be_shared_is_a_usage_error(folder):
    for arguments, says in ((["compare", *TINY, "--output", "run"], "compare runs in one process"),
                            (["info", "--size", "32"], "info runs in one process"),
                            (["train", *TINY, "--batch", "1", "--output", "run"], "at least one image for each of the 2 processes")):
        codes, _, err = run_ranks(2, *arguments, cwd=folder)
        assert codes == [USAGE, USAGE], err
        assert all(says in text for text in err), err
    assert not (folder / "run").exists()
    fails(USAGE, "train", *TINY, "--output", "run", cwd=folder, variables={"RANK": "0"}, says=["WORLD_SIZE"])


def test_a_process_that_never_comes_is_named(folder):
    with Ranks(1, ["train", *TINY, "--timeout", "2", "--output", "run"], cwd=folder,
               variables=lambda rank: {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}) as ranks:
        codes, _, err = ranks.wait(timeout=60)
    assert codes == [PEER], err
    assert len(error_lines(err[0])) == 1 and "rank 1 of 2 did not connect" in err[0]


def test_a_process_that_hangs_is_named_also_if_the_others_met_in_it(folder):
    with Ranks(2, ["train", *LONG, "--timeout", "3", "--output", "run"], cwd=folder) as ranks:
        wait_for_step(folder / "run", 2, *ranks.processes)
        ranks.processes[0].send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        _, err = ranks.processes[1].communicate(timeout=60)
        assert ranks.processes[1].returncode == PEER, err
    assert time.monotonic() - begin < 30
    assert len(error_lines(err)) == 1 and "rank 0 of 2" in err and "no answer" in err, err


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_before_all_have_met_ends_those_that_have_come(folder, rank):
    with Ranks(2, ["train", *TINY, "--timeout", "60", "--output", "run"], cwd=folder,
               variables=lambda _: {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}) as ranks:
        for process in ranks.processes:
            wait_for_thread(process, "pal_store")  # it asks the store: the process is about to wait for the third
        begin = time.monotonic()
        ranks.processes[rank].send_signal(signal.SIGTERM)
        codes, _, err = ranks.wait(timeout=50)
    assert codes[rank] == 128 + signal.SIGTERM and codes[1 - rank] == PEER, err
    assert time.monotonic() - begin < 20 and all(f"rank {rank} of 3 was stopped" in text for text in err), err


def test_a_signal_ends_a_process_that_waits_for_the_first_one(folder):
    with Ranks(1, ["train", *TINY, "--timeout", "60", "--output", "run"], cwd=folder,
               variables=lambda _: {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}) as ranks:
        process = ranks.processes[0]
        catches = lambda: int(next(line for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
                                   if line.startswith("SigBlk")).split()[1], 16) >> (signal.SIGTERM - 1) & 1
        deadline = time.monotonic() + 60
        while not catches():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        codes, _, err = ranks.wait(timeout=50)
    assert codes[0] in (128 + signal.SIGTERM, -signal.SIGTERM), err  # before it is polled, the first one ends the program
    assert time.monotonic() - begin < 20


def test_a_run_that_rank_0_does_not_see_is_not_begun_anew(folder):
    succeed_on_ranks(2, "train", *TINY, "--output", "run", cwd=folder)
    with Ranks(2, lambda rank: ["train", *TINY, "--resume-if-possible", "--output", ["lost", "run"][rank]], cwd=folder) as ranks:
        codes, _, err = ranks.wait(timeout=60)
    assert codes == [CHECKPOINT, CHECKPOINT], err
    assert all("rank 0 finds none" in text for text in err), err


@pytest.mark.parametrize("greeting", [None, b"SSH-2.0-server\r\n"], ids=["silent", "talks"])
def test_another_program_at_the_port_is_told_in_one_line(folder, greeting):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    if greeting:
                        connection.sendall(greeting)
                        connection.close()
        threading.Thread(target=serve, daemon=True).start()
        port = str(server.getsockname()[1])
        with Ranks(1, ["train", *TINY, "--timeout", "3", "--output", "run"], cwd=folder,
                   variables=lambda _: {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1",
                                        "MASTER_PORT": port}) as ranks:
            codes, _, err = ranks.wait(timeout=60)
        server.shutdown(socket.SHUT_RDWR)
    assert codes == [PEER], err
    assert len(err[0].splitlines()) == 1 and f"127.0.0.1:{port}" in err[0] and "MASTER_PORT" in err[0], err


def test_a_process_that_does_not_see_the_run_to_resume_is_told_so(folder):
    succeed_on_ranks(2, "train", *TINY, "--output", "run", cwd=folder)
    with Ranks(2, lambda rank: ["train", "--resume", "--epochs", 9, "--output", ["run", "elsewhere"][rank]],
               cwd=folder) as ranks:
        codes, _, err = ranks.wait(timeout=60)
    assert codes == [USAGE, USAGE], err
    assert all("let all see the same folder" in text for text in err), err


def test_one_image_per_process_is_too_few_for_a_global_branch(folder):
    codes, _, err = run_ranks(2, "train", *TINY, "--batch", 2, "--output", "run", cwd=folder)
    assert codes == [USAGE, USAGE] and all("--sync-norm" in text for text in err), err
    succeed_on_ranks(2, "train", *TINY, "--batch", 2, "--sync-norm", "--output", "other", cwd=folder)


# Settings.

def test_the_new_settings_stand_in_the_configuration_if_they_are_given(folder):
    plain = succeeds("train", "--dry-run").stdout
    assert not any(key in plain for key in ("sync_norm", "gradient_compression", "lr_for_batch"))
    given = succeeds("train", "--dry-run", "--sync-norm", "--gradient-compression", "bf16", "--lr-for-batch", "256").stdout
    for line in ("sync_norm = true", 'gradient_compression = "bf16"', "lr_for_batch = 256"):
        assert line in given
    (folder / "given.toml").write_text(given)
    assert succeeds("train", "--dry-run", "--config", folder / "given.toml").stdout == given


@pytest.mark.parametrize("flags, says", [
    (["--lr-for-batch", "-8"], ["--lr-for-batch must be a whole number >= 0, got -8"]),
    (["--gradient-compression", "f15"], ["gradient-compression", "'f15'", "f16"]),
    (["--timeout", "0"], ["--timeout must be a whole number in [1, "]),
    (["--sync-norm", "--no-sync-norm"], ["exclude each other"]),
    (["--model", "alexnet_cifar_narrow", "--data", "image_folder", "--data-root", "d", "--sync-norm"],
     ["--sync-norm has no effect", "normalizations"]),
])
def test_a_setting_that_cannot_work_is_named(folder, flags, says):
    fails(USAGE, "train", *flags, "--output", "run", cwd=folder, says=says)


def test_a_learning_rate_for_another_batch_grows_with_the_batch(folder):
    said = succeeds("train", *TINY, "--lr", "0.1", "--lr-for-batch", "2", "--schedule", "linear", "--final-lr", "0.02", "--output",
                    folder / "run").stderr
    assert "palimpsest: lr 0.1 for 2 images -> 0.2 for 4; final_lr 0.02 -> 0.04\n" in said
    assert log(folder / "run")[0]["lr"] == pytest.approx(0.2)


# Chaos. scripts/chaos asks for more.
KILLS = int(os.environ.get("PALIMPSEST_KILLS", "2"))


def test_torchrun_restarts_killed_processes_and_the_run_has_the_bytes_of_an_unbroken_one(folder):
    kills, epochs = KILLS, max(10, 3 * KILLS)  # of two steps
    command = ["train", *TINY, "--epochs", epochs, "--checkpoint-every", "1", "--resume-if-possible", "--output"]
    succeed_on_ranks(2, *command, "unbroken", cwd=folder)
    seed = int.from_bytes(os.urandom(4), "little")
    draw = random.Random(seed)
    moments = sorted(draw.sample(range(1, 2 * epochs - 2), kills))
    victims = [draw.randrange(2) for _ in moments]
    print(f"seed {seed}: kills ranks {victims} after steps {moments}")  # shown if the test fails
    with torchrun(*command, "broken", cwd=folder, flags=[f"--max-restarts={kills}"]) as process:
        for step, victim in zip(moments, victims):
            wait_for_step(folder / "broken", step, process)
            known = children(process.pid)
            while len(known) < 2:  # between two starts
                assert process.poll() is None
                known = children(process.pid)
            os.kill(known[victim], signal.SIGKILL)
            while known[victim] in children(process.pid):  # a zombie has no program
                assert process.poll() is None
        _, err = process.communicate(timeout=100 * kills)
    assert process.returncode == 0, err
    assert checkpoint(folder / "broken") == checkpoint(folder / "unbroken")
    assert steps(folder / "broken") == list(range(1, 2 * epochs + 1))


def test_two_agents_of_torchrun_meet_again_when_a_process_of_one_was_killed(folder):
    command = ["train", *TINY, "--epochs", "10", "--checkpoint-every", "1", "--resume-if-possible", "--timeout", "60", "--output"]
    succeed_on_ranks(2, *command, "unbroken", cwd=folder)
    # Agents count restarts each for themselves: the ranks of the second start have other numbers.
    meet = ("--nnodes=2", "--rdzv-id=run", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    options = {"cwd": folder, "size": 1, "flags": ["--max-restarts=2"], "rendezvous": meet}
    with torchrun(*command, "broken", **options) as first, torchrun(*command, "broken", **options) as second:
        wait_for_step(folder / "broken", 5, first, second)
        os.kill(children(second.pid)[0], signal.SIGKILL)
        for process in (first, second):
            _, err = process.communicate(timeout=100)
            assert process.returncode == 0, err
    assert checkpoint(folder / "broken") == checkpoint(folder / "unbroken")

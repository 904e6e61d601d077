"""Trainings, evaluations and resumptions on shards, and what is wrong with them in one line."""
import gzip
import io
import json
import os
import tarfile

import numpy as np
import pytest

from cli_support import DATA_ERROR, USAGE, fails, png, run, shards, succeeds, write, write_shard
from ranks import succeed_on_ranks

CLASSIFIER = "--model resnet18_narrow --data webdataset --classes 3 --batch 4 --threads 1 --log-every 1".split()
SEGMENTER = ("--model deeplabv3_resnet18_narrow --data webdataset --classes 3 --batch 2 --crop 32 --threads 1 "
             "--log-every 1").split()


@pytest.fixture
def data(folder):
    return shards(folder / "data")


def train(data, run, *flags, network=CLASSIFIER):
    succeeds("train", *network, "--data-root", data, "--train-split", "train-{000000..000002}.tar", "--output", run, *flags)
    return (run / "checkpoint.safetensors").read_bytes()


def test_a_classifier_is_trained_evaluated_and_described(data, folder):
    train(data, folder / "run", "--epochs", "2", "--shuffle-buffer", "10", "--shard-streams", "2")
    records = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["type"] == "step"] == list(range(1, 13))
    assert [r["images"] for r in records if r["type"] == "evaluation"] == [8, 8]
    config = (folder / "run/config.toml").read_text()
    assert "shuffle_buffer = 10" in config and "shard_streams = 2" in config and "ignore_id" not in config
    result = json.loads(succeeds("eval", folder / "run", "--json").stdout)
    assert result["images"] == 8 and "bad_images" not in result


def test_a_segmentation_network_reads_the_labels_of_pixels(data, folder):
    train(data, folder / "run", "--epochs", "1", network=SEGMENTER)
    result = json.loads(succeeds("eval", folder / "run", "--json").stdout)
    assert 0 <= result["mean_iou"] <= 1 and result["images"] == 8


def test_workers_and_resumption_change_no_byte(data, folder):
    flags = ("--shuffle-buffer", "5", "--evaluate-every", "0", "--quiet")
    wanted = train(data, folder / "whole", *flags, "--max-steps", "5", "--workers", "0")
    assert train(data, folder / "three", *flags, "--max-steps", "5", "--workers", "3") == wanted
    train(data, folder / "resumed", *flags, "--max-steps", "2")
    succeeds("train", "--resume", "--output", folder / "resumed", "--max-steps", "5", "--quiet")
    assert (folder / "resumed/checkpoint.safetensors").read_bytes() == wanted


def test_a_resumed_run_keeps_its_order(data, folder):
    train(data, folder / "run", "--max-steps", "2", "--evaluate-every", "0")
    for flag in ("--shuffle-buffer", "--shard-streams"):
        fails(USAGE, "train", "--resume", "--output", folder / "run", flag, "2", says=[flag, "must stay"])


def add_member(archive, name, contents=b"", link=None, kind=tarfile.SYMTYPE):
    """link: the name that the member refers to, in place of contents."""
    member = tarfile.TarInfo(name)
    if link is not None:
        member.type, member.linkname = kind, link
    member.size = len(contents)
    archive.addfile(member, io.BytesIO(contents))


@pytest.mark.parametrize("linked", [("5.png",), ("5.cls",), ("5.png", "5.cls")])
def test_an_example_that_is_a_link_is_a_fault_and_not_left_out(data, folder, linked):
    """GNU tar stores a file with several names once, and its other names as links."""
    members = [(f"{i}.{ending}", png(np.zeros((32, 40, 3))) if ending == "png" else b"0") for i in range(6) for ending in ("cls", "png")]
    path = data / "train-000001.tar"
    with tarfile.open(path, "w") as archive:
        for name, contents in members:
            if name in linked:
                add_member(archive, name, link=name.replace("5", "0"), kind=tarfile.LNKTYPE)
            else:
                add_member(archive, name, contents)
        add_member(archive, "README", link="0.cls")
    says = [path, f"link '{min(linked, key=lambda name: not name.endswith('png'))}'", "--hard-dereference"]
    command = ["train", *CLASSIFIER, "--data-root", data, "--train-split", "train-{000000..000002}.tar", "--max-steps", "1"]
    fails(DATA_ERROR, *command, "--output", folder / "run", says=says)
    for _ in range(2):  # without an index, and with one
        succeeds(*command, "--bad-images", "skip", "--output", folder / "run", "--overwrite")
    fails(DATA_ERROR, *command, "--output", folder / "run", "--overwrite", says=says)
    checked = run("data", "check", data, "--json")
    faults = [fault for split in json.loads(checked.stdout)["splits"] for fault in split["faults"] if "has the link" in fault]
    assert checked.returncode == DATA_ERROR and faults and all("example '5'" in fault for fault in faults)


def test_a_link_beside_the_file_is_no_second_image(data, folder):
    with tarfile.open(data / "train-000001.tar", "a") as archive:
        add_member(archive, "9.jpg", link="9.png")
        add_member(archive, "9.png", png(np.zeros((32, 40, 3))))
        add_member(archive, "9.cls", b"0")
    train(data, folder / "run", "--max-steps", "1")


def test_a_link_of_another_name_does_not_part_an_example(data, folder):
    with tarfile.open(data / "train-000001.tar", "w") as archive:
        add_member(archive, "9.png", png(np.zeros((32, 40, 3))))
        add_member(archive, "notes", link="9.png")
        add_member(archive, "8.txt", link="9.png")
        add_member(archive, "9.cls", b"0")
    for _ in range(2):  # without an index, and with one
        train(data, folder / "run", "--max-steps", "1", "--overwrite")


def test_an_index_of_unknown_words_is_not_read(data, folder):
    train(data, folder / "run", "--max-steps", "1")
    index = data / "train-000000.tar.index"
    index.write_text(index.read_text().replace("file ", "else ", 1))
    before = index.read_text()
    train(data, folder / "run", "--max-steps", "1", "--overwrite")
    assert index.read_text() == before.replace("else ", "file ", 1)


def test_a_truncated_shard_is_an_error_or_loses_its_rest(data, folder):
    shard = data / "train-000001.tar"
    os.truncate(shard, 20000)
    flags = ("train", *CLASSIFIER, "--data-root", data, "--train-split", "train-{000000..000002}.tar", "--evaluate-every", "0")
    line = fails(DATA_ERROR, *flags, "--output", folder / "run", says=[shard, "truncated", "at byte"])
    assert "after member" in line
    told = succeeds(*flags, "--output", folder / "run", "--bad-images", "skip").stderr
    assert f"left out for 1 fault: cannot read tar archive '{shard}'" in told and "examples are whole" in told


@pytest.mark.parametrize("members, says", [
    ([("1.png", png(np.zeros((32, 32, 3))))], ["'1' of", "no label (.cls"]),
    ([("1.cls", b"1")], ["'1' of", "label and no image"]),
    ([("1.png", png(np.zeros((32, 32, 3)))), ("1.seg.png", png(np.zeros((32, 32))))], ["for a segmentation model"]),
    ([("1.png", png(np.zeros((32, 32, 3)))), ("1.cls", b"3")], ["from 0 to 2", "'3'"]),
    ([("1.png", b"text"), ("1.cls", b"0")], ["x.tar: 1.png", "neither JPEG nor PNG"]),
    ([("1.png", b""), ("1.jpeg", b""), ("1.cls", b"0")], ["'1' of", "two images", "'1.jpeg'"]),
    ([("1.png", b""), ("1.cls", b"1"), ("1.cls", b"0")], ["'1' of", "two labels", "'1.cls'"]),
], ids=["no label", "no image", "other label", "class", "image", "two images", "two labels"])
def test_what_is_wrong_with_an_example_is_one_line(folder, members, says):
    write_shard(folder / "data/x.tar", members)
    fails(DATA_ERROR, "train", *CLASSIFIER, "--batch", "1", "--evaluate-every", "0", "--data-root", folder / "data", "--train-split",
          "x.tar", "--output", folder / "run", says=[folder / "data/x.tar", *says])


@pytest.mark.parametrize("flags, code, says", [
    (("--train-split", "train-{000000..000003}.tar"), DATA_ERROR, ["train-000003.tar", "does not exist"]),
    (("--train-split", "train-{000003..000000}.tar"), USAGE, ["smaller one first"]),
    (("--train-split", "{train-000000,train-000000}.tar"), DATA_ERROR, ["train-000000.tar", "is given twice"]),
    (("--train-split", "train-*.tar"), DATA_ERROR, ["does not exist", "a range is written {000000..000146}"]),
    (("--train-split", ""), USAGE, ["a split of a webdataset must be a folder", "got ''", "'.' takes every shard"]),
    (("--train-split", "val", "--classes", "0"), USAGE, ["--classes"]),
    (("--train-split", "val", "--ignore-id", "7"), USAGE, ["ignore-id", "no effect"]),
    (("--train-split", "val", "--data", "image_folder", "--shuffle-buffer", "7"), USAGE, ["shuffle-buffer", "no effect", "webdataset"]),
    (("--data", "generated", "--bad-images", "skip", "--model", "deeplabv3_resnet18"), USAGE, ["bad-images", "no effect"]),
    (("--train-split", "val", "--bad-images", "skipp"), USAGE, ["did you mean 'skip'"]),
])
def test_settings_that_cannot_work_are_one_line(data, folder, flags, code, says):
    fails(code, "train", *CLASSIFIER, "--data-root", data, "--evaluate-every", "0", *flags, "--output", folder / "run", says=says)


def test_a_compressed_shard_is_named_as_one(data, folder):
    write(folder / "data/x.tar", gzip.compress((data / "train-000000.tar").read_bytes()))
    fails(DATA_ERROR, "train", *CLASSIFIER, "--data-root", folder / "data", "--evaluate-every", "0", "--train-split", "x.tar",
          "--output", folder / "run", says=[folder / "data/x.tar", "is compressed (gzip): unpack it"])


def test_the_index_beside_a_shard_is_used_and_a_folder_without_it_works(data, folder):
    wanted = train(data, folder / "first", "--max-steps", "2", "--evaluate-every", "0", "--quiet")
    assert (data / "train-000000.tar.index").exists()
    assert train(data, folder / "second", "--max-steps", "2", "--evaluate-every", "0", "--quiet") == wanted


def test_processes_read_what_one_process_reads(data, folder):
    """The first steps have the same images, and four are bad; the rounding of the averaged gradients differs."""
    write_shard(data / "train-000001.tar",
                [(f"{i}.{ending}", contents) for i in range(4) for ending, contents in (("png", b"text"), ("cls", b"0"))])
    flags = ("train", *CLASSIFIER, "--data-root", data, "--train-split", "train-{000000..000002}.tar", "--evaluate-every", "0",
             "--shard-streams", "2", "--bad-images", "skip", "--dtype", "f64", "--sync-norm", "--output")
    succeeds(*flags, folder / "one")
    succeed_on_ranks(2, *flags, folder / "two")
    one, two = ([json.loads(line) for line in (folder / name / "log.jsonl").read_text().splitlines()] for name in ("one", "two"))
    reasons = [[(r["step"], r["reason"]) for r in run if r["type"] == "bad_image"] for run in (one, two)]
    assert reasons[0] == reasons[1] and len(reasons[0]) == 4
    for a, b in zip(one, two, strict=True):
        if a["type"] == "step":
            assert b["loss"] == pytest.approx(a["loss"], rel=1e-9)

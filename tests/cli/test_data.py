"""Published data sets in their official layouts: training, evaluation and `data check` on small copies, and on damaged ones."""
import json
import pathlib
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from cli_support import (DATA, DATA_ERROR, USAGE, fails, image_folder, png, png_size, run, segmentation_folder,
                         shards, succeeds, write, write_shard)
from layouts_support import CLASSES, IDS, published

NETWORK = {True: "--model deeplabv3_resnet18_narrow --crop 32 --batch 2", False: "--model resnet18_narrow --batch 2"}
SHORT = "--threads 1 --workers 1 --max-steps 1 --quiet".split()


def flags(kind):
    return ["--data", kind, *NETWORK[kind in IDS].split(), *SHORT]


def check(*arguments):
    """The result of `data check`, which finds no fault."""
    return json.loads(succeeds("data", "check", *arguments, "--json").stdout)


def faulty(*arguments):
    """The result of `data check`, which ends with the exit code of bad data."""
    result = run("data", "check", *arguments, "--json")
    assert result.returncode == DATA_ERROR, result.stderr
    assert "which the check names" in result.stderr
    return json.loads(result.stdout)


def split_of(result, name):
    return next(split for split in result["splits"] if split["name"] == name)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_published_data_set_trains_and_is_evaluated_with_its_classes(kind, folder):
    root = published(kind, folder / "camvid")
    succeeds("train", *flags(kind), "--data-root", root, "--output", folder / "run")
    values = json.loads(succeeds("eval", folder / "run", "--data-root", root, "--json").stdout)
    assert values["images"] == (2 if kind != "imagenet" else 6)
    assert len(values.get("class_iou", {})) == (CLASSES[kind] if kind in IDS else 0)
    info = json.loads(succeeds("info", folder / "run", "--json").stdout)
    assert len(info["class_names"]) == CLASSES[kind]


@pytest.mark.parametrize("kind", CLASSES)
def test_the_check_recognizes_a_published_data_set_and_counts_its_files(kind, folder):
    root = published(kind, folder / "CamVid")
    result = check(root, "--full")
    assert (result["kind"], result["recognized"]) == (kind, True)
    assert result["expected"] and len(result["classes"]) == CLASSES[kind]
    train = result["splits"][0]
    assert train["images"] == train["labels"] == {"cifar10": 10, "imagenet": 6}.get(kind, 2)
    assert train["published_images"] > 300 and train["faults"] == []
    assert train["smallest"] == train["largest"] == ([32, 32] if kind.startswith("cifar") else [64, 48])
    counted = sum(train["class_counts"].values()) + train.get("void_pixels", 0)
    assert counted == (2 * 48 * 64 if kind in IDS else train["images"])
    assert kind not in IDS or 0 < train["void_pixels"] < counted


def test_the_check_says_the_same_in_words(folder):
    text = succeeds("data", "check", published("voc", folder / "voc"), "--full").stdout
    for part in ("layout    voc (recognized)", "ImageSets/Segmentation", "classes   21", "no split  trainval", "published: 1464",
                 "sizes       64x48 to 64x48", "unreadable  0", "aeroplane", "void"):
        assert part in text
    brief = succeeds("data", "check", folder / "voc").stdout
    assert "aeroplane" not in brief and "published: 1464" in brief


@pytest.mark.parametrize("make, kind", [(segmentation_folder, "segmentation_folder"), (image_folder, "image_folder")])
def test_the_check_recognizes_folders_of_ones_own(make, kind, folder):
    result = check(make(folder / "mine"), "--full")
    assert result["kind"] == kind
    assert [split["name"] for split in result["splits"]] == ["train", "val"]
    assert split_of(result, "train")["published_images"] is None
    assert sum(split_of(result, "train")["class_counts"].values()) == (4 * 48 * 64 if kind == "segmentation_folder" else 8)


def test_the_check_recognizes_shards_and_counts_both_kinds_of_labels(folder):
    root = shards(folder / "data")
    write(root / "classes.txt", b"a\nb\nc\n")
    result = check(root)
    assert (result["kind"], result["recognized"], result["classes"]) == ("webdataset", True, ["a", "b", "c"])
    assert "KEY.cls" in result["expected"] and "KEY.seg.png" in result["expected"]
    names = ["train-{000000..000002}.tar", "val"]
    assert [split["name"] for split in result["splits"]] == [f"{name}, {label}" for name in names for label in (".cls", ".seg.png")]
    of_images = split_of(result, f"{names[0]}, .cls")
    assert (of_images["images"], of_images["labels"], of_images["class_counts"]) == (24, 24, {"a": 9, "b": 9, "c": 6})
    full = check(root, "--full", "--threads", "2")
    of_pixels = split_of(full, f"{names[0]}, .seg.png")
    assert sum(of_pixels["class_counts"].values()) == 24 * 32 * 40 and of_pixels["void_pixels"] == 0
    assert of_pixels["smallest"] == of_pixels["largest"] == [40, 32]
    assert not list(root.rglob("*.index"))
    assert split_of(check(root / "val"), "0.tar, .cls")["images"] == 8  # PATH may be the folder of the shards
    text = succeeds("data", "check", root, "--full").stdout
    assert "layout    webdataset (recognized)" in text and "images per class" in text and "pixels per class" in text


def test_the_check_names_what_is_wrong_with_shards_by_shard_and_key(folder):
    root, picture = folder / "data", png(np.zeros((32, 40, 3)))
    for i in range(5):
        members = [(f"{i}{k}.{ending}", contents) for k in range(4) for ending, contents in (("png", picture), ("cls", b"1"))]
        write_shard(root / f"train-{i:02}.tar", members)
    (root / "train-03.tar").unlink()
    write_shard(root / "train-01.tar", [("a.png", picture), ("b.png", picture), ("b.cls", b"3"), ("c.cls", b"0"), ("d.png", picture[:60]),
                                        ("d.cls", b"-1")])
    whole = (root / "train-02.tar").read_bytes()
    write(root / "train-02.tar", whole[:whole.index(b"22.png") + 600])
    write(root / "classes.txt", b"a\nb\nc\n")
    split = faulty(root)["splits"][0]
    assert split["name"] == "train-{00..04}.tar" and (split["images"], split["labels"]) == (13, 12)
    wanted = [["train-03.tar", "does not exist"], ["'a' of", "train-01.tar", "no label"], ["'c' of", "train-01.tar", "no image"],
              ["train-02.tar", "truncated", "its first 2 examples are whole"], ["train-01.tar: b.png", "from 0 to 2", "'3'"],
              ["train-01.tar: d.png", "from 0 to 2", "'-1'"]]
    for fault, parts in zip(split["faults"], wanted, strict=True):
        assert all(part in fault for part in parts), (fault, parts)
    full = faulty(root, "--full")["splits"][0]
    assert full["unreadable"] == 1 and len(full["faults"]) == 7
    assert "train-01.tar: d.png" in full["faults"][5]

    write_shard(root / "maps/0.tar", [("a.png", picture), ("a.seg.png", png(np.full((32, 40), 7)))])
    of_pixels = split_of(faulty(root, "--full"), "maps")
    assert of_pixels["ids_without_class"] == {"7": 32 * 40}
    assert "label of " in of_pixels["faults"][0] and "maps/0.tar: a.png" in of_pixels["faults"][0]
    fails(DATA_ERROR, "data", "check", image_folder(folder / "images"), "--data-kind", "webdataset", says=["holds no .tar file"])


def test_an_asked_layout_is_not_guessed(folder):
    root = published("camvid", folder / "streets")
    assert check(root)["kind"] == "segmentation_folder"
    result = check(root, "--data-kind", "camvid")
    assert (result["kind"], result["recognized"], result["missing_splits"]) == ("camvid", False, ["test"])
    fails(DATA_ERROR, "data", "check", root, "--data-kind", "vistas", says=["is not the folder of vistas", "training/images"])
    fails(USAGE, "data", "check", root, "--data-kind", "camvit", says=["did you mean 'camvid'"])


def test_a_folder_too_high_or_too_low_names_the_right_one(folder):
    root = published("cityscapes", folder / "cityscapes")
    for wrong in (folder, root / "leftImg8bit"):
        fails(DATA_ERROR, "data", "check", wrong, says=[root, "looks like cityscapes"])
    fails(DATA_ERROR, "train", *flags("cityscapes"), "--data-root", folder, "--output", folder / "run",
          says=["is not the folder of cityscapes", root])
    fails(DATA_ERROR, "data", "check", folder / "nowhere", says=["nowhere", "does not exist"])
    (folder / "empty").mkdir()
    (folder / "empty/none").mkdir()
    fails(DATA_ERROR, "data", "check", folder / "empty", says=["none of the layouts", "--data-kind"])


def test_the_check_names_missing_partners_without_decoding(folder):
    root = published("vistas", folder / "vistas")
    (root / "training/labels/scene-0.png").unlink()
    (root / "validation/images/scene-1.jpg").unlink()
    result = faulty(root)
    assert ["scene-0.jpg" in fault and "has no label" in fault for fault in split_of(result, "training")["faults"]] == [True]
    assert ["scene-1.png" in fault and "has no image" in fault for fault in split_of(result, "validation")["faults"]] == [True]


def test_the_full_check_counts_what_training_would_meet(folder):
    root = published("ade20k", folder / "ade20k", images=5)
    images, labels = root / "images/training", root / "annotations/training"
    write(images / "ADE_train_00000001.jpg", png(np.zeros((48, 64, 3)))[:60])
    wrong = np.ones((48, 64))
    wrong[3, 4] = wrong[5, 6] = 151
    write(labels / "ADE_train_00000002.png", png(wrong))
    write(labels / "ADE_train_00000003.png", png(np.ones((48, 63))))
    write(images / "ADE_train_00000004.jpg", png(np.zeros((1, 1, 3))))
    write(labels / "ADE_train_00000004.png", png(np.ones((1, 1))))
    assert check(root)["splits"][0]["faults"] == []
    train = split_of(faulty(root, "--full"), "training")
    assert train["unreadable"] == 1 and len(train["faults"]) == 3
    for fault, parts in zip(train["faults"], [["00000001.jpg"], ["00000002.png", "151", "2 pixels"], ["64x48", "63x48"]]):
        assert all(part in fault for part in parts), fault
    assert train["ids_without_class"] == {"151": 2}
    assert train["smallest"] == [1, 1] and train["largest"] == [64, 48]
    result = run("data", "check", root, "--full")
    assert result.returncode == DATA_ERROR
    assert "3 faults" in result.stderr and "the id 151 has no class: 2 pixels" in result.stdout


def test_the_check_is_the_same_for_any_number_of_threads(folder):
    root = published("camvid", folder / "camvid", images=7)
    for i in (1, 4):
        write(root / f"trainannot/0001TP_00000{i}.png", png(np.full((48, 64), 200)))
    results = [run("data", "check", root, "--full", "--json", "--threads", threads).stdout for threads in (1, 3)]
    assert results[0] == results[1] and len(json.loads(results[0])["splits"][0]["faults"]) == 2


def test_a_truncated_file_of_cifar_is_named(folder):
    root = published("cifar10", folder / "cifar10")
    batch = root / "data_batch_3.bin"
    batch.write_bytes(batch.read_bytes()[:-1])
    train = split_of(faulty(root), "train")
    assert train["images"] == 8 and "data_batch_3.bin" in train["faults"][0] and "truncated" in train["faults"][0]
    fails(DATA_ERROR, "train", *flags("cifar10"), "--data-root", root, "--output", folder / "run",
          says=["data_batch_3.bin", "3073 bytes", "1 short of a whole record"])


def test_an_id_outside_the_mapping_ends_a_training_with_file_id_and_count(folder):
    root = published("cityscapes", folder / "cityscapes")
    for label in (root / "gtFine/train").rglob("*.png"):
        write(label, png(np.full((48, 64), 40)))
    fails(DATA_ERROR, "train", *flags("cityscapes"), "--data-root", root, "--output", folder / "run",
          says=["gtFine_labelIds.png", "class id 40", "3072 pixels", "0 to 33 and 255"])


def test_labels_of_16_bits_are_named(folder):
    root = published("cocostuff164k", folder / "coco")
    rows = b"".join(b"\0" + struct.pack(">64H", *[300] * 64) for _ in range(48))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 48, 16, 0, 0, 0, 0))
    write(root / "stuffthingmaps/train2017/000000000001.png",
          b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    train = split_of(faulty(root, "--full"), "train2017")
    assert len(train["faults"]) == 1
    assert "000000000001.png" in train["faults"][0] and "16 bits per pixel" in train["faults"][0]


def test_a_data_set_without_its_splits_is_none(folder):
    root = published("cityscapes", folder / "cityscapes")
    (root / "gtFine").rename(root / "gtCoarse")
    for label in list(root.glob("gtCoarse/*/*/*_gtFine_labelIds.png")):
        label.rename(label.with_name(label.name.replace("gtFine", "gtCoarse")))
    assert "no split  train, fine" in succeeds("data", "check", root).stdout
    for place in ("leftImg8bit", "gtFine"):
        (folder / "empty" / place).mkdir(parents=True)
    fails(DATA_ERROR, "data", "check", folder / "empty", "--data-kind", "cityscapes", says=["has no split of cityscapes", "expected"])


def test_a_list_with_a_control_character_is_refused(folder):
    root = published("voc", folder / "voc")
    name = next(root.glob("**/ImageSets/Segmentation/train.txt"))
    name.write_bytes(name.read_bytes() + b"\0\0\n")
    assert "has a control character in line 3" in split_of(faulty(root), "train")["faults"][0]
    fails(DATA_ERROR, "train", *flags("voc"), "--data-root", root, "--output", folder / "run", says=["control character in line 3"])


def test_a_list_that_names_an_image_twice_is_refused(folder):
    root = published("voc", folder / "voc")
    names = next(root.glob("**/ImageSets/Segmentation/train.txt"))
    first = names.read_text().split()[0]
    names.write_text(names.read_text() + first + "\n")
    fails(DATA_ERROR, "train", *flags("voc"), "--data-root", root, "--output", folder / "run",
          says=[names, f"has '{first}' in line 1 and again in line 3"])


def test_an_error_names_the_layout_that_the_folder_has(folder):
    root = published("cifar10", folder / "cifar10")
    fails(DATA_ERROR, "train", *flags("cifar10"), "--data", "image_folder", "--data-root", root, "--output", folder / "run",
          says=["train' does not exist", "The folder looks like cifar10: give --data cifar10"])
    file = next(root.glob("**/data_batch_1.bin"))
    file.write_bytes(b"")
    fails(DATA_ERROR, "train", *flags("cifar10"), "--data-root", root, "--output", folder / "run", says=[file.name, "is empty"])


def test_settings_of_published_data_sets(folder):
    root = published("voc", folder / "voc")
    out = ("--output", folder / "run")
    fails(USAGE, "train", *flags("voc"), "--data-root", root, *out, "--train-split", "tran",
          says=["unknown split of voc 'tran'", "did you mean 'train'"])
    fails(USAGE, "train", *flags("voc"), "--data-root", root, *out, "--classes", "20", says=["the data set's 21", "got 20"])
    fails(USAGE, "train", *flags("voc"), "--data-root", root, *out, "--annotations", "coarse",
          says=["--annotations has no effect", "cityscapes", "voc"])
    fails(USAGE, "train", *flags("voc"), "--data-root", root, *out, "--ignore-id", "7", says=["--ignore-id has no effect"])
    fails(USAGE, "train", *flags("cifar10"), "--no-exif-orientation", *out, says=["exif-orientation has no effect", "cifar10"])
    fails(USAGE, "train", *flags("voc"), "--model", "resnet18_narrow", "--data-root", root, *out, says=["segmentation", "voc"])
    fails(USAGE, "train", *flags("voc"), *out, says=["--data-root"])


def test_a_run_cannot_go_on_with_other_annotations(folder):
    root = published("cityscapes", folder / "cityscapes")
    succeeds("train", *flags("cityscapes"), "--data-root", root, "--output", folder / "run")
    assert 'annotations = "fine"' in (folder / "run/config.toml").read_text()
    fails(USAGE, "train", "--resume", "--output", folder / "run", "--annotations", "coarse", "--max-steps", "2",
          says=["--annotations must stay", "fine"])


def test_coarse_annotations_are_those_of_the_training_and_evaluations_read_the_fine_ones(folder):
    root = published("cityscapes", folder / "cityscapes")
    for fine in root.glob("gtFine/*/*/*.png"):  # fine: all road; coarse: all sidewalk
        write(fine, png(np.full((48, 64), 7)))
        write(pathlib.Path(str(fine).replace("gtFine", "gtCoarse")), png(np.full((48, 64), 8)))
    (root / "gtFine/train").rename(folder / "the training reads none of them")
    succeeds("train", *flags("cityscapes"), "--data-root", root, "--output", folder / "run", "--annotations", "coarse",
             "--keep-best", "metric")
    evaluation, = (line for line in map(json.loads, (folder / "run/log.jsonl").read_text().splitlines())
                   if line["type"] == "evaluation")
    assert evaluation["class_iou"][0] is not None, "road occurs in the truth"
    beside = json.loads(succeeds("eval", folder / "run", "--data-root", root, "--json", "--confusion", folder / "both.csv").stdout)
    assert sum(beside["confusion"][0]) == 2 * 48 * 64, "all pixels of the truth are road"
    (root / "gtCoarse").rename(folder / "coarse")
    alone = json.loads(succeeds("eval", folder / "run", "--data-root", root, "--json", "--confusion", folder / "fine.csv").stdout)
    assert beside == alone
    for key in ("loss", "mean_iou", "pixel_accuracy"):
        assert evaluation[key] == pytest.approx(alone[key], rel=1e-5)


def test_evaluations_take_no_coarse_annotations(folder):
    root = published("cityscapes", folder / "cityscapes")
    (root / "gtFine").rename(root / "gtCoarse")
    for coarse in root.glob("gtCoarse/*/*/*.png"):
        coarse.rename(str(coarse).replace("_gtFine_", "_gtCoarse_"))
    train = ("train", *flags("cityscapes"), "--data-root", root, "--annotations", "coarse", "--output", folder / "run")
    fails(DATA_ERROR, *train, says=["gtFine/val"])
    succeeds(*train, "--evaluate-every", "0")
    fails(USAGE, "eval", folder / "run", "--annotations", "coarse", says=["eval does not use the option '--annotations'"])
    (root / "leftImg8bit/train").rename(root / "leftImg8bit/train_extra")
    fails(USAGE, "eval", folder / "run", "--data-root", root, "--val-split", "train_extra",
          says=["train_extra", "coarse labels only", "evaluations need fine ones"])


def test_predictions_have_the_official_colours(folder):
    root = published("cityscapes", folder / "cityscapes")
    succeeds("train", *flags("cityscapes"), "--data-root", root, "--output", folder / "run")
    succeeds("predict", folder / "run", root / "leftImg8bit/val/lindau", "--output", folder / "out")
    picture = next((folder / "out").glob("*.png"))
    assert png_size(picture) == (64, 48, 2)
    torchvision = pytest.importorskip("torchvision")
    colors = set(map(tuple, torchvision.io.read_image(str(picture)).flatten(1).T.tolist()))
    cityscapes = {(128, 64, 128), (244, 35, 232), (70, 70, 70), (102, 102, 156), (190, 153, 153), (153, 153, 153), (250, 170, 30),
                  (220, 220, 0), (107, 142, 35), (152, 251, 152), (70, 130, 180), (220, 20, 60), (255, 0, 0), (0, 0, 142),
                  (0, 0, 70), (0, 60, 100), (0, 80, 100), (0, 0, 230), (119, 11, 32)}
    assert colors and colors <= cityscapes


def test_the_check_takes_the_number_of_classes_and_the_ignore_id(folder):
    root = segmentation_folder(folder / "streets")
    label = next(root.glob("trainannot/*.png"))
    label.write_bytes(png(np.repeat([3, 7], 24)[:, None] + np.zeros(64)))
    kind = ("--data-kind", "segmentation_folder", "--full")
    assert check(root, *kind)["splits"]
    faults = split_of(faulty(root, *kind, "--classes", "7"), "train")
    assert "0 to 6 and the ignore id 255" in faults["faults"][0] and faults["ids_without_class"] == {"7": 64 * 24}
    ignored = split_of(check(root, *kind, "--classes", "7", "--ignore-id", "7"), "train")
    assert ignored["void_pixels"] >= 64 * 24 and ignored["ids_without_class"] == {}
    (root / "classes.txt").write_text("".join(f"class {i}\n" for i in range(9)))
    fails(USAGE, "data", "check", root, *kind, "--classes", "7", says=["the data set's 9", str(root), "got 7"])

    of_shards = shards(folder / "shards")
    assert check(of_shards, "--full", "--classes", "3")
    labels = {split["name"]: split["faults"] for split in faulty(of_shards, "--full", "--classes", "2")["splits"]}
    assert len(labels) == 4 and all("2" in faults[0] for faults in labels.values())

    images = image_folder(folder / "images")
    fails(USAGE, "data", "check", images, "--classes", "77", says=["the data set's", "image_folder", "got 77"])
    fails(USAGE, "data", "check", images, "--ignore-id", "7",
          says=["--ignore-id) has no effect", "segmentation_folder or webdataset", "got image_folder"])
    voc = published("voc", folder / "voc")
    fails(USAGE, "data", "check", voc, "--classes", "20", says=["the data set's 21", "voc", "got 20"])
    assert check(voc, "--classes", "21")


def test_the_check_reads_photos_as_a_training_does(folder):
    root = segmentation_folder(folder / "streets")
    photo = next(root.glob("train/*.png")).with_suffix(".jpg")
    photo.with_suffix(".png").unlink()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((48, 64, 3), np.uint8)).save(photo, exif=exif)
    kind = ("--data-kind", "segmentation_folder")
    fault, = split_of(faulty(root, *kind, "--full"), "train")["faults"]
    assert "48x64" in fault and "64x48" in fault and "--no-exif-orientation" in fault
    assert check(root, *kind, "--full", "--no-exif-orientation")
    fails(USAGE, "data", "check", root, *kind, "--no-exif-orientation", says=["no-exif-orientation", "--full"])
    cifar = published("cifar10", folder / "cifar10")
    fails(USAGE, "data", "check", cifar, "--full", "--no-exif-orientation", says=["no-exif-orientation", "image files", "cifar10"])

    of_shards = shards(folder / "shards")
    members = [("0.jpg", photo.read_bytes()), ("0.seg.png", png(np.zeros((48, 64))))]
    write_shard(of_shards / "train-000001.tar", members)
    faults = [fault for split in faulty(of_shards, "--full")["splits"] for fault in split["faults"]]
    assert any("48x64" in fault and "--no-exif-orientation" in fault for fault in faults)
    faults = [fault for split in faulty(of_shards, "--full", "--no-exif-orientation")["splits"] for fault in split["faults"]]
    assert not any("48x64" in fault for fault in faults)


def test_the_check_takes_256_classes_of_which_one_does_not_count(folder):
    root = segmentation_folder(folder / "streets")
    for label in root.glob("*annot/*.png"):
        label.write_bytes(png(np.repeat([0, 200, 255], 16)[:, None] + np.zeros(64)))
    of_shards = folder / "shards"
    write_shard(of_shards / "train/0.tar", [("0.png", png(np.zeros((48, 64, 3)))), ("0.seg.png", label.read_bytes())])
    for data, kind in ((root, ("--data-kind", "segmentation_folder")), (of_shards, ())):
        for classes in ((), ("--classes", "256")):
            for split in check(data, *kind, *classes, "--full", "--ignore-id", "0")["splits"]:
                per_label = 16 * 64 * split["images"]
                assert split["void_pixels"] == per_label and split["ids_without_class"] == {}
                assert {name: count for name, count in split["class_counts"].items() if count} == {
                    "class 200": per_label, "class 255": per_label}


def test_class_names_that_are_not_different_are_refused_at_the_start(folder):
    streets = segmentation_folder(folder / "streets")
    (streets / "classes.txt").write_text("cat\ncat\ncow\n")
    cifar = published("cifar10", folder / "cifar10")
    names = next(cifar.glob("**/data_batch_1.bin")).with_name("batches.meta.txt")
    names.write_text("cat\n" * 10)
    for root, kind, file in ((streets, "segmentation_folder", streets / "classes.txt"), (cifar, "cifar10", names)):
        network = NETWORK[kind != "cifar10"].split()
        fails(DATA_ERROR, "train", "--data", kind, *network, *SHORT, "--data-root", root, "--output", folder / "run",
              says=[file, "names the class 'cat' twice"])
        assert "names the class 'cat' twice" in run("data", "check", root, "--data-kind", kind).stdout + run(
            "data", "check", root, "--data-kind", kind).stderr
    assert not (folder / "run").exists()


def test_a_folder_of_labels_has_the_classes_of_its_file(folder):
    streets = segmentation_folder(folder / "streets")
    network = ["--data", "segmentation_folder", *NETWORK[True].split(), *SHORT, "--data-root", streets]
    fails(USAGE, "train", *network, "--output", folder / "run", says=["give [model] classes (--classes), or a name per line",
                                                                      streets / "classes.txt"])
    (streets / "classes.txt").write_text("sky\n\nroad\na tree\n")
    fails(DATA_ERROR, "train", *network, "--output", folder / "run", says=[streets / "classes.txt", "no name in line 2"])
    (streets / "classes.txt").write_text("\ufeffsky\nroad\na tree\n\n", encoding="utf-8")
    succeeds("train", *network, "--output", folder / "run")
    assert json.loads(succeeds("info", folder / "run", "--json").stdout)["class_names"] == ["sky", "road", "a tree"]


def test_the_action_of_data_is_checked(folder):
    fails(USAGE, "data", "chekc", folder, says=["unknown action of data 'chekc'", "did you mean 'check'"])
    fails(USAGE, "data", "check", says=["PATH"])
    fails(USAGE, "data", "check", folder, "--crop", "3", says=["data does not use the option '--crop'"])


def test_the_real_camvid_has_no_fault():
    if not (DATA / "camvid").is_dir():
        pytest.skip(f"no CamVid at {DATA}")
    result = check(DATA / "camvid")
    assert result["kind"] == "camvid"
    assert [(split["images"], split["published_images"]) for split in result["splits"]] == [(367, 367), (101, 101), (233, 233)]

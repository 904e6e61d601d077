"""The recipes a few steps each: on the real data where it is there, those of mixed precision on noise."""
import json
import math
import tarfile
import tomllib

import pytest

from cli_support import DATA, ROOT, image_folder, mixed_sizes, segmentation_folder, succeeds

FEW_STEPS = "--max-steps 3 --log-every 1 --quiet".split()  # and an evaluation


def train_a_little(recipe, root, output, *arguments):
    succeeds("train", "--config", ROOT / "examples" / recipe, "--data-root", root, "--output", output, *FEW_STEPS,
             *arguments)
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["type"] == "step"]
    assert len(losses) == 3
    assert lines[-1]["type"] == "evaluation" and lines[-1]["images"] > 0
    return losses


def first_images(source, folder, images):
    """A data set of the first images of each split of `source`, with their labels."""
    for split in ("train", "val"):
        for image in sorted((source / split).iterdir())[:images]:
            for part, name in ((split, image.name), (f"{split}annot", f"{image.stem}.png")):
                (folder / part).mkdir(parents=True, exist_ok=True)
                (folder / part / name).symlink_to(source / part / name)
    return folder


def test_one_s_own_images_of_mixed_sizes_train_and_evaluate(folder):
    """The camvid recipe on noise: every other image is larger, in both splits."""
    root = mixed_sizes(segmentation_folder, folder / "data", classes=11)
    train_a_little("camvid.toml", root, folder / "run", "--model", "deeplabv3_resnet18_narrow", "--crop", "32", "--batch", "4")


def test_the_imagenet_recipe_evaluates_images_of_mixed_sizes(folder):
    root = mixed_sizes(image_folder, folder / "data")
    train_a_little("imagenet_densenet264.toml", root, folder / "run", "--model", "densenet_bc10_k2", "--batch", "4", "--crop",
                   "32", "--workers", "1")


def test_camvid_trains(folder):
    if not (DATA / "camvid").is_dir():
        pytest.skip(f"no CamVid at {DATA}/camvid")
    root = first_images(DATA / "camvid", folder / "camvid", images=8)
    losses = train_a_little("camvid.toml", root, folder / "run", "--crop", "96", "--batch", "4")
    # The hardest quarter of the pixels of an untrained network: worse than guessing among 11 classes, ln 11 = 2.4.
    assert 2.2 < losses[0] < 6
    image = sorted((root / "val").iterdir())[0]
    succeeds("predict", folder / "run/checkpoint.safetensors", image, "--output", folder / "out")
    assert (folder / "out" / f"{image.stem}.png").stat().st_size > 0


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory):
    """16 training and 4 test images per class: the archive is read as a stream, so the first ones of each."""
    archive = DATA / "cifar10.tar.xz"
    if not archive.is_file():
        pytest.skip(f"no CIFAR-10 at {archive}")
    folder = tmp_path_factory.mktemp("data")
    wanted, per_class = {"train": 16, "test": 4}, {}
    with tarfile.open(archive, "r|xz") as tar:
        for member in tar:
            parts = member.name.split("/")
            if not member.isfile() or len(parts) != 3:
                continue
            key = tuple(parts[:2])
            if per_class.get(key, 0) >= wanted[parts[0]]:
                continue
            per_class[key] = per_class.get(key, 0) + 1
            target = folder / "cifar10" / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(tar.extractfile(member).read())
            if len(per_class) == 20 and all(n == wanted[k[0]] for k, n in per_class.items()):
                break
    assert len(per_class) == 20
    return folder / "cifar10"


@pytest.fixture(scope="module")
def ten_classes(tmp_path_factory):
    """Noise under CIFAR-10's layout: the first loss needs no real images."""
    root = image_folder(tmp_path_factory.mktemp("noise") / "data", classes=[f"class{i}" for i in range(10)], images=2)
    (root / "val").rename(root / "test")
    return root


@pytest.mark.parametrize("recipe", sorted(path.name for path in (ROOT / "examples/mixed_precision").glob("*.toml")))
def test_the_twins_of_mixed_precision_begin_with_the_same_loss(recipe, ten_classes, folder):
    losses = {}
    for twin, flags in {"mixed": [], "f32": ["--precision", "f32"]}.items():
        losses[twin] = train_a_little(f"mixed_precision/{recipe}", ten_classes, folder / twin, "--batch", "6", "--workers", "0",
                                      "--threads", "1", *flags)
        config = tomllib.loads((folder / twin / "config.toml").read_text())["train"]
        assert config["precision"] == ("f16-pseudo" if twin == "mixed" else "f32")
    assert 1.5 < losses["f32"][0] < 6  # ln 10 = 2.3
    assert losses["mixed"][0] != losses["f32"][0], "not computed in 16 bits"
    # f16 rounds by 5e-4; the networks' first losses moved by up to 0.0011 of themselves.
    assert losses["mixed"][0] == pytest.approx(losses["f32"][0], rel=0.01)
    assert all(math.isfinite(loss) for twin in losses.values() for loss in twin)


def test_cifar10_trains(cifar10, folder):
    losses = train_a_little("cifar10.toml", cifar10, folder / "run", "--batch", "32")
    assert 1.5 < losses[0] < 4  # ln 10 = 2.3
    result = json.loads(succeeds("eval", folder / "run/checkpoint.safetensors", "--json").stdout)
    assert result["images"] == 40 and 0 <= result["top1"] <= result["top5"] <= 1


def test_cifar10_trains_a_densenet(cifar10, folder):
    losses = train_a_little("cifar10_densenet.toml", cifar10, folder / "run", "--batch", "8")
    assert 1.5 < losses[0] < 4


def test_the_imagenet_recipe_trains_whatever_lies_in_class_folders(cifar10, folder):
    losses = train_a_little("imagenet_densenet264.toml", cifar10, folder / "run", "--batch", "4", "--crop", "32", "--val-split",
                            "test", "--workers", "1")
    assert 1.5 < losses[0] < 6

"""The commands and programs of the documents work, and the files, excerpts and links that they name exist.

The commands of the recipes run in their order, on images made here. A training takes two steps, and a small network unless a later
command names another one.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release")).resolve()
sys.path.insert(0, str(ROOT / "tests/cli"))
from cli_support import image_folder, mixed_sizes, segmentation_folder, shards, succeeds  # noqa: E402
from layouts_support import CLASSES, published  # noqa: E402

RECIPES = ROOT / "docs/recipes.md"
DATA_SETS = ROOT / "docs/data.md"
REPRODUCE = ROOT / "docs/reproduce.md"
OPERATOR = ROOT / "docs/add_an_operator.md"
DESIGN = ROOT / "docs/design.md"
SMALL_MODEL = "--model deeplabv3_resnet18_narrow"
FEW_STEPS = {
    "--weights": "--max-steps 2 --batch 2 --crop 32 --evaluate-every 0 --threads 1",
    "camvid": f"{SMALL_MODEL} --max-steps 2 --batch 2 --crop 32 --threads 1",
    "cifar10": "--max-steps 2 --batch 4 --threads 1",
    "cityscapes": f"{SMALL_MODEL} --max-steps 1 --batch 2 --crop 32 --threads 1",
    "demo": f"{SMALL_MODEL} --max-steps 2 --batch 4 --images 4 --val-images 1 --height 48 --width 64 --evaluate-every 0",
    "mine.toml": f"{SMALL_MODEL} --max-steps 2 --batch 2 --crop 32 --threads 1",
    "runs/mine": "--max-steps 3",
    "PATH/TO/shards": "--model resnet18_narrow --max-steps 2 --batch 2 --crop 32 --threads 1",
}


def blocks(document, kind):
    """Returns (the text before, the block) of every ```kind block."""
    parts = re.split(rf"^```{kind}\n(.*?)^```", document.read_text(), flags=re.S | re.M)
    return list(zip(parts[::2], parts[1::2]))


def commands(document):
    return [line for _, block in blocks(document, "sh") for line in block.splitlines()]


def short(command):
    """Returns the arguments of a command, with flags that shorten a training. The last of a repeated flag counts."""
    arguments = shlex.split(command)
    assert arguments.pop(0) == "palimpsest", command
    if arguments[0] in ("train", "compare", "demo", "reproduce"):
        for name, flags in FEW_STEPS.items():
            if name in command:
                return arguments + shlex.split(flags)
    return arguments


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the commands of the recipes have run, in their order, because some need the results of others. It had
    examples/, data sets, torchvision's weights and mine.toml."""
    torch, torchvision = pytest.importorskip("torch"), pytest.importorskip("torchvision")
    folder = tmp_path_factory.mktemp("recipes")
    shutil.copytree(ROOT / "examples", folder / "examples")
    mixed_sizes(segmentation_folder, folder / "PATH/TO/camvid", classes=11)
    mixed_sizes(segmentation_folder, folder / "PATH/TO/mine", classes=3)
    shards(folder / "PATH/TO/shards", count=12)
    cifar10 = image_folder(folder / "PATH/TO/cifar10", classes=[f"class{i}" for i in range(10)], images=1)
    (cifar10 / "val").rename(cifar10 / "test")
    torch.save(torchvision.models.resnet18().state_dict(), folder / "resnet18.pth")
    (before, block), = blocks(RECIPES, "toml")
    (folder / re.search(r"`(\w+\.toml)`:\s*$", before)[1]).write_text(block)
    for command in commands(RECIPES):
        succeeds(*short(command), cwd=folder)
    yield folder
    shutil.rmtree(folder)


def test_the_commands_of_the_recipes_leave_what_the_page_says(folder):
    assert (folder / "demo/index.html").exists()
    assert len(list((folder / "runs/camvid/pictures").glob("*.png"))) == 4
    assert "epochs = 60" in (folder / "runs/mine/config.toml").read_text()
    assert (folder / "runs/compared/store_y").is_dir()
    assert (folder / "folded.safetensors").stat().st_size < (folder / "plain.safetensors").stat().st_size


def test_the_python_of_the_recipes_reads_what_its_commands_wrote(folder):
    (_, block), = blocks(RECIPES, "python")
    result = subprocess.run([sys.executable, "-c", block], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert 0 <= int(result.stdout) < 10


def test_the_commands_about_data_sets_run(tmp_path):
    published("cityscapes", tmp_path / "PATH/TO/cityscapes")
    for command in commands(DATA_SETS):
        succeeds(*short(command), cwd=tmp_path)
    assert (tmp_path / "runs/cityscapes/config.toml").exists()


def test_the_commands_about_the_papers_experiments_run(tmp_path):
    published("cityscapes", tmp_path / "PATH/TO/cityscapes")
    published("camvid", tmp_path / "PATH/TO/camvid")
    for command in commands(REPRODUCE):
        succeeds(*short(command), cwd=tmp_path)
    assert (tmp_path / "runs/paper/table3_wide_resnet38_cityscapes_fixed_crop/log.jsonl").exists()
    assert (tmp_path / "runs/paper/table3_wide_resnet38_cityscapes_fixed_crop_small/index.html").exists()


def test_the_page_about_data_sets_says_what_the_program_says(tmp_path):
    """The published numbers of images, the number of classes, and all layouts."""
    text = DATA_SETS.read_text()
    kinds = re.search(r"it is recognized \(([a-z0-9_, ]+)\)", " ".join(succeeds("data", "--help").stdout.split()))[1].split(", ")
    assert set(CLASSES) < set(kinds)
    assert [kind for kind in kinds if f"\n| `{kind}` |" not in text] == []
    for kind, classes in CLASSES.items():
        root = published(kind, tmp_path / kind)
        result = json.loads(succeeds("data", "check", root, "--data-kind", kind, "--json").stdout)
        rows = "".join(re.findall(rf"^\| `{kind}` .*", text, flags=re.M))
        for split in result["splits"]:
            assert f"{split['name']} {split['published_images']}" in rows, (kind, split["name"])
        assert kind == "imagenet" or f"| {classes} |" in rows, kind


def test_the_python_about_operators_runs(tmp_path):
    (_, block), = blocks(OPERATOR, "python")
    (tmp_path / "build").mkdir()
    (tmp_path / "build/release").symlink_to(BUILD)
    result = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_file_that_the_page_about_operators_names_exists():
    named = set(re.findall(r"`((?:palimpsest|tests|benchmarks|docs)/[\w/.]+)`", OPERATOR.read_text()))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_excerpt_of_the_page_about_operators_stands_in_the_file_it_names():
    quoted = 0
    for kind in ("cpp", "cmake"):
        path = None
        text = ""
        for before, block in blocks(OPERATOR, kind):
            text += before
            if "int main" in block:
                continue
            path = re.findall(r"`([\w/]+\.(?:h|cpp|txt))`", text)[-1]
            assert block in (ROOT / path).read_text(), f"{path} has no longer:\n{block}"
            quoted += 1
    assert quoted >= 7


def test_the_page_about_the_design_names_every_file_of_the_way_once():
    text = DESIGN.read_text()
    steps = re.findall(r"^(\d+)\. `([\w/]+\.\w+)`", text, flags=re.M)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) > 50
    assert [path for _, path in steps if not (ROOT / "palimpsest" / path).is_file()] == []
    named = re.findall(r"[\w/]+\.(?:cpp|h|cu|cuh)\b", text)
    assert named == [path for _, path in steps]


def anchors(document):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", document.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_the_documents_leads_to_a_file_and_a_heading():
    broken = []
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]:
        prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.S | re.M)  # C++ lambdas look like links
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", prose):
            path = document.parent / target if target else document
            if not path.exists() or anchor and path.suffix == ".md" and anchor not in anchors(path):
                broken.append(f"{document.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []

"""The rows of the program on a GPU: from a program that only pretends, and from the real one on the CPU."""
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]
from gpu import row_log  # noqa: E402
from gpu_checks import program_rows  # noqa: E402
from gpu_checks.program_rows import Network, Work  # noqa: E402

# In place: half of the bytes, and 0.9 of the time, at twice the batch.
PRETENDED = f"""#!{sys.executable}
import json, os, pathlib, sys, time
command, arguments = sys.argv[1], sys.argv[2:]
if arguments == ["--help"]:
    print("  --device <cpu, cuda or cuda:N>" if command in os.environ.get("DEVICES", "train").split() else "  --batch")
    sys.exit(0)
def value(name): return arguments[arguments.index(name) + 1]
print(*sys.argv[1:], file=open(pathlib.Path(value("--output")).parent / "asked", "a"))
if error := os.environ.get("ERROR"):
    print("palimpsest: error: " + error, file=sys.stderr)
    sys.exit(7)
time.sleep(float(os.environ.get("SLEEP", 0)))
output = pathlib.Path(value("--output"))
output.mkdir(exist_ok=True)
if command == "train":
    share = 1 if value("--strategy") == "standard" else 0.5
    seconds = 0.1 if share == 1 else 0.09
    lines = [dict(type="step", seconds=5 if n == 0 else seconds, data_seconds=0.01 * share, kept_bytes=4e6 * share,
                  peak_bytes=8e6) for n in range(int(value("--max-steps")))]
    (output / "log.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
else:
    runs = [dict(largest_batch=64), dict(largest_batch=128)]
    (output / "results.json").write_text(json.dumps(dict(runs=runs)))
"""
NETWORK = Network("resnet50", 64, 16)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "palimpsest"
    path.write_text(PRETENDED)
    path.chmod(0o755)

    def make(budget=None):
        return program_rows.Program(path, "cuda", tmp_path, row_log.Budget(budget))

    make.asked = tmp_path / "asked"
    return make


def test_a_training_has_rows_of_time_kept_peak_and_waiting(program):
    rows = program_rows.rows_of(program(), Work("name", 1, NETWORK, "bf16"))
    assert [row["row"] for row in rows] == ["name", "name: kept", "name: peak", "name: waiting for images"]
    assert [row.get("ratio") for row in rows] == pytest.approx([95 / 110, 0.5, 1.0, None])
    assert rows[0]["measured"]["median"] == pytest.approx(95) and rows[0]["outcome"] == "measured", "the first steps count"
    assert rows[1]["unit"] == "MB" and rows[1]["opponent"]["median"] == 4
    asked = program.asked.read_text().splitlines()
    for line, strategy in zip(asked, ("standard", "inplace_2")):
        for flags in ("--model resnet50", "--precision bf16", "--device cuda", f"--strategy {strategy}", "--data image_folder"):
            assert flags in line


def test_compare_gives_the_largest_batch_where_it_takes_a_device(program, monkeypatch):
    unit = Work("name", 1, Network("deeplabv3_resnet50", 16, 32, True), "bf16", "compare")
    row, = program_rows.rows_of(program(), unit)
    assert row == {"row": "name", "outcome": "not run", "reason": "'palimpsest compare' takes no --device"}
    assert not program.asked.exists()
    monkeypatch.setenv("DEVICES", "train compare")
    row, = program_rows.rows_of(program(), unit)
    assert (row["measured"]["median"], row["opponent"]["median"], row["ratio"], row["unit"]) == (128, 64, 2, "images")
    asked = program.asked.read_text()
    assert "--data segmentation_folder" in asked and "--device cuda" in asked and "--memory 24576" in asked


def test_an_error_of_the_program_is_a_failure_with_its_line(program, monkeypatch):
    monkeypatch.setenv("ERROR", "memory is exhausted")
    row, = program_rows.rows_of(program(), Work("name", 1, NETWORK, "f32"))
    assert row == {"row": "name", "outcome": "failed", "reason": "train ends with 7: memory is exhausted"}


def test_a_program_that_outlasts_the_budget_is_stopped_and_named(program, monkeypatch):
    monkeypatch.setenv("SLEEP", "30")
    began = row_log.time.monotonic()
    owner = program()
    owner.budget = row_log.Budget(1, began)
    row, = program_rows.rows_of(owner, Work("name", 1, NETWORK, "f32"))
    assert row["outcome"] == "not run" and row["reason"].startswith("it did not fit in the budget")
    assert row_log.time.monotonic() - began < 5


def test_all_networks_precisions_and_strategies_are_there_the_most_important_first():
    names = [work.name for work in program_rows.works_of(program_rows.PRECISIONS)]
    assert names[:3] == ["resnet50, batch 128 of 224x224, bf16", "densenet121, batch 128 of 224x224, bf16",
                         "deeplabv3_resnet50, batch 16 of 512x512, bf16"]
    assert sum("largest batch" in name for name in names) == 2 and len(names) == 3 * 3 + 2 == len(set(names))


def test_the_real_program_takes_a_device_where_rows_need_one(tmp_path):
    owner = program_rows.Program(BUILD / "palimpsest", "cpu", tmp_path, row_log.Budget())
    assert all(owner.takes_device(command) for command in program_rows.COMMANDS)


@pytest.mark.parametrize("network", [Network("resnet18_narrow", 2, 32), Network("deeplabv3_resnet18_narrow", 2, 64, True)])
def test_the_real_program_trains_on_files(tmp_path, network, monkeypatch):
    monkeypatch.setitem(program_rows.COMMANDS, "train", lambda *a: train(*a, warm=1))
    owner = program_rows.Program(BUILD / "palimpsest", "cpu", tmp_path, row_log.Budget(), steps=3)
    rows = program_rows.rows_of(owner, Work("name", 1, network, "f32"))
    assert [row["outcome"] for row in rows] == ["measured"] * 4, rows
    assert rows[1]["ratio"] < 0.6 and rows[0]["measured"]["median"] > 0


train = program_rows.train


def test_pictures_are_png(tmp_path):
    program_rows.write_pictures(tmp_path, 5, 4)
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png"))
    assert files == ["train/class0/0.png", "train/class0/2.png", "train/class1/1.png", "train/class1/3.png",
                     "val/class0/0.png", "val/class1/1.png"]
    assert (tmp_path / files[0]).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_files_after_the_distinct_ones_are_links_to_them(tmp_path):
    paths = [tmp_path / str(i) for i in range(program_rows.DISTINCT + 1)]
    program_rows.write_files(paths, lambda number: b"%d" % number)
    assert [path.read_text() for path in paths] == [*map(str, range(program_rows.DISTINCT)), "0"]
    assert paths[-1].samefile(paths[0])

"""A training on images of every kind with --bad-images skip: the bad ones are named and counted, and memory stays flat.

    python tests/cli/test_mixed_images.py 20000

does the same with that number of images, and prints what it found. The test has 600.
"""
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest

from cli_support import DATA_ERROR, PROGRAM, environment, fails, run, succeeds

Image = pytest.importorskip("PIL.Image")

BATCH = 20
MEBIBYTE = 1 << 20
NETWORK = "--model resnet18_narrow --data image_folder --train-split images --val-split images --threads 1".split()
FLAGS = ("--crop 32 --evaluate-every 0 --log-every 1 --workers 2 --bad-images skip").split()


def saved(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def kinds():
    """(name, bytes, whether it can be read) of every kind."""
    random = np.random.default_rng(1)
    colour = Image.fromarray(random.integers(0, 256, (48, 64, 3), np.uint8))
    inks = Image.fromarray(random.integers(0, 256, (40, 40, 4), np.uint8), "CMYK")
    deep = Image.fromarray(random.integers(0, 65536, (40, 56), np.uint16))
    exif = Image.Exif()
    exif[0x0112] = 6
    jpeg, png = saved(colour, "JPEG"), saved(colour, "PNG")
    return [("plain.jpg", jpeg, True), ("grey.jpg", saved(colour.convert("L"), "JPEG"), True),
            ("cmyk.jpg", saved(inks, "JPEG"), True), ("deep.png", saved(deep, "PNG"), True),
            ("rotated.jpg", saved(colour, "JPEG", exif=exif), True), ("pixel.png", saved(colour.crop((0, 0, 1, 1)), "PNG"), True),
            ("progressive.jpg", saved(colour, "JPEG", progressive=True), True),
            ("palette.png", saved(colour.quantize(16), "PNG"), True),
            ("alpha.png", saved(colour.convert("RGBA"), "PNG"), True),
            ("truncated.jpg", jpeg[:len(jpeg) // 2], False), ("truncated.png", png[:len(png) // 2], False),
            ("empty.jpg", b"", False), ("text.jpg", b"<html>not found</html>", False)]


def write_images(root, count):
    """Writes ROOT/images/{even,odd}/N-KIND and returns the names of the bad ones."""
    bad, of_kind = set(), kinds()
    for name in ("even", "odd"):
        (root / "images" / name).mkdir(parents=True)
    for i in range(count):
        kind, contents, readable = of_kind[i % len(of_kind)]
        path = root / "images" / ("odd" if i % 2 else "even") / f"{i:06d}-{kind}"
        path.write_bytes(contents)
        if not readable:
            bad.add(path.name)
    return bad


def resident(process):
    """Bytes of memory of a process, or nothing if it has ended."""
    try:
        for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None


def train(folder, count, epochs):
    """Trains on `count` images. Returns (records of log.jsonl, stderr, [(step, bytes)])."""
    command = [PROGRAM, "train", *NETWORK, *FLAGS, "--batch", BATCH, "--epochs", epochs, "--data-root", folder, "--output",
               folder / "run"]
    process = subprocess.Popen(list(map(str, command)), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True)
    samples, said = [], []

    def listen():
        for line in process.stderr:
            said.append(line)
            if line.startswith("step "):
                samples.append((int(line.split()[1].split("/")[0]), resident(process)))

    listener = threading.Thread(target=listen)
    listener.start()
    assert process.wait(timeout=3000) == 0, "".join(said)[-2000:]
    listener.join()
    records = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
    return records, "".join(said), [(step, size) for step, size in samples if size]


def growth(samples, steps):
    """Bytes by which the largest resident set of the last fifth exceeds that of the second one."""
    def largest(begin, end):
        return max(size for step, size in samples if begin * steps <= step <= end * steps)
    return largest(0.8, 1.0) - largest(0.2, 0.4)


def check(folder, count, epochs):
    bad = write_images(folder, count)
    records, said, samples = train(folder, count, epochs)
    steps = count * epochs // BATCH
    assert [r["step"] for r in records if r["type"] == "step"] == list(range(1, steps + 1))
    named = [r["reason"] for r in records if r["type"] == "bad_image"]
    assert len(named) == len(bad)
    assert {reason.split("'")[1].split("/")[-1] for reason in named} == bad
    assert f"note: {len(bad)} images could not be read: " in said
    assert said.count("note: another image takes the place") == 3
    grown = growth(samples, steps)
    assert grown <= 6 * MEBIBYTE, f"memory grew by {grown / MEBIBYTE:.1f} MiB"
    return len(bad), grown


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    check(folder, 600, epochs=3)
    return folder


def test_bad_images_are_named_and_counted_and_memory_stays_flat(mixed):
    assert (mixed / "run/checkpoint.safetensors").exists()


def test_an_evaluation_counts_what_it_leaves_out(mixed):
    bad = sum(not readable for _, _, readable in kinds())
    flags = ("--data-root", mixed, "--eval-crop", "32", "--eval-batch", "16")
    result = json.loads(succeeds("eval", mixed / "run", *flags, "--json").stdout)
    assert 600 * bad / 13 - 4 <= result["bad_images"] <= 600 * bad / 13 + 4
    assert result["images"] + result["bad_images"] == 600
    told = succeeds("eval", mixed / "run", *flags)
    assert f"bad images      {result['bad_images']}, left out" in told.stdout
    assert told.stderr.count("left out: cannot read image") == 3


def test_without_skip_the_first_bad_image_ends_the_run(mixed, tmp_path):
    fails(DATA_ERROR, "train", *NETWORK, "--batch", BATCH, "--crop", "32", "--evaluate-every", "0", "--data-root", mixed,
          "--output", tmp_path / "run", says=["cannot read image", "images/"])


def test_the_bytes_are_the_same_for_any_number_of_workers_and_after_a_resumption(mixed, tmp_path):
    flags = [*NETWORK, "--crop", "32", "--evaluate-every", "0", "--bad-images", "skip", "--batch", "4", "--data-root", mixed,
             "--quiet"]

    def checkpoint(name, *more):
        succeeds("train", *flags, *more, "--max-steps", "6", "--output", tmp_path / name)
        return (tmp_path / name / "checkpoint.safetensors").read_bytes()

    wanted = checkpoint("none", "--workers", "0")
    assert checkpoint("three", "--workers", "3", "--prefetch", "4") == wanted
    succeeds("train", *flags, "--max-steps", "3", "--output", tmp_path / "resumed")
    succeeds("train", "--resume", "--output", tmp_path / "resumed", "--max-steps", "6", "--quiet")
    tensors = [(tmp_path / name / "checkpoint.safetensors").read_bytes() for name in ("resumed", "none")]
    assert tensors[0] == tensors[1]


def test_data_of_which_nothing_can_be_read_is_an_error(tmp_path):
    for i in range(8):
        (tmp_path / f"images/{'ab'[i % 2]}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"images/{'ab'[i % 2]}/{i}.jpg").write_bytes(b"text")
    result = run("train", *NETWORK, *FLAGS, "--batch", "4", "--data-root", tmp_path, "--output", tmp_path / "run")
    assert result.returncode == DATA_ERROR and "101 examples in a row" in result.stderr


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal() or int(sys.argv[1]) % BATCH:
        sys.exit(f"usage: test_mixed_images.py IMAGES, a multiple of {BATCH}")
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        found, more = check(pathlib.Path(name), int(sys.argv[1]), epochs=1)
        print(f"{sys.argv[1]} images, {found} bad ones named and counted, memory +{more / MEBIBYTE:.1f} MiB from the second fifth "
              f"to the last, {time.monotonic() - begin:.0f} s")

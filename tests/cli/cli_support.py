"""The parts that the tests of the program share: running it, and images small enough to train on in a second."""
import functools
import io
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tarfile
import zlib

import numpy as np
import safetensors.numpy

from forked import Forker

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
PROGRAM = BUILD / "palimpsest"
FORKING_PROGRAM = BUILD / "tests/cli/forking_program"  # PROGRAM, loaded once
DATA = ROOT.parent / "shared/data"  # real data sets, where someone has put them

# base/error.h and docs/cli.md
USAGE, DATA_ERROR, CHECKPOINT, DIVERGED, OUTPUT, MEMORY = 2, 3, 4, 5, 6, 7

# Two steps per epoch of a network small enough for a test; one thread, because bytes are compared.
TINY = ("--model deeplabv3_resnet18_narrow --data generated --images 8 --val-images 2 --height 48 --width 64 --crop 32 "
        "--batch 4 --threads 1 --evaluate-every 0 --log-every 1").split()
TINY_CLASSIFIER = "--model resnet18_narrow --data image_folder --batch 4 --threads 1 --evaluate-every 0 --log-every 1".split()


def environment():
    # A blocked thread pool of two spins on a busy machine; the tests' tensors are too small to share.
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@functools.cache
def forker():
    return Forker(FORKING_PROGRAM, environment())


def run(*arguments, cwd=None, variables=None, **options):
    """Runs the program to its end, with `variables` in its environment; stdout and stderr are texts."""
    command, variables, timeout = [PROGRAM, *map(str, arguments)], {**environment(), **(variables or {})}, 300
    if not options and forker().fits(variables):
        return forker().run(command, cwd, variables, timeout)
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout, **options)


def start(*arguments, cwd=None):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], cwd=cwd, env=environment(), stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def succeeds(*arguments, **options):
    result = run(*arguments, **options)
    assert result.returncode == 0, result.stderr
    return result


def error_line(result):
    """The one line of a failure. Progress may stand before it; nothing stands after it."""
    lines = [line for line in re.split(r"[\r\n]+", result.stderr) if "palimpsest: error: " in line]
    assert len(lines) == 1, f"one line of error is wanted, got:\n{result.stderr}"
    assert result.stderr.rstrip("\n").endswith(lines[0]), f"something follows the error:\n{result.stderr}"
    for trace in ("Exception raised from", "frame #", "terminate called", "libtorch_cpu.so"):
        assert trace not in result.stderr, f"a stack trace is no message:\n{result.stderr}"
    return lines[0]


def fails(code, *arguments, says=(), **options):
    """Runs the program, which must end with `code` and one line that holds every text of `says`."""
    result = run(*arguments, **options)
    line = error_line(result)
    assert result.returncode == code, f"exit code {result.returncode}, wanted {code}: {line}"
    for text in says:
        assert str(text) in line, f"'{text}' is missing in: {line}"
    return line


def png(array):
    """u8 (H, W, 3) or (H, W) as PNG bytes."""
    height, width = array.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(array, dtype=np.uint8))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if array.ndim == 3 else 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def png_size(path):
    """(width, height, color type) of a PNG file."""
    data = pathlib.Path(path).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, _, color = struct.unpack(">IIBB", data[16:26])
    return width, height, color


def change_checkpoint(file, change):
    """Calls change(tensors, metadata), which changes what the checkpoint holds, and writes it again."""
    with safetensors.safe_open(file, "np") as opened:
        metadata = opened.metadata()
    tensors = safetensors.numpy.load_file(file)
    change(tensors, metadata)
    safetensors.numpy.save_file(tensors, file, metadata)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def segmentation_folder(root, images=4, height=48, width=64, classes=3):
    """ROOT/{train,val}/N.png and ROOT/{train,val}annot/N.png."""
    random = np.random.default_rng(1)
    for split in ("train", "val"):
        for i in range(images):
            write(root / split / f"{i}.png", png(random.integers(0, 256, (height, width, 3))))
            write(root / f"{split}annot" / f"{i}.png", png(random.integers(0, classes, (height, width))))
    return root


def image_folder(root, classes=("cat", "dog"), images=4, size=32):
    """ROOT/{train,val}/CLASS/N.png."""
    random = np.random.default_rng(1)
    for split in ("train", "val"):
        for name in classes:
            for i in range(images):
                write(root / split / name / f"{i}.png", png(random.integers(0, 256, (size, size, 3))))
    return root


def write_shard(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, contents in members:
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))


def shards(root, count=3, examples=8):
    """ROOT/train-00000K.tar and ROOT/val/0.tar, with labels of images and of pixels."""
    random = np.random.default_rng(1)
    for path in [root / f"train-{i:06}.tar" for i in range(count)] + [root / "val/0.tar"]:
        members = []
        for i in range(examples):
            members += [(f"{i}.cls", f"{i % 3}\n".encode()), (f"{i}.png", png(random.integers(0, 256, (32, 40, 3)))),
                        (f"{i}.seg.png", png(random.integers(0, 3, (32, 40)))), (f"{i}.json", b"{}")]
        write_shard(path, members)
    return root


def mixed_sizes(folder_of, root, **options):
    """segmentation_folder or image_folder, in which every other image is larger."""
    folder_of(root, **options)
    larger = {"height": 57, "width": 73} if folder_of is segmentation_folder else {"size": 41}
    other = folder_of(root.parent / f"{root.name}-larger", **{**options, **larger})
    for path in other.rglob("*[13579].png"):
        path.replace(root / path.relative_to(other))
    shutil.rmtree(other)
    return root

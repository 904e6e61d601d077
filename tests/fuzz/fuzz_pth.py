"""fuzz_pth.py [INPUTS [SEED]]: gives the reader of torch.save files (palimpsest/io/state_dict_to_safetensors.py) mutated files.

The damage lies behind correct checksums of the archive. Each must be converted, or be refused with the reader's own exit
status, in less than a second of processor time, and the output must have no more bytes than the reader's bound. Prints one
JSON object; ends with 1, and leaves fuzz-pth.bin, at the first input that does otherwise. This Python and its torch run
without a sanitizer.
"""
import collections
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import pickle
import random
import sys
import tempfile
import time
import zipfile

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("reader", ROOT / "palimpsest/io/state_dict_to_safetensors.py")
reader = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reader)

# Opcodes and numbers of pickle that change shapes, strides, offsets and types.
WORDS = [b"K\x00", b"K\x01", b"K\xff", b"M\xff\xff", b"J\xff\xff\xff\x7f", b"J\xff\xff\xff\xff", b"\x8a\x08" + b"\xff" * 7 + b"\x7f",
         b"\x8a\x05\x00\x00\x00\x00\x01", b"N", b"\x88", b"\x89", b")", b"(", b"t", b"\x85", b"\x86", b"R", b"Q", b"}", b"s", b"u",
         b"ctorch\nHalfStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n",
         b"ctorch._utils\n_rebuild_sparse_tensor\n", b"ctorch._utils\n_rebuild_qtensor\n", b"cos\nsystem\n", b"ctorch\nfloat64\n"]


def saved(contents, **options):
    file = io.BytesIO()
    torch.save(contents, file, **options)
    return file.getvalue()


def corpus():
    plain = collections.OrderedDict([("fc.weight", torch.zeros(4, 8)), ("fc.bias", torch.zeros(4, dtype=torch.float16)),
                                     ("bn.num_batches_tracked", torch.tensor(3))])
    strided = {"state_dict": {"a": torch.zeros(6, 4).t()[1:, ::2], "b": torch.zeros(3, dtype=torch.bool)}, "epoch": 3}
    parameter = {"model": {"w": torch.nn.Parameter(torch.zeros(2, 3, 3))}}
    return [saved(plain), saved(strided), saved(parameter), saved(plain, _use_new_zipfile_serialization=False)]


def mutated(data, rng):
    """Edits one record of an archive, or the bytes of an old file."""
    if not data.startswith(b"PK"):
        return edited(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    target = rng.randrange(len(records)) if rng.random() < 0.2 else next(
        i for i, (name, _) in enumerate(records) if name.endswith("data.pkl"))
    name, body = records[target]
    records[target] = name, edited(body, rng)
    if rng.random() < 0.05:
        records.pop(rng.randrange(len(records)))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if rng.random() < 0.02 else zipfile.ZIP_STORED) as archive:
        for name, body in records:
            archive.writestr(name, body)
    out = file.getvalue()
    return edited(out, rng) if rng.random() < 0.05 else out


def edited(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 2:
            data[at:at + rng.randrange(4)] = rng.choice(WORDS)
        elif kind == 3:
            del data[at:at + rng.randrange(8)]
        else:
            numbers = [i for i, byte in enumerate(data[:-1]) if byte == ord("K")]  # one-byte numbers: shapes and strides
            if numbers:
                at = rng.choice(numbers)
                data[at:at + 2] = rng.choice(WORDS[:8])
    return bytes(data)


def convert(path, out):
    """The reader's main(), in this process."""
    reader.check_archive(path)
    tensors = reader.find_state_dict(torch, reader.load(torch, path))
    reader.check_bytes(torch, tensors, os.path.getsize(path))
    reader.write(torch, tensors, out)


def main():
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    torch.set_num_threads(1)
    reader.bound_memory(1 << 16)  # for all inputs together
    examples = corpus()
    accepted = refused = 0
    slowest = 0.0
    begun = time.monotonic()
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = os.path.join(place, "weights.pth")
        for i in range(-len(examples), inputs):
            rng = random.Random(f"{seed} {i}")
            data = examples[-i - 1] if i < 0 else mutated(rng.choice(examples), rng)
            pathlib.Path(path).write_bytes(data)
            fault, out, started = "", io.BytesIO(), time.process_time()
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    convert(path, out)
                accepted += 1
                if len(out.getvalue()) > reader.MOST_TIMES * len(data) + 65536:
                    fault = f"{len(out.getvalue())} bytes of {len(data)}"
            except SystemExit as end:
                refused += 1
                if end.code not in (reader.BAD_FILE,) or i < 0:
                    fault = f"exit status {end.code}"
            except Exception as error:  # noqa: BLE001: any of them would be exit status 1
                fault = f"{type(error).__name__}: {error}"
            seconds = time.process_time() - started
            slowest = max(slowest, seconds)
            if seconds > 1:
                fault = fault or f"{seconds:.2f} s"
            if fault:
                pathlib.Path("fuzz-pth.bin").write_bytes(data)
                sys.exit(f"fuzz pth: input {i} of seed {seed}: {fault}")
    print(json.dumps({"parser": "pth", "inputs": inputs, "seed": seed, "accepted": accepted, "refused": refused,
                      "sanitized": False, "slowest_seconds": round(slowest, 3),
                      "seconds": round(time.monotonic() - begun)}))


if __name__ == "__main__":
    main()

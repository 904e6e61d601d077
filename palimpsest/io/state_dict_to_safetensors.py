"""state_dict_to_safetensors.py FILE > OUT.safetensors: converts a file of torch.save to a format that needs no Python.

FILE is a state dict, or a training checkpoint that holds a state dict under one of the usual keys. The script runs no code
of FILE: it refuses a pickle that asks for more than tensors and plain containers. It needs only torch. `palimpsest import`
carries this script and runs it. Exit status: 0 done; 2 wrong usage; 3 this Python has no torch; 4 FILE cannot be read;
5 the output cannot be written; 6 this Python's torch is older than 2.6 (CVE-2025-32434). One line on stderr has the reason.
"""
import sys

sys.path = [path for path in sys.path if path]  # a torch.py in the current folder is not torch

import argparse
import ctypes
import json
import os
import re
import resource
import struct
import zipfile

NO_TORCH, BAD_FILE, BAD_OUTPUT, OLD_TORCH = 3, 4, 5, 6
OLDEST = (2, 6)
MOST_TIMES = 4  # the bytes of all tensors, over those of FILE: a few may share their storage
SPARE_BYTES = 1 << 28
KEYS = ("state_dict", "model", "model_state_dict", "model_state")  # of checkpoints, in the order of the search


def fail(code, message):
    print(" ".join(str(message).split()), file=sys.stderr)
    sys.exit(code)


def check_version(version):
    """Before 2.6, a file can get round weights_only and run code."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers or (int(numbers[1]), int(numbers[2])) < OLDEST:
        fail(OLD_TORCH, f"torch {version} can be made to run code of a file: torch {OLDEST[0]}.{OLDEST[1]} or later is needed")


def check_archive(path):
    """torch.save does not compress, so the records have at most the bytes of the file: others are bombs."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeDecodeError):
        return  # a pickle of an old torch; or torch.load says why it cannot be read
    if sum(record.file_size for record in records) > os.path.getsize(path) or any(
            record.compress_type != zipfile.ZIP_STORED for record in records):
        fail(BAD_FILE, "its records are compressed, which torch.save never does")


def bound_memory(file_bytes):
    """A tensor of an old file may claim any size: torch makes its storage that large. FILE, its tensors and their
    contiguous copies need three times its bytes."""
    try:
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        limit = used + MOST_TIMES * file_bytes + SPARE_BYTES
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    except (OSError, ValueError):
        pass  # a system without it


def load(torch, path):
    # torchvision's training script stores its options as a Namespace, which is a plain record.
    torch.serialization.add_safe_globals([argparse.Namespace])
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused:
            fail(BAD_FILE, f"it is a pickle that wants to run {refused[1]}, and only tensors are read; if you trust it, "
                           "load it in Python and save model.state_dict() alone")
        if isinstance(error, MemoryError) or "allocate" in str(error):
            fail(BAD_FILE, "its tensors claim more memory than its bytes can fill")
        reason = re.split(r"[.]? *\n|[.] ", str(error) or repr(error))[0]  # without the advice after it
        fail(BAD_FILE, f"it is truncated, or not a file of torch.save: {reason}")


def flat(found):
    """A segmentation snapshot of the In-Place ABN paper's release has a state dict per part: body, head and cls."""
    if not found or not all(isinstance(part, dict) for part in found.values()):
        return found
    return {f"{name}.{key}": tensor for name, part in found.items() for key, tensor in part.items()}


def find_state_dict(torch, loaded):
    if not isinstance(loaded, dict):
        fail(BAD_FILE, f"it holds a {type(loaded).__name__}, wanted a state dict")
    # First, because a checkpoint may hold a tensor of its own, such as the best accuracy.
    for key in KEYS:
        if isinstance(loaded.get(key), dict):
            return flat(loaded[key])
    if any(isinstance(value, torch.Tensor) for value in loaded.values()):
        return loaded
    fail(BAD_FILE, f"it holds no state dict: its keys are {', '.join(map(str, loaded)) or 'none'} (wanted tensors, or a "
                   f"dict of them under {', '.join(KEYS)})")


def check_bytes(torch, tensors, file_bytes):
    """A tensor of stride 0 may claim 2^40 elements of a storage of 4 bytes, and many may claim the same storage."""
    total = 0
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            continue  # write() names it
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
            fail(BAD_FILE, f"its entry {name} is a {type(tensor).__name__} on {tensor.device} and has no values to read")
        size = tensor.numel() * tensor.element_size()
        if size > tensor.untyped_storage().nbytes():
            fail(BAD_FILE, f"its tensor {name} has {size} bytes, {tensor.untyped_storage().nbytes()} of them stored: it is "
                           "expanded; save a contiguous copy")
        total += size
    if total > MOST_TIMES * file_bytes:
        fail(BAD_FILE, f"its tensors have {total} bytes, the file {file_bytes}: they share their values")


def write(torch, tensors, out):
    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
             torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}
    header, end, contiguous = {}, 0, []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            fail(BAD_FILE, f"its entry {name} is a {type(tensor).__name__} and no tensor")
        if tensor.dtype not in names or tensor.layout != torch.strided:
            fail(BAD_FILE, f"its tensor {name} is {tensor.dtype}, {tensor.layout}, which cannot be read")
        contiguous.append(tensor.detach().resolve_neg().contiguous())
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[str(name)] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out.write(struct.pack("<Q", len(text)) + text)
    for tensor in contiguous:
        if tensor.numel():
            out.write((ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr()))
    out.flush()


def main():
    if len(sys.argv) != 2:
        fail(2, "usage: state_dict_to_safetensors.py FILE > OUT.safetensors")
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output must not get into the tensors
    try:
        import torch
    except ImportError as error:
        fail(NO_TORCH, error)
    check_version(torch.__version__)
    torch.set_num_threads(1)  # bound_memory leaves no room for a pool, whose start would wait for ever
    check_archive(sys.argv[1])
    bound_memory(os.path.getsize(sys.argv[1]))
    tensors = find_state_dict(torch, load(torch, sys.argv[1]))
    check_bytes(torch, tensors, os.path.getsize(sys.argv[1]))
    try:
        write(torch, tensors, out)
    except OSError as error:
        fail(BAD_OUTPUT, error.strerror)
    except (RuntimeError, MemoryError) as error:
        fail(BAD_FILE, f"its tensors cannot be copied: {error}")


if __name__ == "__main__":
    main()

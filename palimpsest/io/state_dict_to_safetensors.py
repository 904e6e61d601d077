"""state_dict_to_safetensors.py FILE > OUT.safetensors: converts a file of torch.save to a format that needs no Python.

FILE is a state dict, or a training checkpoint that holds a state dict under one of the usual keys. The script runs no code
of FILE: it refuses a pickle that asks for more than tensors and plain containers. It needs only torch. `palimpsest import`
carries this script and runs it. Exit status: 0 done; 2 wrong usage; 3 this Python has no torch; 4 FILE cannot be read;
5 the output cannot be written. One line on stderr has the reason.
"""
import sys

sys.path = [path for path in sys.path if path]  # a torch.py in the current folder is not torch

import argparse
import ctypes
import json
import os
import re
import struct

NO_TORCH, BAD_FILE, BAD_OUTPUT = 3, 4, 5
KEYS = ("state_dict", "model", "model_state_dict", "model_state")  # of checkpoints, in the order of the search


def fail(code, message):
    print(" ".join(str(message).split()), file=sys.stderr)
    sys.exit(code)


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
        reason = re.split(r"[.]? *\n|[.] ", str(error) or repr(error))[0]  # without the advice after it
        fail(BAD_FILE, f"it is truncated, or not a file of torch.save: {reason}")


def find_state_dict(torch, loaded):
    if not isinstance(loaded, dict):
        fail(BAD_FILE, f"it holds a {type(loaded).__name__}, wanted a state dict")
    if any(isinstance(value, torch.Tensor) for value in loaded.values()):
        return loaded
    for key in KEYS:
        if isinstance(loaded.get(key), dict):
            return loaded[key]
    fail(BAD_FILE, f"it holds no state dict: its keys are {', '.join(map(str, loaded)) or 'none'} (wanted tensors, or a "
                   f"dict of them under {', '.join(KEYS)})")


def write(torch, tensors, out):
    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
             torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}
    header, end, contiguous = {}, 0, []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            fail(BAD_FILE, f"its entry {name} is a {type(tensor).__name__} and no tensor")
        if tensor.dtype not in names or tensor.layout != torch.strided:
            fail(BAD_FILE, f"its tensor {name} is {tensor.dtype}, {tensor.layout}, which cannot be read")
        contiguous.append(tensor.detach().contiguous())
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
    tensors = find_state_dict(torch, load(torch, sys.argv[1]))
    try:
        write(torch, tensors, out)
    except OSError as error:
        fail(BAD_OUTPUT, error.strerror)


if __name__ == "__main__":
    main()

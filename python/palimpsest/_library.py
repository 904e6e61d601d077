"""Loads the operators (torch.ops.palimpsest) from the library that was built for the installed torch."""
import os
import pathlib

import torch

# One folder per minor version of torch, such as lib/torch-2.11: the C++ interface of torch changes with each.
FOLDER = pathlib.Path(__file__).parent / "lib"
NAME = "libpalimpsest_ops.so"
VARIABLE = "PALIMPSEST_LIBRARY"


def minor_version(version):
    """'2.11' of '2.11.0+cu130'."""
    return ".".join(version.split("+")[0].split(".")[:2])


def find():
    """The path of the library. Raises ImportError with the way out if there is none for this torch."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        if not os.path.isfile(chosen):
            raise ImportError(f"{VARIABLE} must name the file {NAME}, got '{chosen}'")
        return chosen
    wanted = minor_version(torch.__version__)
    path = FOLDER / f"torch-{wanted}" / NAME
    if path.is_file():
        return str(path)
    built = [folder.name.removeprefix("torch-") for folder in FOLDER.glob("torch-*")]
    built.sort(key=lambda name: [int(n) for n in name.split(".")])
    other = f"but for {', '.join(built)}: pip install 'torch=={built[-1]}.*'" if built else "nor for any other"
    raise ImportError(f"palimpsest has no operators for torch {wanted}, {other}, or build palimpsest for torch {wanted}: "
                      "pip install . in a clone")


def load():
    """Registers torch.ops.palimpsest, once per process."""
    if hasattr(torch.ops.palimpsest, "abn"):
        return
    path = find()
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(f"palimpsest's operators in '{path}' do not fit torch {torch.__version__}: {error}") from error

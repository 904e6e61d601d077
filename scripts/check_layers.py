#!/usr/bin/env python3
"""Checks that no layer includes upward, that no folder includes another's private header and that headers stay light.
Prints each offence as FILE:LINE; exits 1 if any.

A header directly in a layer's folder is public. A header one folder down is private: only files of its own folder, of the folders
above it and of the folders within it include it, unless its folder is one of SHARED or it is one of FOR_SIBLINGS.

check_layers.py [ROOT]    (default: the project that holds this script)
"""
import pathlib
import re
import sys

# layer -> layers of ours it may include. The table of the layers in CONTRIBUTING.md says why.
ALLOWED = {
    "base": set(),
    "kernels": {"base"},
    "ops": {"kernels", "base"},
    "memory": {"base"},
    "amp": {"ops", "base"},
    "nn": {"ops", "memory", "kernels", "base"},
    "models": {"nn", "base"},
    "io": {"base"},
    "data": {"base", "io"},
    "train": {"base", "ops", "memory", "amp", "nn", "io", "data"},
    "cli": {"base", "kernels", "ops", "memory", "amp", "nn", "models", "io", "data", "train"},
}
# layer -> the headers of libtorch that it must not include, as a pattern over the include path.
FORBIDDEN = {
    "base": r"^(torch|ATen|c10)/",
    "kernels": r"^(torch|ATen|c10)/",
    "ops": r"^torch/(nn|optim|torch\.h)",
    "memory": r"^torch/(?!csrc/autograd/)",
    "amp": r"^torch/(?!csrc/autograd/|optim/)",
    "io": r"^torch/",
    "data": r"^torch/(nn|optim|torch\.h)",
}
# CUDA's own headers, and the only folder that may include them: other CUDA sources include device/platform.cuh.
OF_CUDA = re.compile(r"^(cuda(?!_platform\.cuh)|cooperative_groups|cub/|thrust/)[\w/]*(\.h|\.hpp|\.cuh)?$")
CUDA_FOLDER = "palimpsest/kernels/cuda/device/nvcc"
HEADERS = {".h", ".cuh"}
# Folders whose headers all files of the layer may include.
SHARED = {"ops/common", "ops/invertibility", "kernels/formulas", "kernels/cpu", "kernels/cpu/simd", "kernels/cuda", "kernels/cuda/device"}
# The subset whose headers the layers above may include too.
PUBLIC = {"kernels/formulas", "kernels/cuda"}
# The header of an operator's folder that is made for other operators.
FOR_SIBLINGS = re.compile(r"ops/\w+/functional\.h")
# folder -> the only layer that may include its headers: parts of the program, which are not installed.
PROGRAM_ONLY = {"data/generated": "cli"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def is_private(name, layer, included):
    """Returns whether a file of the project, by its path, must not include this header of the project."""
    header = pathlib.PurePosixPath(included).relative_to("palimpsest")
    theirs, ours = header.parent, name.relative_to("palimpsest").parent
    folder = theirs.as_posix()
    if folder in PROGRAM_ONLY:
        return layer != PROGRAM_ONLY[folder] and ours != theirs
    if header.parts[0] != layer:
        return len(theirs.parts) > 1 and folder not in PUBLIC
    if folder in SHARED or FOR_SIBLINGS.fullmatch(header.as_posix()) or ours.is_relative_to(theirs):
        return False
    is_public_header = name.suffix in HEADERS and len(ours.parts) == 1
    return is_public_header or not theirs.is_relative_to(ours)


def offences(path, layer, root):
    name = path.relative_to(root)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        # An instruction set's own namespace may take in the vector toolbox, which is compiled for that set alone.
        if path.suffix in HEADERS and re.match(r"\s*using\s+namespace\b(?! simd::PALIMPSEST_ISA_NAMESPACE;)", line):
            yield f"{name}:{number}: a header must not say 'using namespace'"
        match = INCLUDE.match(line)
        if not match:
            continue
        included = match.group(1)
        ours = re.match(r"palimpsest/(\w+)/", included)
        if ours and ours.group(1) != layer and ours.group(1) not in ALLOWED[layer]:
            yield f"{name}:{number}: layer '{layer}' must not include '{included}' (it may include: {sorted(ALLOWED[layer])})"
        elif ours and is_private(name, layer, included):
            yield f"{name}:{number}: '{included}' is private to its folder"
        if layer in FORBIDDEN and re.search(FORBIDDEN[layer], included):
            yield f"{name}:{number}: layer '{layer}' must not include '{included}'"
        if path.suffix in HEADERS and included == "torch/torch.h":
            yield f"{name}:{number}: a header must not include torch/torch.h (10 s per unit): include only the headers it uses"
        if included.startswith("tests/"):
            yield f"{name}:{number}: the library must not include '{included}'"
        if OF_CUDA.match(included) and name.parent.as_posix() != CUDA_FOLDER:
            yield f"{name}:{number}: only {CUDA_FOLDER} may include '{included}'"
        if path.suffix in {".cu", ".cuh"} and re.match(r"(torch|ATen|c10)/", included):
            yield f"{name}:{number}: CUDA sources never see libtorch headers"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    found = []
    for layer in ALLOWED:
        for path in sorted((root / "palimpsest" / layer).rglob("*")):
            if path.suffix in {*HEADERS, ".cpp", ".cu", ".inc"}:
                found.extend(offences(path, layer, root))
    for path in sorted((root / "palimpsest").glob("*/")):
        if path.is_dir() and path.name not in ALLOWED:
            found.append(f"palimpsest/{path.name}: a folder that is no layer (add it to scripts/check_layers.py)")
    print("\n".join(found) if found else "layers: no upward include, no private header of another folder")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

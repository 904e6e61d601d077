#!/usr/bin/env python3
"""Checks that no layer includes upward and that headers stay light. Prints each offence as FILE:LINE; exits 1 if any.

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
    "nn": {"ops", "memory", "amp", "kernels", "base"},
    "models": {"nn", "base"},
    "io": {"base"},
    "data": {"base", "io"},
    "train": {"base", "ops", "memory", "amp", "nn", "io", "data"},
    "cli": {"base", "kernels", "ops", "memory", "amp", "nn", "models", "io", "data", "train"},
}
# layer -> what of libtorch it must not include, as a pattern over the include path.
FORBIDDEN = {
    "base": r"^(torch|ATen|c10)/",
    "kernels": r"^(torch|ATen|c10)/",
    "ops": r"^torch/(nn|optim|torch\.h)",
    "memory": r"^torch/torch\.h",
    "io": r"^torch/(nn|optim|torch\.h)",
    "data": r"^torch/(nn|optim|torch\.h)",
}
# CUDA's own headers, and the only folder that may include them: other CUDA sources include device/platform.cuh.
OF_CUDA = re.compile(r"^(cuda(?!_platform\.cuh)|cooperative_groups|cub/|thrust/)[\w/]*(\.h|\.hpp|\.cuh)?$")
CUDA_FOLDER = "palimpsest/kernels/cuda/device/nvcc"
HEADERS = {".h", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def offences(path, layer, root):
    name = path.relative_to(root)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if path.suffix in HEADERS and re.match(r"\s*using\s+namespace\b", line):
            yield f"{name}:{number}: a header must not say 'using namespace'"
        match = INCLUDE.match(line)
        if not match:
            continue
        included = match.group(1)
        ours = re.match(r"palimpsest/(\w+)/", included)
        if ours and ours.group(1) != layer and ours.group(1) not in ALLOWED[layer]:
            yield f"{name}:{number}: layer '{layer}' must not include '{included}' (it may include: {sorted(ALLOWED[layer])})"
        if layer in FORBIDDEN and re.search(FORBIDDEN[layer], included):
            yield f"{name}:{number}: layer '{layer}' must not include '{included}'"
        if path.suffix in HEADERS and included == "torch/torch.h":
            yield f"{name}:{number}: a header must not include torch/torch.h (10 s a unit): include what it uses"
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
    print("\n".join(found) if found else "layers: no upward include")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

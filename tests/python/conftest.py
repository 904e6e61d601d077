"""The package as it lies in the tree, with the operators of the build. PALIMPSEST_INSTALLED=1: the installed packages."""
import os
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
if not os.environ.get("PALIMPSEST_INSTALLED"):
    os.environ.setdefault("PALIMPSEST_LIBRARY", str(BUILD / "libpalimpsest_ops.so"))
    sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python/inplace_abn_dropin")]

# With this on, as before torch 2.12, torch.compile's guards read freed memory when they outlive their module, and may crash
# as Python exits, with any model: https://github.com/pytorch/pytorch/pull/179730
torch._dynamo.config.use_recursive_dict_tags_for_guards = False

"""scikit-build-core's backend, told which torch to build for: that of the environment that installs."""
import os
import subprocess
import sys

from scikit_build_core.build import *  # noqa: F403: the hooks of PEP 517
from scikit_build_core import build as _backend

# -I: without the isolated environment that pip puts before the interpreter's own packages.
_QUESTION = [sys.executable, "-I", "-c", "import os, torch; print(os.path.dirname(torch.__file__))"]


def _choose_torch():
    if os.environ.get("PALIMPSEST_PYTHON") or os.environ.get("Libtorch_ROOT"):
        return
    asked = subprocess.run(_QUESTION, capture_output=True, text=True)
    if asked.returncode:
        sys.exit(f"palimpsest is built for the torch of {sys.executable}, which has none: install torch 2.11 or later first, "
                 "or set PALIMPSEST_PYTHON to a Python that has it, or Libtorch_ROOT to an unpacked libtorch")
    os.environ["Libtorch_ROOT"] = asked.stdout.split("\n")[-2]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _choose_torch()
    return _backend.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _choose_torch()
    return _backend.build_editable(wheel_directory, config_settings, metadata_directory)

import pathlib
import shutil

import pytest

from pages import ROOT


@pytest.fixture
def results(tmp_path):
    """A copy of the committed measurements and their pages."""
    return pathlib.Path(shutil.copytree(ROOT / "docs/results", tmp_path / "results"))

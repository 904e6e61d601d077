import pathlib
import shutil

import pytest

from page_support import ROOT


@pytest.fixture
def results(tmp_path):
    """A copy of the committed measurements and their pages."""
    folder = pathlib.Path(shutil.copytree(ROOT / "docs/results", tmp_path / "docs/results"))
    for page in ("numerics", "distributed"):
        shutil.copy(ROOT / f"docs/{page}.md", folder.parent)
    return folder

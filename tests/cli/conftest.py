import pathlib
import shutil
import tempfile

import pytest

from cli_support import FORKING_PROGRAM, PROGRAM, TINY, TINY_CLASSIFIER, image_folder, succeeds


def pytest_configure():
    for program in (PROGRAM, FORKING_PROGRAM):
        assert program.exists(), f"{program} is missing: build it first (make build)"


@pytest.fixture
def folder():
    """A folder that is gone after the test: checkpoints are too large for pytest's own, which it keeps."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-") as name:
        yield pathlib.Path(name)


@pytest.fixture(scope="session")
def trained():
    """A run of two steps: the folder with its checkpoint. Read it, do not write into it."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-") as name:
        run = pathlib.Path(name) / "run"
        succeeds("train", *TINY, "--output", run)
        yield run


@pytest.fixture(scope="session")
def trained_classifier():
    """Does the same for a classification network: (run folder, data folder)."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-") as name:
        data = image_folder(pathlib.Path(name) / "data")
        run = pathlib.Path(name) / "run"
        succeeds("train", *TINY_CLASSIFIER, "--data-root", data, "--output", run)
        yield run, data


@pytest.fixture
def copy_of_run(trained, folder):
    """The run of two steps, to be damaged."""
    return pathlib.Path(shutil.copytree(trained, folder / "run"))

"""scripts/build_carried with a CMake that only pretends: what it is asked for, and what is carried."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# "Builds" a program by copying one, so that strip and ldd have something to work on.
CMAKE = f"""#!/bin/sh
echo "$*" >> asked
[ "$1" = --build ] || exit 0
mkdir -p "$2"
cp "${{PROGRAM:-{sys.executable}}}" "$2/palimpsest" && cp {sys.executable} "$2/libpalimpsest_ops.so"
"""


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/build_carried", tmp_path / "scripts")
    cmake = tmp_path / ".venv/bin/cmake"
    cmake.parent.mkdir(parents=True)
    cmake.write_text(CMAKE)
    cmake.chmod(0o755)
    return tmp_path


def run(tree, *arguments, folder=".", **variables):
    return subprocess.run([tree / "scripts/build_carried", *arguments], cwd=tree / folder, env={**os.environ, **variables},
                          capture_output=True, text=True)


def test_one_command_configures_builds_and_gathers(tree):
    said = run(tree, "90")
    assert said.returncode == 0 and said.stdout.startswith("build_carried: build/carried, "), said.stderr
    configure, build = (tree / "asked").read_text().splitlines()
    assert configure.startswith("--preset cuda -B build/cuda_carried -DCMAKE_CUDA_ARCHITECTURES=90 ")
    assert build == "--build build/cuda_carried --target palimpsest palimpsest_ops"
    carried = tree / "build/carried"
    assert {path.name for path in carried.iterdir()} == {"palimpsest", "libpalimpsest_ops.so", "lib"}
    assert {path.name.split(".")[0].rstrip("0123456789") for path in (carried / "lib").iterdir()} <= {"libjpeg", "libpng", "libz"}


def test_another_folder_keeps_what_it_holds(tree):
    (tree / "mine").mkdir()
    (tree / "mine/notes").write_text("mine")
    for given, folder in (("mine", "."), ("../mine", "scripts")):  # relative to the caller
        (tree / "mine/palimpsest").unlink(missing_ok=True)
        said = run(tree, "80;90-real", given, folder=folder)
        assert said.returncode == 0 and said.stdout.startswith("build_carried: mine, ")
        assert (tree / "mine/notes").read_text() == "mine" and (tree / "mine/palimpsest").exists()


def test_libraries_of_images_are_carried_from_any_folder(tree):
    libraries = tree / "some libraries"
    libraries.mkdir()
    for name, text, flags in (("libpng16.so.16", "int own() { return 1; }", ["-shared", "-fPIC", "-Wl,-soname,libpng16.so.16"]),
                              ("program", "int own(); int main() { return own(); }", [libraries / "libpng16.so.16"])):
        subprocess.run(["c++", "-x", "c++", "-", "-x", "none", *flags, "-o", libraries / name], input=text, text=True, check=True)
    said = run(tree, folder="scripts", PROGRAM=str(libraries / "program"), LD_LIBRARY_PATH=str(libraries))
    assert said.returncode == 0, said.stderr
    assert [path.name for path in (tree / "build/carried/lib").iterdir()] == ["libpng16.so.16"]


def test_a_build_that_fails_is_status_1_and_carries_nothing(tree):
    (tree / ".venv/bin/cmake").write_text("#!/bin/sh\nexit 3\n")
    assert run(tree).returncode == 1 and not (tree / "build/carried").exists()


@pytest.mark.parametrize("arguments, line", [
    (["ninety"], "ARCHITECTURES is OFF, native or CMake's list, such as '80;90'; got 'ninety'"),
    (["90", "x", "y"], "usage: build_carried [ARCHITECTURES [FOLDER]]; got 3 arguments"),
])
def test_a_wrong_argument_is_refused_in_one_line(tree, arguments, line):
    said = run(tree, *arguments)
    assert (said.returncode, said.stdout, said.stderr) == (2, "", f"build_carried: {line}\n")
    assert not (tree / "asked").exists()

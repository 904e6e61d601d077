"""scripts/bootstrap with packages and Pythons that only pretend: what it installs, keeps and makes again."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DPKG_QUERY = """#!/bin/sh
shift 3
status=0
for name; do
  if grep -qx "$name" "$PRETENDED/installed"; then echo "install ok installed"; else status=1; fi
done
exit $status
"""
# A Python whose packages are the files of bin/site. Every Python has torch; PyPI's is a file there.
PYTHON = f"""#!{sys.executable}
import os, pathlib, shutil, sys
here, call = pathlib.Path(sys.argv[0]).absolute(), sys.argv[1:]
site = here.parent / "site"
if call[:2] == ["-m", "venv"]:
    target = pathlib.Path(call[-1])
    if "--clear" in call:
        shutil.rmtree(target)
    (target / "bin/site").mkdir(parents=True, exist_ok=True)
    for name in ("python", "uv"):
        shutil.copy(here, target / "bin" / name)
elif here.name == "uv" or call[:2] == ["-m", "pip"]:
    if call[-1].endswith("requirements.txt"):
        (site / "torch").touch()
    with open(os.environ["PRETENDED"] + "/calls", "a") as calls:
        print("install", file=calls)
elif call[0] == "-c" and "getsitepackages" in call[1]:
    print(site)
elif call[0] == "-c" and "torch.__file__" in call[1]:
    print(site)
elif call[0] == "-c" and "sys.prefix" in call[1]:
    print(here.parents[1].resolve())
"""


class Tree:
    """A project with a bootstrap of its own, and a machine that only pretends."""

    def __init__(self, root):
        self.root, machine = root / "project", root / "machine"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("scripts/bootstrap", "scripts/requirements.txt", "scripts/debian_packages.txt", "Makefile"):
            shutil.copy(ROOT / name, self.root / name)
        program(machine / "bin/dpkg-query", DPKG_QUERY)
        program(machine / "bin/apt-get", '#!/bin/sh\necho "apt-get $*" >>"$PRETENDED/calls"\n')
        program(machine / "bin/id", "#!/bin/sh\necho 0\n")
        program(machine / "bin/python3", PYTHON)
        self.other = program(root / "other/bin/python3", PYTHON)
        self.installed, self.calls = machine / "installed", machine / "calls"
        packages = (ROOT / "scripts/debian_packages.txt").read_text()
        self.installed.write_text(packages.replace("|", "\n"))
        self.environment = {"PRETENDED": str(machine), "PATH": f"{machine / 'bin'}:{os.environ['PATH']}"}
        self.site = self.root / ".venv/bin/site"

    def run(self, command=("scripts/bootstrap",), **variables):
        """Runs the command and returns what it said and which tools were called."""
        self.calls.write_text("")
        result = subprocess.run(command, cwd=self.root, env={**self.environment, **variables}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert result.returncode == 0, result.stdout
        return result.stdout, self.calls.read_text().splitlines()

    def holds(self):
        return {path.name for path in self.site.iterdir()}


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


# ---- the packages of the system


@pytest.mark.parametrize("name", ["libjpeg-dev", "libjpeg62-turbo-dev"])
def test_either_jpeg_package_will_do(tree, name):
    others = [line for line in tree.installed.read_text().splitlines() if not line.startswith("libjpeg")]
    tree.installed.write_text("\n".join([*others, name]) + "\n")
    assert "install" in tree.run()[1] and not [call for call in tree.run()[1] if call.startswith("apt-get")]


def test_what_is_missing_is_installed_and_of_alternatives_the_first(tree):
    tree.installed.write_text("".join(line for line in tree.installed.read_text().splitlines(True)
                                      if not line.startswith(("libjpeg", "valgrind"))))
    update, install = [call for call in tree.run()[1] if call.startswith("apt-get")]
    assert update.startswith("apt-get update") and install.endswith(" libjpeg-dev valgrind")


# ---- the Python environment


def test_a_second_run_installs_nothing(tree):
    assert tree.run()[1] != []
    assert tree.run() == ("", [])
    assert tree.holds() == {"torch"}


def test_another_torch_hides_no_chosen_one(tree):
    tree.run()
    tree.run(PALIMPSEST_PYTHON=str(tree.other))
    assert tree.holds() == {"palimpsest_torch.pth"}


def test_a_choice_holds_until_the_next(tree):
    tree.run(PALIMPSEST_PYTHON=str(tree.other))
    assert tree.run() == ("", [])
    (tree.root / "scripts/requirements.txt").open("a").write("six==1.17.0\n")
    assert tree.run()[1] != [] and tree.holds() == {"palimpsest_torch.pth"}
    tree.run(PALIMPSEST_PYTHON="")
    assert tree.holds() == {"torch"} and tree.run() == ("", [])


@pytest.mark.parametrize("wanted, holds", [(None, "palimpsest_torch.pth"), ("", "torch")])
def test_a_choice_of_before_the_record_is_recorded_or_cleared(tree, wanted, holds):
    tree.run(PALIMPSEST_PYTHON=str(tree.other))
    (tree.root / ".venv/palimpsest-python").unlink()
    said, calls = tree.run(PALIMPSEST_PYTHON=str(tree.other) if wanted is None else wanted)
    assert ("clearing" in said) == (calls != []) == (wanted == "")
    assert tree.holds() == {holds} and tree.run() == ("", [])


def test_a_chosen_python_that_is_gone_is_said(tree):
    tree.run(PALIMPSEST_PYTHON=str(tree.other))
    tree.other.unlink()
    said = subprocess.run([tree.root / "scripts/bootstrap"], capture_output=True, text=True, env=tree.environment)
    assert said.returncode == 1 and f"is {tree.other}, which cannot be run: name another one" in said.stderr


def test_other_pins_leave_what_else_is_in_the_environment(tree):
    tree.run()
    (tree.site / "timm").touch()
    (tree.root / "scripts/requirements.txt").open("a").write("six==1.17.0\n")
    assert tree.run()[1] != [] and tree.holds() == {"torch", "timm"}


def test_a_folder_of_another_maker_is_not_cleared(tree):
    folder = tree.root.parent / "mine"
    folder.mkdir()
    (folder / "notes").touch()
    tree.run(PALIMPSEST_VENV=str(folder), PALIMPSEST_PYTHON=str(tree.other))
    assert (folder / "notes").exists() and (tree.root / ".venv").resolve() == folder


def test_the_python_of_the_environment_cannot_make_it(tree):
    tree.run()
    said = subprocess.run([tree.root / "scripts/bootstrap"], capture_output=True, text=True,
                          env={**tree.environment, "PALIMPSEST_PYTHON": ".venv/bin/python"})
    assert said.returncode == 1 and "is the Python of .venv, which is made again: name another one" in said.stderr
    assert tree.holds() == {"torch"} and tree.run() == ("", [])


@pytest.mark.parametrize("given, passed", [({}, "unset"), ({"PALIMPSEST_PYTHON": ""}, ""),
                                           ({"PALIMPSEST_PYTHON": "/a b/python"}, "/a b/python")])
def test_make_passes_the_choice_to_bootstrap_alone(tree, given, passed):
    for path in ("scripts/bootstrap", ".venv/bin/cmake"):
        program(tree.root / path, f'#!/bin/sh\necho "{path}: ${{PALIMPSEST_PYTHON-unset}}"\n')
    says = f"scripts/bootstrap: {passed}\n.venv/bin/cmake: unset\n"
    assert tree.run(["make", "-s", "configure"], **given)[0] == says
    assert tree.run(["make", "-s", "configure", *(f"{name}={value}" for name, value in given.items())])[0] == says


def test_a_link_to_the_project_hides_no_python_of_the_environment(tree):
    tree.run()
    program(tree.root / ".venv/bin/python3", "#!/bin/sh\nexit 1\n")
    link = tree.root.parent / "link"
    link.symlink_to(tree.root)
    (tree.root / "scripts/requirements.txt").open("a").write("six==1.17.0\n")
    tree.run([link / "scripts/bootstrap"], PATH=f"{tree.root}/.venv/bin:{tree.environment['PATH']}")


def test_make_lets_the_systems_python_make_the_environment(tree):
    tree.run(["make", "bootstrap"], PALIMPSEST_PYTHON=str(tree.other))
    program(tree.root / ".venv/bin/python3", "#!/bin/sh\nexit 1\n")
    tree.run(["make", "bootstrap"], PALIMPSEST_PYTHON="")
    assert tree.holds() == {"torch"}

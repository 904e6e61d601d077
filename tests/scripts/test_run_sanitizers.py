"""A check that passed under the sanitizers does not run again until one of its inputs changes. CMake and CTest are stand-ins."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CTEST = """#!/bin/sh
case "$*" in
  *--show-only*) cat "listing-$2.json" ;;
  *) echo "ran $2 under $GTEST_FILTER" && [ ! -e "fails-$2" ] ;;
esac
"""


class Tree:
    """A project whose presets have one test program each, with a library of its own."""

    def __init__(self, root):
        self.root = root
        self.variables = {**os.environ, "CCACHE_DIR": str(root / "cache")}
        self.variables.pop("CCACHE_DISABLE", None)
        (root / "scripts").mkdir(parents=True)
        for name in ("run_sanitizers", "passed_checks.py"):
            shutil.copy(ROOT / "scripts" / name, root / "scripts" / name)
        for name, text in (("cmake", "#!/bin/sh\n"), ("ctest", CTEST)):
            path = root / ".venv/bin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        self.compile("libown.so", "int own() { return 1; }", "-shared", "-fPIC")
        for preset in ("asan", "tsan"):
            self.compile(f"tests_{preset}", "int own(); int main() { return own(); }", root / "libown.so")
            self.list(preset, [])

    def compile(self, name, text, *flags):
        subprocess.run(["c++", "-x", "c++", "-", "-x", "none", *flags, "-o", self.root / name], input=text, text=True,
                       check=True)

    def list(self, preset, properties):
        test = {"name": "kernels", "command": [str(self.root / f"tests_{preset}")], "properties": properties}
        (self.root / f"listing-{preset}.json").write_text(json.dumps({"tests": [test]}))

    def run(self, *arguments):
        """(exit status, presets whose tests ran, all that was said)."""
        result = subprocess.run([self.root / "scripts/run_sanitizers", *arguments], env=self.variables, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        ran = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("ran ")]
        assert sorted(ran + skipped(result.stdout)) == ["asan", "tsan"], "a check is run, or said to be as at the last one"
        return result.returncode, ran, result.stdout


def skipped(said):
    return [line.split(":")[0] for line in said.splitlines() if line.endswith("unchanged since the last check, which passed")]


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_what_passed_is_not_run_again_unless_asked(tree):
    assert tree.run("--unless-passed")[:2] == (0, ["asan", "tsan"])
    status, ran, said = tree.run("--unless-passed")
    assert (status, ran, skipped(said)) == (0, [], ["asan", "tsan"])
    assert tree.run()[:2] == (0, ["asan", "tsan"])


def test_a_failure_is_the_exit_status_is_not_remembered_and_hides_no_other(tree):
    (tree.root / "fails-asan").touch()
    for remembered in (["asan", "tsan"], ["asan"]):
        status, ran, said = tree.run("--unless-passed")
        assert (status, ran) == (1, remembered)
        assert "run_sanitizers: asan: " in said and "exit status 1" in said
    (tree.root / "fails-asan").unlink()
    assert tree.run("--unless-passed")[:2] == (0, ["asan"])


@pytest.mark.parametrize("change, again", [
    (lambda tree: open(tree.root / "tests_asan", "ab").write(b"x"), ["asan"]),
    (lambda tree: tree.compile("libown.so", "int own() { return 2; }", "-shared", "-fPIC"), ["asan", "tsan"]),
    (lambda tree: tree.list("tsan", [{"name": "ENVIRONMENT", "value": ["A=1"]}]), ["tsan"]),
    (lambda tree: tree.variables.update(ASAN_OPTIONS="verbosity=1"), ["asan", "tsan"]),
    (lambda tree: tree.variables.update(OMP_NUM_THREADS="3"), ["asan", "tsan"]),
])
def test_whatever_decides_the_result_is_run_anew(tree, change, again):
    tree.run("--unless-passed")
    change(tree)
    assert tree.run("--unless-passed")[:2] == (0, again)
    assert tree.run("--unless-passed")[:2] == (0, [])


def test_a_library_whose_path_has_a_space_decides_too(tmp_path):
    tree = Tree(tmp_path / "a folder")
    tree.run("--unless-passed")
    tree.compile("libown.so", "int own() { return 2; }", "-shared", "-fPIC")
    assert tree.run("--unless-passed")[1] == ["asan", "tsan"]


def test_a_test_that_replaces_the_filter_is_refused(tree):
    tree.list("tsan", [{"name": "ENVIRONMENT", "value": ["GTEST_FILTER=*"]}])
    result = subprocess.run([tree.root / "scripts/run_sanitizers"], env=tree.variables, capture_output=True, text=True)
    assert result.returncode == 1 and "ran tsan" not in result.stdout
    assert result.stderr == ("run_sanitizers: tsan: kernels: a CTest property sets GTEST_FILTER, which would replace the "
                             "filter of this script; remove it from the test's CMakeLists.txt\n")


def test_without_a_compiler_cache_the_build_folder_remembers(tree):
    tree.variables["CCACHE_DISABLE"] = "1"
    assert tree.run("--unless-passed")[1] == ["asan", "tsan"]
    assert len(list((tree.root / "build/checks").iterdir())) == 2 and not (tree.root / "cache").exists()
    assert tree.run("--unless-passed")[1] == []


def test_a_folder_that_cannot_be_written_costs_the_memory_only(tree):
    (tree.root / "cache").write_text("no folder")
    for _ in range(2):
        status, ran, said = tree.run("--unless-passed")
        assert (status, ran) == (0, ["asan", "tsan"])
        assert said.count("passed, but not remembered") == 2


def test_the_compiler_cache_may_be_emptied_and_keeps_the_memory(tree):
    tree.run("--unless-passed")
    subprocess.run(["ccache", "--clear"], env=tree.variables, check=True, stdout=subprocess.DEVNULL)
    assert tree.run("--unless-passed")[1] == []


def test_a_program_can_be_left_out(tree):
    assert "asan: kernels ops cuda_emulator" in tree.run()[2]
    assert "asan: kernels cuda_emulator" in tree.run("--without", "ops")[2]


@pytest.mark.parametrize("arguments, named", [(["--unless"], "--unless"), (["--without", "opps"], "'opps'")])
def test_wrong_arguments_are_answered_with_the_usage(tree, arguments, named):
    result = subprocess.run([tree.root / "scripts/run_sanitizers", *arguments], capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr.startswith("usage: run_sanitizers [-h] [--unless-passed] [--without NAME]\n")
    assert named in result.stderr

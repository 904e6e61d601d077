"""scripts/check_instructions finds planted slowdowns and figures that hide one, and says why it skips."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
PROGRAM = BUILD / "tests/instructions/tests_instructions"
FEW = ("abn_forward f32 NCHW", "max_pool_backward bf16 channels-last", "conv2d_forward winograd 3x3")
CASES = {"first": 2.0, "second": 10.0}

needs_valgrind = pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")


def counts_of_few(check, instruction_set, calls=1):
    """{case: instructions per value}; skips the test where the build, or valgrind, lacks the instruction set."""
    try:
        return check.counts(PROGRAM, instruction_set, calls, FEW)[1]
    except check.Skipped as reason:
        pytest.skip(str(reason))


@pytest.fixture
def check():
    loader = importlib.machinery.SourceFileLoader("check_instructions", str(ROOT / "scripts/check_instructions"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_instructions", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def counting(check, monkeypatch):
    """The script, with stand-in counts of a compiler: counting(compiler, cases)."""
    def stand_in(compiler="GNU 12.2.0", cases=CASES):
        monkeypatch.setattr(check, "counts", lambda program, instruction_set: (compiler, dict(cases)))
        return check
    return stand_in


def stored(path, compiler="GNU 12", **cases):
    path.write_text(json.dumps({compiler: {"compiler": f"{compiler}.1", "x86-64-v2": {**CASES, **cases},
                                           "x86-64-v3": {**CASES, **cases}}}))
    return path


@needs_valgrind
@pytest.mark.parametrize("instruction_set", ["x86-64-v2", "x86-64-v3"])
def test_a_kernel_that_runs_twice_is_found_in_every_case(check, instruction_set):
    once, again = counts_of_few(check, instruction_set), counts_of_few(check, instruction_set)
    assert tuple(once) == FEW and once == again and not list(check.findings(instruction_set, again, once))
    found = list(check.findings(instruction_set, counts_of_few(check, instruction_set, calls=2), once))
    assert len(found) == len(FEW)
    assert all(line.startswith(f"{name}, {instruction_set}: ") and ", at most +5 %): a slowdown; " in line
               for name, line in zip(FEW, found))


@needs_valgrind
def test_narrower_vectors_are_found(check):
    wide, narrow = counts_of_few(check, "x86-64-v3"), counts_of_few(check, "x86-64-v2")
    assert len(list(check.findings("x86-64-v3", narrow, wide))) == len(FEW)


@needs_valgrind
def test_an_instruction_set_that_does_not_run_here_is_skipped(check):
    with pytest.raises(check.Skipped, match="x86-64-v9: PALIMPSEST_ISA must name an instruction set that runs here"):
        check.counts(PROGRAM, "x86-64-v9", cases=FEW)


@needs_valgrind
def test_a_run_that_fails_is_named(check):
    with pytest.raises(check.Failed, match="exit status 2: .*there is no case 'abn'"):
        check.counts(PROGRAM, "", cases=("abn",))


@pytest.mark.parametrize("arguments, said", [
    ([], "got no CALLS"),
    (["0"], "CALLS is a whole number above 0, got '0'"),
    (["1", "abn"], "there is no case 'abn'"),
])
def test_the_program_refuses_wrong_arguments(arguments, said):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr


@pytest.mark.parametrize("counted, said", [
    (2.1, ""),
    (2.102, "first, x86-64-v2: 2.102 instructions per value, figure 2.000 (+5.1 %, at most +5 %): a slowdown; where it is "
            "meant, run scripts/check_instructions BUILD_DIR --write"),
    (1.82, ""),
    (1.8, "first, x86-64-v2: 1.800 instructions per value, figure 2.000 (-10.0 %): the figure can be lowered: "
          "run scripts/check_instructions BUILD_DIR --write"),
])
def test_the_bounds_of_a_figure(counting, tmp_path, capsys, counted, said):
    status = counting(cases={**CASES, "first": counted}).compare(PROGRAM, stored(tmp_path / "figures.json"))
    lines = capsys.readouterr().out.splitlines()
    assert status == (1 if said else 0)
    assert lines == ([said, said.replace("-v2", "-v3")] if said else ["4 counts: none is more than 5 % above its figure"])


def test_a_case_without_figure_and_a_figure_without_case_are_found(counting, tmp_path, capsys):
    status = counting().compare(PROGRAM, stored(tmp_path / "figures.json", old=1.0))
    assert status == 1 and "old, x86-64-v2: has a figure, but the program has no such case" in capsys.readouterr().out
    status = counting(cases={**CASES, "new": 1.0}).compare(PROGRAM, stored(tmp_path / "figures.json"))
    assert status == 1 and "new, x86-64-v3: has no figure" in capsys.readouterr().out


def test_another_compiler_is_skipped_by_name_until_its_figures_are_stored(counting, tmp_path, capsys):
    path, check = stored(tmp_path / "figures.json"), counting("GNU 14.1.0")
    assert check.compare(PROGRAM, path) == check.SKIPPED
    assert capsys.readouterr().out.splitlines()[0] == (
        "skipped: figures.json has figures of GNU 12, this is GNU 14.1.0: scripts/check_instructions BUILD_DIR --write adds "
        "those of this compiler")
    assert check.write(PROGRAM, path) == 0 and check.compare(PROGRAM, path) == 0
    known = json.loads(path.read_text())
    assert list(known) == ["GNU 12", "GNU 14"] and known["GNU 14"]["x86-64-v3"] == CASES
    assert counting("GNU 12.9.9").compare(PROGRAM, path) == 0


def test_one_set_that_is_skipped_leaves_the_other_compared(check, tmp_path, capsys, monkeypatch):
    def counts(program, instruction_set):
        if instruction_set == "x86-64-v3":
            raise check.Skipped("x86-64-v3: not here")
        return "GNU 12.2.0", dict(CASES)

    monkeypatch.setattr(check, "counts", counts)
    path = stored(tmp_path / "figures.json")
    assert check.compare(PROGRAM, path) == 0
    assert capsys.readouterr().out.splitlines() == ["skipped: x86-64-v3: not here",
                                                    "2 counts: none is more than 5 % above its figure"]
    before = path.read_text()
    with pytest.raises(check.Skipped):
        check.write(PROGRAM, path)
    assert path.read_text() == before


def script(*arguments, **environment):
    return subprocess.run([sys.executable, ROOT / "scripts/check_instructions", *map(str, arguments)], capture_output=True,
                          text=True, env={**os.environ, **environment})


@pytest.mark.parametrize("arguments", [[BUILD], [BUILD, "--write"]])
def test_without_valgrind_it_is_skipped_by_name(tmp_path, arguments):
    before = (ROOT / "tests/instructions/figures.json").read_text()
    done = script(*arguments, PATH=str(tmp_path))
    assert done.returncode == 77 and "skipped: valgrind is not installed: apt-get install valgrind\n" in done.stdout
    assert (ROOT / "tests/instructions/figures.json").read_text() == before


@pytest.mark.parametrize("arguments, said", [
    ([], "BUILD_DIR"),
    (["nowhere"], "BUILD_DIR needs tests/instructions/tests_instructions, which release builds have, got 'nowhere'"),
    ([BUILD, "--wrote"], "--wrote"),
])
def test_a_wrong_call_is_one_line_and_status_2(arguments, said):
    done = script(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr


def test_a_broken_table_is_named(check, tmp_path):
    (tmp_path / "figures.json").write_text("{")
    with pytest.raises(check.Failed, match="figures.json is no JSON file"):
        check.compare(PROGRAM, tmp_path / "figures.json")

"""The benchmark in Python on shapes of no size: what it prints and writes, what it refuses. Nothing here is timed."""
import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
SCRIPT = ROOT / "benchmarks/python_layer_time.py"

sys.path.insert(0, str(SCRIPT.parent))
import python_layer_time as benchmark  # noqa: E402
import support  # noqa: E402

torch.set_num_threads(1)  # the tensors are too small to share, and a pool of threads spins on a busy machine
SMALL = ["--shape", "3,4,5,3", "--repeats", "3"]
# A layer of libtorch's behind the names that the benchmark imports from the package.
STAND_IN = """
from torch.nn import functional
def inplace_abn(x, weight, bias, mean, var, training, momentum, eps, activation, param):
    assert (training, activation) == (True, "leaky_relu")
    return functional.leaky_relu(functional.batch_norm(x, mean, var, weight, bias, training, momentum, eps), param)
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the program within this process: (status, stdout, stderr)."""
    def run(*arguments):
        for name, value in support.RETAINING_MALLOC.items():
            monkeypatch.setenv(name, value)
        for name in [name for name in sys.modules if name.split(".")[0] == "inplace_abn"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--build", str(BUILD), *map(str, arguments)])
        try:
            status = benchmark.main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    monkeypatch.delenv("PALIMPSEST_INPLACE_ABN", raising=False)
    return run


def package(folder, functions=STAND_IN):
    (folder / "inplace_abn").mkdir(parents=True)
    for name, text in (("__init__.py", ""), ("functions.py", functions), ("_backend.py", "")):
        (folder / "inplace_abn" / name).write_text(text)
    return folder


def test_the_json_file_has_the_form_of_the_other_benchmarks(run, tmp_path):
    status, printed, _ = run(*SMALL, "--opponents", "eager,inplace_abn", "--inplace-abn", package(tmp_path / "at"),
                             "--json", tmp_path / "out.json")
    table = json.loads((tmp_path / "out.json").read_text())
    committed = json.loads((ROOT / "docs/results/layer_time.json").read_text())
    assert status == 0
    of_some = ("instruction_set", "libtorch_instruction_set")  # of benchmarks in C++
    assert [key for key in table if key not in of_some] == [key for key in committed if key not in of_some]
    assert table["commit"]
    assert (table["benchmark"], table["repeats"]) == ("python_layer_time", 3)
    assert [row["claim"] for row in table["rows"]] == ["[3, 4, 5, 3] NCHW"] * 2 + ["[3, 4, 5, 3] channels-last"] * 2
    for row in table["rows"]:
        assert list(row) == list(committed["rows"][0])
        assert row["ratio"] == row["measured"]["median"] / row["opponent"]["median"]
        assert row["claim"] in printed and row["opponent_name"] in printed
        for side in ("opponent", "measured"):
            assert 0 < row[side]["low"] <= row[side]["median"] <= row[side]["high"]
            assert row[side]["runs"] == 3
    control, claim = table["rows"][:2]
    assert (control["limit"], control["pass"]) == (None, None) and "control" in printed
    assert (claim["opponent_name"], claim["limit"], claim["pass"]) == ("inplace_abn", 0.1, claim["ratio"] <= 0.1)
    assert table["pass"] == all(row["pass"] is not False for row in table["rows"])


def test_without_the_package_its_rows_say_so_and_no_claim_fails(run, tmp_path):
    status, printed, _ = run(*SMALL, "--opponents", "inplace_abn", "--json", tmp_path / "out.json", "--check")
    assert status == 0
    assert printed.count("inplace_abn: not measured: name a folder") == 2
    assert "every measured claim holds, 2 not measured" in printed
    table = json.loads((tmp_path / "out.json").read_text())
    for row in table["rows"]:
        assert [row[key] for key in ("opponent", "measured", "ratio", "pass")] == [None] * 4
        assert "--inplace-abn" in row["not_measured"]


def test_a_file_with_figures_of_the_package_is_not_replaced_by_a_run_without_it(run, tmp_path):
    arguments = [*SMALL, "--opponents", "inplace_abn", "--json", tmp_path / "out.json"]
    assert run(*arguments, "--inplace-abn", package(tmp_path / "at"))[0] == 0
    measured = (tmp_path / "out.json").read_text()
    status, _, said = run(*arguments)
    assert status == 1 and said.count("\n") == 1
    for part in (f"{tmp_path}/out.json has figures for '[3, 4, 5, 3] NCHW'", "--inplace-abn", "another file"):
        assert part in said
    assert (tmp_path / "out.json").read_text() == measured


def test_a_file_without_figures_of_the_package_is_replaced(run, tmp_path):
    arguments = [*SMALL, "--opponents", "eager,inplace_abn", "--json", tmp_path / "out.json"]
    assert [run(*arguments)[0] for _ in range(2)] == [0, 0]


def test_a_claim_that_fails_is_the_exit_status_where_that_is_asked_for(run, monkeypatch):
    impossible = benchmark.Opponent({"eager": benchmark.activation_fresh}, dict.fromkeys(benchmark.LAYOUTS, 0.0), 1e-2)
    monkeypatch.setattr(benchmark, "opponents", lambda package: {"eager": impossible})
    status, printed, _ = run(*SMALL, "--opponents", "eager")
    assert status == 0 and printed.count("0.00  FAIL") == 2 and "a claim FAILED" in printed
    assert run(*SMALL, "--opponents", "eager", "--check")[0] == 1


def test_the_folder_of_the_package_may_come_from_the_environment(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PALIMPSEST_INPLACE_ABN", str(package(tmp_path)))
    status, printed, _ = run(*SMALL, "--opponents", "inplace_abn")
    assert status == 0 and "not measured" not in printed


def test_an_opponent_that_computes_something_else_is_not_timed(run, tmp_path):
    wrong = package(tmp_path, STAND_IN.replace("eps), param)", "eps), 0.3)"))
    status, printed, said = run(*SMALL, "--opponents", "inplace_abn", "--inplace-abn", wrong)
    assert status == 1 and "0.10" not in printed
    assert "inplace_abn: gradient of x differs from libtorch's in f64 by" in said


@pytest.mark.parametrize("arguments, said", [
    (["--inplace-abn", "/nowhere"], "cannot import the compiled package from '/nowhere': No module named"),
    (["--build", "/nowhere"], "--build needs a folder with libpalimpsest_ops.so, got '/nowhere'"),
    (["--opponents", "eager,tensorflow"], "--opponents knows compile, eager, inplace_abn; got 'tensorflow'"),
    (["--shape", "1,2,3"], "four sizes N,C,H,W are needed, got '1,2,3'"),
    (["--repeats", "0"], "a whole number above 0 is needed, got '0'"),
    (["--jsn", "x"], "unrecognized arguments: --jsn x"),
])
def test_a_wrong_option_is_one_line_and_status_2(run, arguments, said):
    status, printed, line = run(*arguments)
    assert (status, printed) == (2, "")
    assert said in line and line.count("\n") == 1


def test_a_package_without_its_compiled_part_is_refused(run, tmp_path):
    folder = package(tmp_path)
    (folder / "inplace_abn/_backend.py").unlink()
    status, _, said = run(*SMALL, "--inplace-abn", folder)
    assert status == 2
    assert f"from '{folder}': No module named 'inplace_abn._backend'" in said


def test_a_package_that_lies_elsewhere_is_not_taken_for_it(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(package(tmp_path / "elsewhere"))
    status, _, said = run(*SMALL, "--inplace-abn", tmp_path)
    assert status == 2 and f"Python found {tmp_path / 'elsewhere/inplace_abn'} instead" in said


def test_a_result_that_cannot_be_written_is_status_1(run, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, said = run(*SMALL, "--opponents", "eager", "--json", tmp_path / "file" / "out.json")
    assert status == 1 and "cannot write" in said


def test_the_program_starts_itself_again_under_malloc_that_retains(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(f"import os, sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import support\n"
                       "support.begin_with_retaining_malloc()\n"
                       "print(sys.argv[1], *(os.environ[name] for name in support.RETAINING_MALLOC))\n")
    environment = {name: value for name, value in os.environ.items() if name not in support.RETAINING_MALLOC}
    result = subprocess.run([sys.executable, program, "kept"], capture_output=True, text=True, env=environment)
    assert result.stdout.split() == ["kept", "4294967296", "17179869184"]


def test_a_wrong_result_of_ours_is_found():
    torch.ops.load_library(str(BUILD / "libpalimpsest_ops.so"))
    values = benchmark.Values((3, 4, 5, 3), torch.channels_last)
    layer = torch.ops.palimpsest.abn_.default
    benchmark.verify("ours", values, layer, benchmark.LARGEST_ERROR)
    with pytest.raises(ArithmeticError, match="ours: running mean differs from libtorch's in f64 by 1.0e-01"):
        benchmark.verify("ours", values, lambda *tensors: layer(*tensors, True, 0.11), benchmark.LARGEST_ERROR)


def test_the_layer_is_the_only_owner_of_its_incoming_gradient():
    for name in ("libpalimpsest_ops.so", "libpalimpsest_benchmark.so"):
        torch.ops.load_library(str(BUILD / name))
    values = benchmark.Values((3, 4, 5, 3), torch.contiguous_format)
    gradients = [values.dz.clone()]
    memory = gradients[0].data_ptr()
    z = torch.ops.palimpsest.abn_(values.x + 0, values.weight, values.bias, None, None)
    head = torch.ops.palimpsest_benchmark.owned_gradient(z, gradients.pop())
    dx, = torch.autograd.grad(head, values.x)
    assert dx.data_ptr() == memory
    want = values.run(lambda *tensors: torch.ops.palimpsest.abn_(*tensors))[0]
    assert dx.equal(want)


def test_programs_of_torch_compile_take_part():
    compiled = benchmark.opponents(None)["compile"].layers
    assert list(compiled) == ["torch.compile, default", "torch.compile, max-autotune-no-cudagraphs"]
    values = benchmark.Values((3, 4, 5, 3), torch.contiguous_format)
    benchmark.verify("compiled", values, compiled["torch.compile, default"], 1e-5)


def test_spread_is_median_and_quartiles_in_any_order():
    assert support.spread_of([5, 1, 4, 2, 3]) == support.Spread(3, 2, 4, 5)
    assert support.spread_of([4, 1]) == support.Spread(2.5, 1.75, 3.25, 2)


def test_sides_take_turns_and_warm_ups_do_not_count():
    calls = []
    sides = [lambda: calls.append("a") or len(calls), lambda: calls.append("b") or 0]
    spreads = support.interleave(sides, 2, warm_up=1)
    assert "".join(calls) == "abbaab"  # none always follows the other
    assert spreads[0] == support.spread_of([4, 5])

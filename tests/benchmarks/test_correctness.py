"""The benchmark of published defects: its truth, what it calls wrong, and the claim about ours at small sizes."""
import dataclasses
import json
import os
import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
SCRIPT = ROOT / "benchmarks/correctness.py"
os.environ.setdefault("PALIMPSEST_LIBRARY", str(BUILD / "libpalimpsest_ops.so"))
sys.path.insert(0, str(SCRIPT.parent))
import correctness as benchmark  # noqa: E402

torch.set_num_threads(1)
SMALL = benchmark.Case("pytorch#1", "nothing", (3, 5, 7, 6))


def smaller(case):
    """The case with at most 64 images and 32x32 pixels."""
    return dataclasses.replace(case, shape=(min(64, case.shape[0]), case.shape[1], *(min(32, side) for side in case.shape[2:])))


@pytest.mark.parametrize("case", benchmark.CASES, ids=lambda case: f"{case.issue} {case.name()}")
def test_ours_is_right_at_a_small_size(case):
    row = benchmark.measure(smaller(case), "cpu")
    assert row["sides"]["ours"]["right"], row


@pytest.mark.parametrize("training", (True, False))
def test_the_truth_is_that_of_torchs_layer_in_f64(training):
    case = dataclasses.replace(SMALL, dtype=torch.float64, parameters=torch.float64, training=training)
    x, dy = benchmark.values_of(case, "cpu")
    layer = benchmark.layers(case, "cpu")["torch"].train(training)
    found = benchmark.run(layer, x, dy)
    assert found.pop("strides") == x.stride()
    assert max(benchmark.units(case, found, x, dy).values()) < 10  # units of f64's epsilon


def faulty(change):
    class Faulty(torch.nn.BatchNorm2d):
        def forward(self, x):
            return change(super().forward(x))

    return Faulty


@pytest.mark.parametrize("change, wrong", [
    (lambda z: z * (1 + 1e-5), ("z", "dx", "dweight")), (lambda z: z + 1e-5, ("z",)), (lambda z: z * float("nan"), ("z", "dx"))])
def test_a_small_fault_is_wrong(monkeypatch, change, wrong):
    monkeypatch.setattr(benchmark.torch.nn, "BatchNorm2d", faulty(change))
    side = benchmark.measure(SMALL, "cpu")["sides"]["torch"]
    assert not side["right"]
    for name in wrong:
        assert side["units"][name] is None or side["units"][name] > benchmark.LIMIT, name


@pytest.mark.parametrize("about, change, as_reported", [
    (("z",), lambda z: z + 1e-5, True), (("dx", "dweight"), lambda z: z + 1e-5, False), (("NaN",), lambda z: z + 1e-5, False),
    (("NaN",), lambda z: z * float("nan"), True), (("layout",), lambda z: z * float("nan"), False), ((), lambda z: z + 1e-5, None)])
def test_a_fault_counts_as_reported_if_it_is_what_the_issue_is_about(monkeypatch, about, change, as_reported):
    monkeypatch.setattr(benchmark.torch.nn, "BatchNorm2d", faulty(change))
    sides = benchmark.measure(dataclasses.replace(SMALL, about=about), "cpu")["sides"]
    assert not sides["torch"]["right"] and sides["torch"]["as_reported"] is as_reported
    assert sides["ours"]["as_reported"] is (False if about else None)


def test_each_case_of_an_issue_says_what_it_is_about():
    names = {*benchmark.RESULTS, "layout", "NaN"}
    for case in benchmark.CASES:
        assert bool(case.about) == bool(case.issue) and set(case.about) <= names


class AnotherLayout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy.contiguous()


def test_another_layout_of_dx_is_wrong(monkeypatch):
    class Layer(torch.nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(AnotherLayout.apply(x))

    monkeypatch.setattr(benchmark.torch.nn, "BatchNorm2d", Layer)
    case = dataclasses.replace(SMALL, layout=benchmark.LAST, about=("layout",))
    sides = benchmark.measure(case, "cpu")["sides"]
    assert not sides["torch"]["layout_of_x"] and not sides["torch"]["right"] and sides["torch"]["as_reported"]
    assert sides["ours"]["layout_of_x"] and sides["ours"]["right"]


def main(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(benchmark, "CASES", [SMALL])
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--build", str(BUILD), *map(str, arguments)])
    return benchmark.main(), *capsys.readouterr()


def test_the_table_is_printed_and_written(monkeypatch, capsys, tmp_path):
    status, printed, _ = main(monkeypatch, capsys, "--check", "--json", tmp_path / "c.json")
    assert status == 0 and "pytorch#1: nothing: [3, 5, 7, 6] f32 NCHW, normal\n  torch  right  z " in printed
    assert "correctness: every claim holds" in printed
    table = json.loads((tmp_path / "c.json").read_text())
    assert table["pass"] and list(table["rows"][0]["sides"]) == ["torch", "ours"]


def test_a_wrong_result_of_ours_fails_the_check(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "LIMIT", 0.0)
    status, printed, _ = main(monkeypatch, capsys, "--check")
    assert status == 1 and "a claim FAILED" in printed and "ours   WRONG" in printed


def test_what_cannot_run_or_be_written_is_one_line(monkeypatch, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(monkeypatch, capsys, "--build", tmp_path)
    assert ended.value.code == 2 and "needs a folder with libpalimpsest_ops.so" in capsys.readouterr().err
    status, _, errors = main(monkeypatch, capsys, "--json", tmp_path / "none/c.json")
    assert status == 1 and "cannot write" in errors
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit) as ended:
            main(monkeypatch, capsys, "--device", "cuda")
        assert ended.value.code == 2 and "torch sees none" in capsys.readouterr().err

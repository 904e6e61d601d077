"""The plan of measurements on a GPU: its limits are those of the document, its units are there to be done, its estimates
belong to rows."""
import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from gpu import estimates, layers, plan, steps  # noqa: E402


def limits(name):
    return next(work for work in plan.PLAN if work.name == name).limits


def documented():
    """The rows of the two tables in docs/results/README.md: (measured, opponent, limit, ratios)."""
    text = (ROOT / "docs/results/README.md").read_text().split("## On a GPU")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return [(what, opponent, limit, ratios) for what, opponent, limit, *ratios in rows if limit != "limit"]


def test_the_document_has_the_limits_of_the_plan():
    bf16 = [limits(plan.named(shape, "channels-last", "bf16")) for shape in plan.SHAPES]
    assert all(each == {"eager": 0.50, "copy": 1 / 0.85} for each in bf16)
    nchw = [limits(plan.named(shape, "NCHW", dtype)) for dtype in ("f32", "f16") for shape in plan.SHAPES]
    assert {each["eager"] for each in nchw} == {0.65}
    assert [each.get("copy") for each in nchw] == 2 * [1 / 0.85, 1 / 0.85, None, None]
    compiled = [work.limits["compiled"] for work in plan.PLAN if work.kind == "compiled" and work.limits]
    packages = {work.limits["inplace_abn"] for work in plan.PLAN if work.kind == "package"}
    assert compiled == [0.90] * 4 and packages == {0.50}
    resnext = limits("ResNeXt-101, batch 128, bf16")
    precisions = limits("ResNet-50, batch 64, f32 and 16 bits")
    assert [limit for _, _, limit, _ in documented()] == [
        f"{limit:.2f}" for limit in
        (0.50, 0.65, 0.65, 1 / 0.85, 1 / 0.85, 1 / 0.85, 0.50, 0.50, 0.90,
         limits("ResNet-50, batch 64, bf16 autocast")["time"], precisions["f16"], precisions["f32"], resnext["time"],
         resnext["kept"], limits("DenseNet-121, batch 128, bf16")["time"], limits("host time of a layer")["host"])]


STEPS = ("ResNet-50, batch 64, bf16 autocast", "ResNet-50, batch 64, f16 autocast", "ResNet-50, batch 64, bf16 against f32",
         "ResNet-50, batch 64, f16 against f32", "ResNeXt-101, batch 128, bf16", "ResNeXt-101, batch 128, bf16: kept",
         "DenseNet-121, batch 128, bf16", "host time of a layer")
OPPONENTS = {"libtorch's eager layers": ": eager", "a copy on the device": ": a copy of [58] passes",
             "CUDA kernels of the inplace_abn package": ", inplace_abn", "torch.compile": ", torch.compile"}


def test_the_document_has_the_ratios_of_the_measurement():
    found = json.loads((ROOT / "docs/results/gpu_nvidia_h100_80gb_hbm3.json").read_text())["rows"]
    measured = {row["row"]: row for row in found if "ratio" in row}
    compared = 0
    rows = documented()
    for what, opponent, _, ratios in rows[:9]:
        for shape, said in zip(plan.SHAPES, ratios, strict=True):
            if not said:
                continue
            name = re.escape(f"{list(shape)} {what.split(',')[0]}") + OPPONENTS[opponent]
            row, = [row for known, row in measured.items() if re.fullmatch(name, known)]
            assert said == (f"{row['ratio']:.3f}" if row["pass"] else f"**{row['ratio']:.3f}**"), name
            compared += 1
    assert compared == 32
    said = [ratio for *_, (ratios,) in rows[9:] for ratio in ratios.split(", ")]
    assert said == [f"{measured[name]['ratio']:.3f}" for name in STEPS] and all(measured[name]["pass"] for name in STEPS)


def test_every_unit_has_a_function_and_a_name_of_its_own():
    kinds = {**layers.KINDS, **steps.KINDS}
    assert len(kinds) == len(layers.KINDS) + len(steps.KINDS)
    assert {work.kind for work in plan.PLAN} == set(kinds)
    assert len({work.name for work in plan.PLAN}) == len(plan.PLAN)
    for work in plan.PLAN:
        names = kinds[work.kind].__code__.co_varnames[:kinds[work.kind].__code__.co_argcount]
        flags = kinds[work.kind].__code__.co_flags & 0x08
        assert flags or set(work.arguments) <= set(names), work.name


def test_the_plan_is_in_the_order_of_importance_and_compilers_come_last():
    assert [work.importance for work in plan.PLAN] == sorted(work.importance for work in plan.PLAN)
    assert {work.kind for work in plan.PLAN if work.importance == plan.LAST} == {"package", "compiled"}
    assert plan.PLAN[-1].kind == "compiled"


def test_narrow_and_odd_channels_have_the_bytes_of_the_largest_shape():
    whole = 64 * 256 * 56 * 56
    for channels in (32, 16, 8, 19, 3):
        n, c, h, w = plan.same_bytes(channels)
        assert c == channels and 0.99 < n * c * h * w / whole <= 1


def test_the_large_tensor_has_more_values_than_32_bits_count():
    n, c, h, w = next(work for work in plan.PLAN if work.kind == "large").arguments["shape"]
    assert n * c * h * w == 2**31 + 2**27


def row_names():
    """Names of rows, as far as the plan tells them."""
    for work in plan.PLAN:
        yield work.name
        if work.kind == "layer":
            count = layers.passes(work.arguments["shape"], work.arguments["layout"], layers.DTYPES[work.arguments["dtype"]])
            yield from (f"{work.name}: eager", f"{work.name}: a copy of {count} passes")
        elif work.kind == "pool":
            yield from (f"{work.name}, forward", f"{work.name}, backward")
        elif work.kind == "step":
            yield f"{work.name}: host"
        elif work.kind == "kernels":
            yield from (f"{work.name.removeprefix('kernels of ')}: {kernel}" for kernel in layers.PASSES_OF)


def test_every_estimate_belongs_to_a_row():
    assert set(estimates.ESTIMATES) | set(estimates.RATIOS) <= set(row_names())


@pytest.mark.parametrize("measured, ratio, wrong", [(0.050, 1.0, False), (0.060, 1.2, False), (0.064, 1.28, True),
                                                    (0.039, 0.78, True)])
def test_a_figure_beyond_a_quarter_is_a_wrong_estimate(measured, ratio, wrong):
    found, = estimates.compared(f"{estimates.HEADLINE}: apply_kernel", measured, "ms", None)
    assert found["ratio"] == pytest.approx(ratio) and found["wrong"] is wrong


def test_within_a_range_nothing_is_wrong_and_beyond_it_its_nearest_end_counts():
    reduce = f"{estimates.HEADLINE}: backward_reduce_kernel"
    read, mended = estimates.compared(reduce, 0.07, "ms", None)
    assert (read["ratio"], read["wrong"]) == (1, False) and (mended["ratio"], mended["wrong"]) == (pytest.approx(1.4), True)
    assert estimates.compared(reduce, 0.16, "ms", None)[0]["ratio"] == pytest.approx(2)
    eager, = estimates.compared(f"{estimates.HEADLINE}: eager", 0.3, "ms", 0.42)
    assert eager["ratio"] == pytest.approx(0.7) and eager["wrong"]
    assert estimates.compared("another row", 1, "ms", 1) == []
    with pytest.raises(ValueError, match="has 0.07 MB, its estimate is in ms"):
        estimates.compared(reduce, 0.07, "MB", None)

"""The benchmark of GPUs on a machine that has none: its network, its rows, and what it says. Nothing here is timed."""
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
import torch
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
sys.path.insert(0, str(ROOT / "benchmarks"))
import autocast  # noqa: E402
import densenet  # noqa: E402
import gpu_time as benchmark  # noqa: E402
import preact_resnext  # noqa: E402
import support  # noqa: E402

torch.set_num_threads(1)
torch.ops.load_library(str(BUILD / "libpalimpsest_ops.so"))
NORMS = (preact_resnext.StandardNorm, preact_resnext.InPlaceNorm)
SMALL = dict(blocks=(2, 2, 1, 1), width=8, groups=4, classes=7)
TINY = dict(blocks=(1, 1), width=4, groups=1, expansion=4, classes=7)  # f16 convolutions are slow on a CPU
SMALL_DENSENET = dict(blocks=(2, 3, 2), growth=4, classes=7)


def sides(dtype):
    torch.manual_seed(1)
    images = torch.randn(3, 3, 64, 64, dtype=dtype).contiguous(memory_format=torch.channels_last)
    return [preact_resnext.Side(norm, images, torch.tensor([1, 2, 3]), "cpu", **SMALL) for norm in NORMS]


def densenets(dtype):
    torch.manual_seed(1)
    images = torch.randn(3, 3, 32, 32, dtype=dtype).contiguous(memory_format=torch.channels_last)
    return [preact_resnext.Side(ours, images, torch.tensor([1, 2, 3]), "cpu", densenet.Network, **SMALL_DENSENET)
            for ours in (False, True)]


@pytest.mark.parametrize("pair", (sides, densenets))
def test_both_networks_take_the_same_steps(pair):
    standard, inplace = pair(torch.float64)
    for _ in range(3):
        assert torch.allclose(standard.step(), inplace.step(), rtol=1e-9)
    for (name, want), got in zip(standard.network.named_parameters(), inplace.network.parameters()):
        assert torch.allclose(want, got, rtol=1e-7, atol=1e-9), name
    for want, got in zip(standard.network.buffers(), inplace.network.buffers()):
        assert got.dtype == torch.int64 or torch.allclose(want, got, rtol=1e-9)


def test_in_bf16_weights_are_and_normalizations_are_not():
    for side in sides(torch.bfloat16):
        kinds = {type(module): {p.dtype for p in module.parameters(recurse=False)} for module in side.network.modules()}
        assert kinds[torch.nn.Conv2d] == {torch.bfloat16}
        assert kinds.get(NORMS[0], kinds.get(NORMS[1])) == {torch.float32}
        assert side.step().isfinite()


@pytest.mark.parametrize("model, step", (("resnext101_preact", benchmark.RESNEXT), ("densenet121", benchmark.DENSENET)))
def test_the_network_is_that_of_the_program(model, step):
    said = subprocess.run([BUILD / "palimpsest", "info", "--model", model, "--json"], capture_output=True, text=True,
                          check=True).stdout
    with torch.device("meta"):
        network = step.network(step.kinds[0])
    assert sum(p.numel() for p in network.parameters()) == json.loads(said)["parameters"]


def saved_bytes(side):
    """Returns the bytes of every tensor but the weights that a loss saves for backward."""
    own = {p.untyped_storage().data_ptr() for p in [*side.network.parameters(), side.images]}
    found = {}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = side.loss()
    assert loss.isfinite()
    return sum(found.values())


def test_in_place_keeps_less_than_half():
    standard, inplace = map(saved_bytes, sides(torch.float32))
    assert inplace / standard < 0.52


@pytest.fixture
def on_the_cpu(monkeypatch, capsys):
    """A report whose rows are measured on the CPU, and what was printed."""
    monkeypatch.setattr(benchmark, "DEVICE", "cpu")
    monkeypatch.setattr(benchmark, "milliseconds_on_the_device", support.milliseconds_of)
    monkeypatch.setattr(torch, "compile", lambda layer, **options: layer)
    monkeypatch.setattr(torch.cuda, "memory_allocated", iter([100, 300, 100, 200]).__next__)
    report = support.Report("gpu_time", types.SimpleNamespace(json=None, repeats=2, check=False))
    return report, capsys


def claims(report):
    return [(row.opponent_name, row.limit, row.not_measured) for row in report.rows]


def test_a_layer_has_a_row_for_each_opponent(on_the_cpu, monkeypatch):
    report, _ = on_the_cpu
    shape = (4, 8, 6, 5)
    monkeypatch.setattr(benchmark, "SHAPES", [shape, (1, 1, 1, 1)])
    benchmark.measure(shape, "channels-last", torch.float32, 0.6, 0.95, 1e9, benchmark.fresh, 2, report)
    eager, compiled, bandwidth, package = claims(report)
    assert eager[0].startswith("batch_norm + leaky_relu") and eager[1] == 0.6
    assert compiled == ("torch.compile", 0.95, "")
    assert bandwidth == ("5 passes of a copy", 1 / 0.85, "")
    assert package == ("inplace_abn", 0.6, "")
    assert all(row.ratio > 0 for row in report.rows)


def test_a_package_that_is_not_there_or_cannot_or_is_wrong_is_not_measured(on_the_cpu):
    report, _ = on_the_cpu

    def refuses(*tensors):
        raise RuntimeError("no kernel for this dtype\nand more")

    values = benchmark.Values((4, 8, 6, 5), "NCHW", torch.float32)
    for package in ("name a folder", refuses, lambda x, *rest: benchmark.fresh(2 * x, *rest) * 2):
        benchmark.measure_package(package, "claim", values, 2, report)
    said = [row.not_measured for row in report.rows]
    assert said[:2] == ["name a folder", "no kernel for this dtype"]
    assert said[2].startswith("inplace_abn: output differs from libtorch's in f64 by")


def test_a_step_has_a_row_of_time_and_one_of_bytes(on_the_cpu, monkeypatch):
    report, _ = on_the_cpu
    side = preact_resnext.Side
    monkeypatch.setattr(preact_resnext, "Side", lambda *arguments: side(*arguments, **SMALL))
    benchmark.measure_step(benchmark.RESNEXT, 4, 64, 2, report)
    time, kept = report.rows
    assert (time.claim, time.limit) == ("ResNeXt-101 step, batch 4, bf16", 0.92)
    assert (kept.claim, kept.unit, kept.ratio, kept.limit) == ("ResNeXt-101 step, batch 4, bf16, kept", "MB", 0.5, 0.52)


def test_a_precision_has_a_row_against_f32_and_one_against_the_standard_layers(on_the_cpu, monkeypatch):
    report, _ = on_the_cpu
    monkeypatch.setattr(autocast, "RESNET50", {**TINY, "classes": 1000})
    benchmark.measure_precisions(4, 32, 1, report)
    assert [(row.claim, row.opponent_name, row.limit) for row in report.rows] == [
        (f"ResNet-50 step, batch 4, {precision}", opponent, limit) for precision in ("bf16", "f16")
        for opponent, limit in (("ours in f32", 0.5), ("standard layers", 0.95))]
    assert all(row.ratio > 0 for row in report.rows)


def test_under_autocast_weights_stay_f32_and_gradients_are_unscaled():
    torch.manual_seed(1)
    images = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    for kind in NORMS:
        made = [autocast.Side(kind, images, torch.tensor([1, 2, 3, 4]), "cpu", precision, **TINY)
                for precision in (torch.float32, torch.bfloat16, torch.float16)]
        losses = [side.step() for side in made]
        want = torch.cat([p.grad.flatten() for p in made[0].network.parameters()])
        for side, loss in zip(made, losses):
            got = torch.cat([p.grad.flatten() for p in side.network.parameters()])
            assert got.dtype == torch.float32 and torch.allclose(loss, losses[0], rtol=0.02)
            assert 0.5 < got.norm() / want.norm() < 2
            assert functional.cosine_similarity(got, want, dim=0) > 0.9
        assert losses[0] != losses[1] != losses[2], "autocast had no effect"


def test_tf32_is_as_it_was_afterwards():
    before = torch.backends.cudnn.allow_tf32
    with pytest.raises(ValueError):
        with autocast.exact_f32():
            assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
            raise ValueError
    assert torch.backends.cudnn.allow_tf32 == before


def test_resnet50_has_its_parameters():
    with torch.device("meta"):
        network = preact_resnext.Network(NORMS[0], **autocast.RESNET50)
    # He et al.'s 25,557,032 with the normalizations of pre-activation: a block's first and third change places in width
    assert sum(p.numel() for p in network.parameters() if p.dim() == 4) == 23_454_912


def test_too_little_memory_is_said(on_the_cpu, monkeypatch):
    report, _ = on_the_cpu

    def fails(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(preact_resnext, "Side", fails)
    benchmark.measure_step(benchmark.DENSENET, 2, 32, 2, report)
    assert claims(report) == [("standard layers", None, "the device has too little memory for it")]


def test_a_checkout_is_compiled_and_one_that_does_not_compile_says_why(tmp_path):
    package = benchmark.inplace_abn_package
    (tmp_path / "inplace_abn").mkdir()
    (tmp_path / "src").mkdir()
    with pytest.raises(ImportError, match="neither a compiled package nor its sources"):
        package.build(tmp_path, tmp_path / "build", cuda=False)
    (tmp_path / "src/broken.cpp").write_text("#error the wrong compiler\n")
    with pytest.raises(ImportError, match="do not compile: .*the wrong compiler"):
        package.build(tmp_path, tmp_path / "build", cuda=False)
    assert not (tmp_path / "inplace_abn/_backend.py").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_measures_nothing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_time.py", "--build", str(BUILD)])
    with pytest.raises(SystemExit) as end:
        benchmark.main()
    assert end.value.code == 2 and "no CUDA device" in capsys.readouterr().err

"""The training steps that a GPU is timed with, on a machine that has none: their networks and their rows."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests/benchmarks")]
import autocast  # noqa: E402
import densenet  # noqa: E402
import preact_resnext  # noqa: E402
from gpu import measuring, steps  # noqa: E402
from gpu_support import context_on_the_cpu, work  # noqa: E402
from support import interleave  # noqa: E402

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


# The benchmark's ResNeXt has one 7x7 convolution for a stem; the program's has three of 3x3 and two normalizations.
STEMS = 64 * 9 * (3 + 64 + 64) + 2 * 2 * 64 - 64 * 3 * 49


@pytest.mark.parametrize("model, make, more", (("resnext101_preact", lambda: preact_resnext.Network(NORMS[0]), STEMS),
                                               ("densenet121", lambda: densenet.Network(False), 0)))
def test_the_network_is_that_of_the_program(model, make, more):
    said = subprocess.run([BUILD / "palimpsest", "info", "--model", model, "--size", "32", "--json"], capture_output=True, text=True,
                          check=True).stdout
    with torch.device("meta"):
        network = make()
    assert sum(p.numel() for p in network.parameters()) + more == json.loads(said)["parameters"]


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
def context(monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_allocated", iter([100, 300, 100, 200]).__next__)
    monkeypatch.setattr(steps, "FEWEST_REPEATS", 1)
    monkeypatch.setattr(steps, "interleave", lambda sides, repeats: interleave(sides, repeats, warm_up=0))
    return context_on_the_cpu(monkeypatch)


def test_a_step_has_rows_of_time_of_bytes_and_of_the_host(context, monkeypatch):
    side = preact_resnext.Side
    monkeypatch.setattr(preact_resnext, "Side", lambda *arguments: side(*arguments, **SMALL))
    unit = work("step", "ResNeXt", dict(network="resnext101", batch=4, size=64), time=1e9, kept=0.52)
    time, kept, host = measuring.rows_of(unit, steps.KINDS, context)
    assert (time["row"], time["opponent_name"], time["outcome"]) == ("ResNeXt", "standard layers", "passed")
    assert (kept["row"], kept["unit"], kept["ratio"], kept["limit"], kept["pass"]) == ("ResNeXt: kept", "MB", 0.5, 0.52, True)
    assert (host["row"], host["unit"], host["measured"]["median"]) == ("ResNeXt: host", "ms", 1.0)


def test_a_loss_that_differs_is_a_failure(context, monkeypatch):
    class Wrong(preact_resnext.Side):
        def step(self):
            return super().step() * (2 if self.network.bn_out.__class__ is NORMS[1] else 1)

    monkeypatch.setattr(preact_resnext, "Side", lambda *arguments: Wrong(*arguments, **SMALL))
    unit = work("step", "ResNeXt", dict(network="resnext101", batch=4, size=64))
    row, = measuring.rows_of(unit, steps.KINDS, context)
    assert row["outcome"] == "failed" and row["reason"].startswith("ResNeXt: the sides have losses of ")


def test_16_bits_have_a_row_against_f32_and_f16_one_against_the_standard_layers(context, monkeypatch):
    monkeypatch.setattr(autocast, "RESNET50", {**TINY, "classes": 1000})
    unit = work("precisions", "ResNet-50, batch 4, f32 and 16 bits", dict(batch=4, size=32), f32=0.5, f16=0.95)
    assert [(row["row"], row["opponent_name"], row["limit"]) for row in measuring.rows_of(unit, steps.KINDS, context)] == [
        ("ResNet-50, batch 4, bf16 against f32", "ours in f32", 0.5),
        ("ResNet-50, batch 4, f16 against f32", "ours in f32", 0.5),
        ("ResNet-50, batch 4, f16 autocast", "standard layers", 0.95)]


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


def test_too_little_memory_is_said(context, monkeypatch):
    def fails(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(preact_resnext, "Side", fails)
    row, = measuring.rows_of(work("step", "step", dict(network="densenet121", batch=2)), steps.KINDS, context)
    assert (row["outcome"], row["reason"]) == ("not run", "the device has too little memory for it")

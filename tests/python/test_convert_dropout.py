"""Dropouts keep a byte per value, or nothing of their own, and drop what torch's would."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from palimpsest._convert import sources
from test_convert_layers import assert_all_close, assert_same_after
from test_convert_readers import A_BYTES, MADE_AGAIN, Network, X, kept_bytes

DROPOUTS = {"dropout": F.dropout, "one dimension": F.dropout1d, "two dimensions": F.dropout2d, "three dimensions": F.dropout3d}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", DROPOUTS)
def test_values_and_gradients_are_torchs_to_the_last_bit(name, rate, dtype):
    dropout = DROPOUTS[name]
    shape = {"one dimension": (3, 5, 7), "three dimensions": (5, 3, 4, 4)}.get(name, (3, 5, 8, 9))  # 5, 3, 4, 4: one image
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    x.view(-1)[:4] = torch.tensor([float("inf"), -0.0, float("nan"), -1.5])
    results = []
    for kept in (False, True):
        torch.manual_seed(1)
        leaf = x.clone().requires_grad_()
        values = leaf * 1
        z, again = sources.keeping_mask(dropout, rate, values, rate) if kept else (dropout(values, rate), None)
        z.backward(torch.linspace(-1, 1, z.numel(), dtype=dtype).view_as(z))
        results.append([z.detach(), leaf.grad])
    if again is not None:
        results[1].append(again(x))
        results[0].append(results[0][0])
    assert (again is None) == (rate == 0)
    for got, want in zip(results[1], results[0], strict=True):
        assert got.shape == want.shape and got.stride() == want.stride()
        assert torch.equal(got.nan_to_num(nan=123.0), want.nan_to_num(nan=123.0))
        assert torch.equal(torch.signbit(got.nan_to_num()), torch.signbit(want.nan_to_num()))


ALONE = {  # no convolution reads it
    "function": lambda m, a, b: F.dropout(a + m.transposed(b), 0.3, m.training).square(),
    "module": lambda m, a, b: m.drop(a + m.transposed(b)).square(),
    "by keywords": lambda m, a, b: F.dropout(a + m.transposed(b), training=m.training, p=0.3).square(),
    "twice": lambda m, a, b: m.drop(m.drop(a + m.transposed(b))).square(),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ALONE)
def test_a_dropout_keeps_a_byte_per_value(name, channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = Network(ALONE[name]).to(memory_format=layout)
    assert_same_after(model, X.contiguous(memory_format=layout))
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    difference = kept_bytes(model) - kept_bytes(converted)
    assert difference >= A_BYTES * 7 // 8


LEFT = {
    "in place": lambda m, a, b: m.last_of_8(F.dropout(m.up(b) * 2, 0.3, True, True)),
    "in place by keyword": lambda m, a, b: m.last_of_8(F.dropout(m.up(b) * 2, 0.3, inplace=True)),
    "in place by a module": lambda m, a, b: m.last_of_8(nn.Dropout(0.3, inplace=True)(m.up(b) * 2)),
    "by keywords": lambda m, a, b: m.last_of_8(F.dropout(input=a, p=0.3)),
    "of images": lambda m, a, b: m.last_of_8(F.dropout(torch.cat([X, X], 1), 0.3)) + a.mean(),
    "alpha": lambda m, a, b: m.last_of_8(F.alpha_dropout(a, 0.3, True)),
    "a rate of the graph": lambda m, a, b: m.last_of_8(F.dropout(a, 0.05 * a.dim())),
    "a value that is written over": lambda m, a, b: m.last_of_8(t := F.dropout(m.up(b) * 2, 0.3)) * t.mul_(1).mean(),
    "its input is written over": lambda m, a, b: m.last_of_8(F.dropout(t := m.up(b) * 2, 0.3)) + t.zero_().mean(),
    "it is returned": lambda m, a, b: (m.last_of_8(t := F.dropout(m.up(b), 0.3)), t)[0],
}


@pytest.mark.parametrize("name", LEFT)
def test_dropouts_of_other_forms(name):
    model = Network(LEFT[name], nn.SiLU)
    if name == "a value that is written over":  # torch's error, in both
        for network in (model, palimpsest.convert(copy.deepcopy(model))[0]):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                network(X).sum().backward()
        return
    assert_same_after(model, X)


@pytest.mark.parametrize("name", ["dropout", "nn.Dropout", "nn.Dropout2d"])
@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU, nn.LeakyReLU])
def test_evaluation_and_other_rates(name, act):
    model = Network(MADE_AGAIN[name], act)

    def change(network):
        for module in (network.drop, network.drop_channels):
            module.p = next(rates)

    for of_second in (0.0, 1.0, 0.7):
        rates = iter([of_second] * 8)
        assert_same_after(model, X, change)
    assert_same_after(model, X, lambda network: network.eval())
    assert_same_after(model.eval(), X, lambda network: network.train())


@pytest.mark.parametrize("name", ["dropout", "nn.Dropout2d"])
def test_a_larger_batch_keeps_no_dropped_values(name):
    """Of norm, SiLU, dropout and convolution one tensor stays, and the mask."""
    model = Network(MADE_AGAIN[name], nn.SiLU)
    without = Network(lambda m, a, b: m.last_of_8(a if name == "dropout" else m.up(b)), nn.SiLU)
    x = X.repeat(8, 1, 1, 1)
    kept, kept_without = (kept_bytes(palimpsest.convert(network)[0], x) for network in (model, without))
    assert kept <= kept_without + 8 * A_BYTES // 8 * (1.1 if name == "dropout" else 0.2)


def test_a_dropout_in_a_network_under_two_backward_passes():
    model = Network(MADE_AGAIN["dropout"])
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    results = []
    for network in (model, converted):
        torch.manual_seed(3)
        y = network(X)
        results.append([g for _ in range(2) for g in torch.autograd.grad(y.square().sum(), [network.last_of_8.weight, network.first.weight],
                                                                         retain_graph=True)])
    assert_all_close(results[1], results[0])

"""Activations that a forward writes out by their formula."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest


class Written(nn.Module):
    """Convolution, normalization, an activation by its formula, convolution."""

    def __init__(self, formula, **parts):
        super().__init__()
        torch.manual_seed(0)
        self.formula = formula
        self.conv1, self.norm, self.conv2 = nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
        for name, part in parts.items():
            setattr(self, name, part)
        self.double()

    def forward(self, x):
        return self.conv2(self.formula(self, self.norm(self.conv1(x))))


def step(model, x):
    model.zero_grad()
    y = model(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters()), *model.buffers()]


def kinds_of(model):
    """The kinds of the layers of a converted network, whose step is the original's."""
    converted, report = palimpsest.convert(copy.deepcopy(model))
    x = 4 * torch.randn(2, 4, 5, 5, dtype=torch.float64)
    for got, want in zip(step(converted, x), step(model, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    return [layer.kind for layer in report.layers]


@pytest.mark.parametrize(("activation", "formula"), [
    ("silu", lambda m, x: x * x.sigmoid()),
    ("silu", lambda m, x: torch.sigmoid(x) * x),
    ("silu", lambda m, x: x.mul(m.gate(x))),
    ("silu", lambda m, x: torch.mul(F.sigmoid(x), x)),
    ("hardswish", lambda m, x: x * F.relu6(x + 3, inplace=True) / 6),
    ("hardswish", lambda m, x: x * (m.relu6(3.0 + x) / 6.0)),
    ("hardswish", lambda m, x: F.hardtanh(torch.add(x, 3), 0.0, 6.0).div(6) * x),
])
def test_a_formula_is_its_activation(activation, formula):
    model = Written(formula, gate=nn.Sigmoid(), relu6=nn.ReLU6(inplace=True))
    assert kinds_of(model) == [f"BatchNorm2d + {activation}"]


class Sum(Written):
    def forward(self, x):
        y = self.norm(self.conv1(x)) + self.shortcut(x)
        return self.conv2(y * y.sigmoid())


def test_a_formula_of_a_sum():
    model = Sum(None, shortcut=nn.Conv2d(4, 8, 1))
    assert kinds_of(model) == ["BatchNorm2d + residual + silu"]


def test_a_formula_keeps_as_little_as_the_activation():
    x = torch.randn(2, 4, 9, 9, dtype=torch.float64)

    def kept_by(formula):
        model, _ = palimpsest.convert(Written(formula))
        for _ in range(2):  # the first step allocates what the process keeps
            with palimpsest.memory.measure() as measured:
                y = model(x)
                measured.forward_done()
                y.sum().backward()
        return measured.kept_bytes

    assert kept_by(lambda m, x: x * x.sigmoid()) == kept_by(lambda m, x: F.silu(x))


def _relu5():
    module = nn.ReLU6()
    module.max_val = 5.0
    return module


def _changed_between(m, x):
    gate = x.sigmoid()
    x.add_(1)
    return x * gate


def _read_twice(m, x):
    gate = x.sigmoid()
    return x * gate + gate


@pytest.mark.parametrize("formula", [
    _changed_between,
    _read_twice,
    lambda m, x: x * (2 * x).sigmoid(),
    lambda m, x: x * F.relu6(x + 2) / 6,
    lambda m, x: x * F.relu6(x + 3) / 5,
    lambda m, x: x * F.relu6(torch.add(x, 3, alpha=2)) / 6,
    lambda m, x: x * torch.tanh(F.softplus(x)),
    lambda m, x: x * m.relu5(x + 3) / 6,
    lambda m, x: x * F.hardtanh(x + 3, -1, 6) / 6,
    lambda m, x: x * x,
])
def test_what_looks_like_a_formula_stays(formula):
    assert kinds_of(Written(formula, relu5=_relu5())) == ["BatchNorm2d"]


def test_a_hook_on_the_gate_is_heard():
    heard = []
    model = Written(lambda m, x: x * m.gate(x), gate=nn.Sigmoid())
    model.gate.register_forward_hook(lambda *_: heard.append(1))
    converted, _ = palimpsest.convert(model)
    converted(torch.randn(2, 4, 5, 5, dtype=torch.float64))
    assert len(heard) == 1


def test_a_gate_of_another_tensor_is_no_formula():
    model = Written(lambda m, x: x * F.adaptive_avg_pool2d(x, 1).sigmoid())
    assert kinds_of(model) == ["BatchNorm2d"]


def test_a_gate_that_is_written_to_a_buffer():
    model = Written(lambda m, x: x * torch.sigmoid(x, out=m.gates)).requires_grad_(False)
    model.conv2.requires_grad_()
    model.register_buffer("gates", torch.zeros(2, 8, 5, 5, dtype=torch.float64))
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    for network in (model, converted):
        network(x)
    torch.testing.assert_close(converted.gates, model.gates, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("strategy", ["inplace_1", "inplace_2"])
def test_a_strategy_that_the_activation_does_not_fit(strategy):
    _, report = palimpsest.convert(Written(lambda m, x: x * x.sigmoid()), strategy=strategy)
    assert [layer.kind for layer in report.layers] == ["BatchNorm2d"]

"""A small network with a forward of the test's own, to be converted."""
import copy

import torch
from torch import nn

import palimpsest

X = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A convolution, a normalization and an activation, with a forward of the test's own."""

    def __init__(self, forward=lambda m, x: m.body(x), **attributes):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn, self.act = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.SiLU()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("center", torch.ones(4))
        self.register_buffer("alpha", torch.ones(()))
        self.function = forward
        for name, value in attributes.items():
            setattr(self, name, value)
        self.double()

    def body(self, x):
        return self.act(self.bn(self.conv(x)))

    def forward(self, x):
        return self.function(self, x)


def converted(model, *example):
    """(converted copy, report)"""
    return palimpsest.convert(copy.deepcopy(model), *example)


def assert_close(a, b, equal_nan=False):
    torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-10, equal_nan=equal_nan)

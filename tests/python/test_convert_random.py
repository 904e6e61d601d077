"""convert() on random networks: outputs, gradients and buffers are the original's, and no more is kept."""
import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from test_convert_readers import kept_bytes

GROUPS, PER_GROUP = 8, 12
SIDE = 8


class RandomNetwork(nn.Module):
    """Steps that read values made before them. All values are maps of at most 24 channels, of one size or half of it."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.random = random.Random(seed)
        self.layers, self.steps, self.kinds, self.results = nn.ModuleList(), [], [(3, SIDE)], []
        makers = [self._layer, self._layer, self._layer, self._norm, self._concatenation, self._concatenation, self._resampling,
                  self._pooling, self._convolution, self._two, self._function, self._split, self._in_place, self._result]
        for _ in range(self.random.randint(8, 20)):
            i = self.random.randrange(max(0, len(self.kinds) - 5), len(self.kinds))
            self.random.choice(makers)(i, *self.kinds[i])
        del self.random

    def _step(self, function, *kinds):
        self.steps.append(function)
        self.kinds.extend(kinds)

    def _module(self, i, module, channels, side):
        self.layers.append(module)
        self._step(lambda net, v, k=len(self.layers) - 1: [net.layers[k](v[i])], (channels, side))

    def _activation(self):
        return self.random.choice([nn.ReLU, nn.SiLU, nn.LeakyReLU, nn.Sigmoid, nn.Hardswish, lambda: nn.ReLU(True),
                                   lambda: nn.ELU(inplace=True)])()

    def _layer(self, i, channels, side):
        out, half = self.random.choice([4, 8]), side == SIDE and self.random.random() < 0.2
        conv = nn.Conv2d(channels, out, 3, 2 if half else 1, 1, bias=self.random.random() < 0.3)
        self._module(i, nn.Sequential(conv, nn.BatchNorm2d(out), self._activation()), out, side // 2 if half else side)

    def _norm(self, i, channels, side):
        norm = nn.BatchNorm2d(channels)
        nn.init.uniform_(norm.weight, -1, 1)
        self._module(i, nn.Sequential(norm, self._activation()) if self.random.random() < 0.8 else norm, channels, side)

    def _convolution(self, i, channels, side):
        kind = self.random.choice(["conv", "transposed", "function"])
        module = nn.ConvTranspose2d(channels, 4, 3, padding=1) if kind == "transposed" else nn.Conv2d(channels, 4, 3, padding="same")
        if kind != "function":
            self._module(i, module, 4, side)
            return
        self.layers.append(module)
        k = len(self.layers) - 1
        self._step(lambda net, v: [F.conv2d(v[i], net.layers[k].weight, net.layers[k].bias, padding=1)], (4, side))

    def _concatenation(self, i, channels, side):
        others = [j for j, kind in enumerate(self.kinds) if kind[1] == side]
        chosen = [i, *self.random.sample(others, min(len(others), self.random.randint(1, 3)))]
        self.random.shuffle(chosen)
        total = sum(self.kinds[j][0] for j in chosen)
        if total <= 24:
            self._step(lambda net, v: [torch.cat([v[j] for j in chosen], 1)], (total, side))

    def _resampling(self, i, channels, side):
        if side == SIDE:
            way = self.random.choice([lambda x: F.interpolate(x, scale_factor=0.5), lambda x: F.avg_pool2d(x, 2),
                                      lambda x: F.adaptive_avg_pool2d(x, SIDE // 2), lambda x: F.pad(x, (-2, -2, -2, -2))])
        else:
            way = self.random.choice([lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda x: F.pad(x, (2, 2, 1, 3)),
                                      lambda x: F.interpolate(x, size=SIDE, mode="bicubic"), lambda x: nn.Upsample(scale_factor=2)(x)])
        self._step(lambda net, v: [way(v[i])], (channels, SIDE + SIDE // 2 - side))

    def _pooling(self, i, channels, side):
        way = self.random.choice([nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1, count_include_pad=False)])
        self._module(i, way, channels, side)

    def _two(self, i, channels, side):
        j = self.random.choice([j for j, kind in enumerate(self.kinds) if kind == (channels, side)])
        way = self.random.choice([torch.add, torch.mul, lambda a, b: F.relu(a + b), lambda a, b: a * torch.sigmoid(b)])
        self._step(lambda net, v: [way(v[i], v[j])], (channels, side))

    def _function(self, i, channels, side):
        way = self.random.choice([F.relu, torch.sigmoid, lambda x: x * 0.5, lambda x: x * torch.sigmoid(x), lambda x: -x])
        self._step(lambda net, v: [way(v[i])], (channels, side))

    def _split(self, i, channels, side):
        if channels % 2 == 0:
            self._step(lambda net, v: list(v[i].chunk(2, 1)), *[(channels // 2, side)] * 2)

    def _in_place(self, i, channels, side):
        if i > 0:
            self._step(lambda net, v: [net._written(v[i])], (channels, side))

    @staticmethod
    def _written(x):
        x += 1
        return x

    def _result(self, i, channels, side):
        self.results.append(i)

    def forward(self, x):
        values = [x * 1]
        for step in self.steps:
            values += step(self, values)
        return [values[i] for i in self.results] + [values[-1], sum(v.square().mean() for v in values[-3:])]


def steps_of(model, x):
    """What two steps give."""
    found = []
    for _ in range(2):
        model.zero_grad()
        x = x.detach().requires_grad_()
        outputs = model(x)
        sum((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in outputs).backward()
        found += [y.detach().clone() for y in outputs] + [x.grad.clone()] + [
            torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()]
        found += [b.double() for b in model.buffers()]
    return found


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_networks(group):
    layout = torch.channels_last if group % 2 else torch.contiguous_format
    x = torch.randn(2, 3, SIDE, SIDE, dtype=torch.double, generator=torch.Generator().manual_seed(1)).to(memory_format=layout)
    compared = converted_layers = 0
    for seed in range(group * PER_GROUP, (group + 1) * PER_GROUP):
        model = RandomNetwork(seed).double().to(memory_format=layout)
        if group % 3 == 2:
            for layer in list(model.layers)[::3]:
                layer.eval().requires_grad_(False)
        try:
            want = steps_of(copy.deepcopy(model), x)
        except RuntimeError:  # a value is written over that backward needs
            continue
        converted, report = palimpsest.convert(copy.deepcopy(model))
        got = steps_of(converted, x)
        for a, b in zip(got, want, strict=True):
            assert (a - b).norm() <= 1e-7 * (b.norm() + 1e-3), f"network {seed}"
        assert kept_bytes(converted, x) <= kept_bytes(model, x), f"network {seed}"
        compared, converted_layers = compared + 1, converted_layers + len(report.converted)
    assert compared > PER_GROUP // 2 and converted_layers > PER_GROUP

"""What convolutions read is made again in backward: concatenations, upsamplings, paddings, dropouts, poolings of stride 1."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from palimpsest._convert import sources
from test_convert_layers import assert_all_close, assert_same_after, assert_same_gradients, assert_same_under_hooks, step

X = torch.randn(2, 4, 8, 8, dtype=torch.double, generator=torch.Generator().manual_seed(0))


class Network(nn.Module):
    """Two activated layers, and what a function makes of them."""

    def __init__(self, forward, act=nn.ReLU):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False)
        self.norm1, self.norm2, self.act = nn.BatchNorm2d(8), nn.BatchNorm2d(8), act()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.nearest, self.last_of_8 = nn.UpsamplingNearest2d(scale_factor=2), nn.Conv2d(8, 4, 3)
        self.transposed, self.last = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(16, 4, 3, bias=False)
        self.padded = nn.ZeroPad2d(1)
        self.padded.value = 0.5
        self.average, self.maximum = nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(3, 1, 1)
        self.drop, self.drop_channels = nn.Dropout(0.3), nn.Dropout2d(0.3)
        self.compute = forward
        self.double()

    def forward(self, x):
        a = self.act(self.norm1(self.first(x)))
        return self.compute(self, a, self.act(self.norm2(self.second(a))))


def kept_bytes(model, x=X):
    with palimpsest.memory.measure() as measured:
        y = model(x)  # noqa: F841: holds the graph
        measured.forward_done()
    return measured.kept_bytes


A_BYTES = 2 * 8 * 64 * 8  # of one activated tensor of 8 channels

MADE_AGAIN = {
    "concatenation": lambda m, a, b: m.last(torch.cat([a, F.interpolate(b, scale_factor=2)], 1)),
    "bilinear": lambda m, a, b: m.last(torch.cat([F.interpolate(b, size=a.shape[2:], mode="bilinear"), a], dim=1)),
    "bicubic": lambda m, a, b: m.last(torch.cat((a, F.interpolate(b, scale_factor=2, mode="bicubic", align_corners=True)), 1)),
    "nn.Upsample": lambda m, a, b: m.last(torch.cat([a, m.up(b)], -3)),
    "nn.UpsamplingNearest2d": lambda m, a, b: m.last(torch.concat([a, m.nearest(b)], dim=1)),
    "padding": lambda m, a, b: m.last(torch.cat([a, F.pad(b, [2, 2, 2, 2])], 1)),
    "padding with a value": lambda m, a, b: m.last(torch.cat([a, F.pad(b, (1, 3, 2, 2), "constant", 0.5)], 1)),
    "cropping": lambda m, a, b: m.last(torch.cat([F.pad(a, (-2, -2, -2, -2)), b], 1)),
    "transposed convolution": lambda m, a, b: m.last(torch.cat([a, m.transposed(b)], 1)),
    "behind a concatenation": lambda m, a, b: m.last(m.up(torch.cat([b, F.max_pool2d(a, 2)], 1))),
    "in a concatenation": lambda m, a, b: m.last(torch.cat([torch.cat([a[:, :4] * 2, m.up(b)], 1), a.chunk(2, 1)[1] * 3], 1)),
    "pooling of stride 1": lambda m, a, b: m.last(torch.cat([m.maximum(a), m.average(a)], 1)),
    "functions": lambda m, a, b: m.last(torch.cat([F.max_pool2d(a, 3, 1, 1), F.avg_pool2d(a, 3, stride=1, padding=1)], 1)),
    "two readers": lambda m, a, b: m.last(c := torch.cat([a, m.up(b)], 1)) + m.last(c),
    "padding with the value of a module": lambda m, a, b: m.last_of_8(m.padded(a)),
    "a convolution as a function": lambda m, a, b: F.conv2d(torch.cat([a, m.up(b)], 1), m.last.weight, None, padding=1),
    "padding as a module": lambda m, a, b: F.conv2d(nn.ZeroPad2d((1, 2, 0, 1))(a), m.last_of_8.weight, bias=m.last_of_8.bias),
    "behind an upsampling alone": lambda m, a, b: m.last_of_8(m.up(b)),
    "read by a pooling too": lambda m, a, b: m.last(c := torch.cat([a, m.up(b)], 1)) * F.max_pool2d(c, 3, 1).mean(),
    "a sum": lambda m, a, b: m.last(torch.cat([a + m.transposed(b), a], 1)),
    "reflected": lambda m, a, b: m.last(torch.cat([a, F.pad(b, (2, 2, 2, 2), mode="reflect")], 1)),
    "nn.ReflectionPad2d": lambda m, a, b: m.last_of_8(nn.ReflectionPad2d(1)(a)),
    "nn.ReplicationPad2d": lambda m, a, b: m.last_of_8(nn.ReplicationPad2d((1, 2, 0, 1))(m.up(b))),
    "dropout": lambda m, a, b: m.last_of_8(F.dropout(a, 0.3, m.training)),
    "dropout of channels": lambda m, a, b: m.last_of_8(F.dropout2d(a)),
    "nn.Dropout": lambda m, a, b: m.last(torch.cat([m.drop(a), m.up(b)], 1)),
    "nn.Dropout2d": lambda m, a, b: m.last_of_8(m.up(m.drop_channels(b))),
    "behind a split": lambda m, a, b: m.last_of_8(torch.cat([*b.chunk(2, 1)][::-1], 1)),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU, nn.LeakyReLU])
@pytest.mark.parametrize("name", MADE_AGAIN)
def test_a_step_equals_the_original(name, act, channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = Network(MADE_AGAIN[name], act).to(memory_format=layout)
    assert_same_after(model, X.contiguous(memory_format=layout))


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_what_is_made_again_is_not_kept(name, monkeypatch):
    model = Network(MADE_AGAIN[name], nn.SiLU)
    with_source, _ = palimpsest.convert(copy.deepcopy(model))
    kept = kept_bytes(with_source)
    monkeypatch.setattr("palimpsest._convert.readers.Readers.is_made_again", lambda self, node: False)
    without, _ = palimpsest.convert(copy.deepcopy(model))
    assert kept <= kept_bytes(without) - A_BYTES / 8, name


def doubled(t):
    return t * 2  # autograd saves no t, which a graph does not know


SPLITS = {
    "chunk": lambda m, a, b: m.last(torch.cat([*a.chunk(2, 1), m.up(b)], 1)),
    "the parts once more": lambda m, a, b: m.last(torch.cat([(p := a.chunk(2, 1))[1], p[0], m.last_of_8(torch.cat(p, 1)).mean() * p[0],
                                                             p[1]], 1)),
    "sizes": lambda m, a, b: m.last(torch.cat([(p := torch.split(a, [3, 5], dim=1))[1], m.up(b), p[0]], 1)),
    "one part": lambda m, a, b: m.last_of_8(F.interpolate(torch.cat([a.chunk(2, 1)[1], b[:, :4].repeat(1, 1, 2, 2)], 1), size=9)),
    "a part that is returned": lambda m, a, b: (m.last(torch.cat([*(p := a.chunk(2, 1)), m.up(b)], 1)), p[1])[0],
    "rows": lambda m, a, b: m.last_of_8(torch.cat(a.split(4, 2)[::-1], 2)),
    "convolutions": lambda m, a, b: F.conv2d((p := a.chunk(2, 1))[0], m.last.weight[:, :4]) + m.narrow(p[1]),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU, nn.SiLU, nn.LeakyReLU])
@pytest.mark.parametrize("name", SPLITS)
def test_parts_of_an_activated_value(name, act, channels_last):
    """Only the split reads it, as in YOLO's blocks."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = Network(lambda m, a, b: None, act)
    model.narrow = nn.Conv2d(4, 4, 3).double()
    model.compute = lambda m, a, b: SPLITS[name](m, m.act(m.norm3(m.first(X.to(memory_format=layout)))), b)
    model.norm3 = nn.BatchNorm2d(8).double()
    assert_same_after(model.to(memory_format=layout), X.contiguous(memory_format=layout))


LEFT = {  # the caller, or another node, may write over a part, or saves the concatenation anyway
    "a part that is returned": lambda m, a, b: (m.last(torch.cat([a, t := m.transposed(b)], 1)), t)[0],
    "a part that is written over": lambda m, a, b: m.last(torch.cat([a, t := m.transposed(b)], 1)) * t.zero_().sum().add(1),
    "written over behind it": lambda m, a, b: m.last(c := torch.cat([a, m.up(b)], 1)) * c.zero_().sum().add(1),
    "others save it": lambda m, a, b: m.last(c := torch.cat([a, m.up(b)], 1)) * c.square().mean(),
    "around": lambda m, a, b: m.last(torch.cat([a, F.pad(b, (2, 2, 2, 2), mode="circular")], 1)),
    "a part that others may save": lambda m, a, b: (m.last(torch.cat([a, t := m.transposed(b + 1)], 1)) + doubled(t).mean(), t)[0],
    "a part of a larger tensor": lambda m, a, b: m.last(torch.cat([a, (t := m.transposed(b))[:, :8]], 1)) + doubled(t[:, :8]).mean(),
    "by keywords": lambda m, a, b: m.last(F.avg_pool2d(input=torch.cat([a, m.up(b)], 1), kernel_size=2)),
    "into a tensor": lambda m, a, b: m.last(torch.cat([a, m.up(b)], 1, out=None)),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_may_change_is_saved(name):
    model = Network(LEFT[name], nn.SiLU)
    if "written over" in name:  # torch's error, in both
        for network in (model, palimpsest.convert(copy.deepcopy(model))[0]):
            if name == "written over behind it":
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    network(X).sum().backward()
            else:
                network(X).sum().backward()
    if name != "written over behind it":
        assert_same_after(model, X)


@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU, nn.LeakyReLU])
def test_the_caller_may_write_over_a_part_that_it_gets(act):
    """As the original allows it: the concatenation has its own copy."""
    def forward(m, a, b):
        t = m.transposed(b + 1)
        return m.last(torch.cat([a, t], 1)) + m.last(torch.cat([a, m.up(b)], 1)) + doubled(t).mean(), t, b

    def gradients(model):
        y, t, b = model(X)
        with torch.no_grad():
            t.zero_()
            if act is nn.SiLU:
                b.zero_()
        model.zero_grad()
        y.sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    model = Network(forward, act)
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    for got, want in zip(gradients(converted), gradients(model), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_a_part_that_changes_before_backward_is_an_error():
    """As in the original, in which the other convolution saves the part."""
    model = Network(lambda m, a, b: (m.last(torch.cat([a, t := m.transposed(b)], 1)) + m.last_of_8(t), t))
    for network in (model, palimpsest.convert(copy.deepcopy(model))[0]):
        y, t = network(X)
        with torch.no_grad():
            t.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_two_backward_passes_and_a_part_of_the_graph():
    model = Network(MADE_AGAIN["two readers"])
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    results = []
    for network in (model, converted):
        torch.manual_seed(1)
        y = network(X)
        grads = [torch.autograd.grad(y.sum(), list(network.parameters()), retain_graph=True, allow_unused=True) for _ in range(2)]
        grads.append(torch.autograd.grad(y.square().sum(), [network.last.weight], retain_graph=True))
        grads.append(torch.autograd.grad(y.sum(), list(network.parameters()), allow_unused=True))
        results.append([g for some in grads for g in some if g is not None])
    assert_all_close(results[1], results[0])


def test_several_readers_have_it_made_once(monkeypatch):
    made = []
    of_concatenation = sources.of_concatenation

    def counted(z, parts, dim):
        source = of_concatenation(z, parts, dim)
        make = source.make
        source.make = lambda parts: made.append(1) or make(parts)
        return source

    monkeypatch.setattr(sources, "of_concatenation", counted)
    model, _ = palimpsest.convert(Network(MADE_AGAIN["two readers"]))
    for passes in (1, 2):
        model(X).sum().backward()
        assert len(made) == passes
        assert sources._holder() is None or sources._holder().made is None


def test_nothing_is_held_after_backward():
    model, _ = palimpsest.convert(Network(MADE_AGAIN["two readers"]))
    model(X).sum().backward()
    with palimpsest.memory.measure() as measured:
        for _ in range(3):
            model(X).sum().backward()
    assert abs(measured.end_bytes) < A_BYTES


@pytest.mark.parametrize("name", ["concatenation", "pooling of stride 1", "behind an upsampling alone", "dropout", "nn.Dropout2d"])
def test_checkpoints_hooks_and_compilation(name):
    model = Network(MADE_AGAIN[name], nn.SiLU)
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    want = step(model, X)

    def make():
        network = copy.deepcopy(converted)
        network.load_state_dict(Network(MADE_AGAIN[name], nn.SiLU).state_dict())
        return network

    assert_same_under_hooks(make, X, want)


@pytest.mark.parametrize("frozen", [["first", "norm1"], ["last"], ["second", "norm2"], ["first", "norm1", "second", "norm2"]])
def test_frozen_parts(frozen):
    model = Network(MADE_AGAIN["bilinear"])
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    for network in (model, converted):
        network(X).square().sum().backward()
    assert_same_gradients(converted, model)


@pytest.mark.parametrize("name", ["concatenation", "bilinear", "transposed convolution", "pooling of stride 1", "nn.Dropout"])
def test_autocast(name):
    model = Network(MADE_AGAIN[name]).float()
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    results = []
    for network in (model, converted):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            y = network(X.float())
        y.float().square().mean().backward()
        results.append([y.float()] + [p.grad for p in network.parameters() if p.grad is not None])
    for got, want in zip(results[1], results[0], strict=True):
        assert (got - want).norm() <= 0.05 * want.norm()


def perceptron(act, dropout=0.0):
    return nn.Sequential(nn.Linear(24, 48), nn.BatchNorm1d(48), act(), nn.Linear(48, 48, bias=False), nn.BatchNorm1d(48), act(),
                         nn.Dropout(dropout), nn.Linear(48, 40), nn.BatchNorm1d(40), act(), nn.Linear(40, 2)).double()


@pytest.mark.parametrize("shape", [(64, 24), (0, 24)])
@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU, nn.LeakyReLU])
def test_linear_layers(act, shape):
    torch.manual_seed(0)
    model, x = perceptron(act, 0.3), torch.randn(shape, dtype=torch.double)
    assert_same_after(model, x)
    assert_same_after(model, x, lambda network: network[3].requires_grad_(False))
    if len(x):
        assert kept_bytes(palimpsest.convert(copy.deepcopy(model))[0], x) < 0.6 * kept_bytes(model, x)


def test_linear_layers_of_more_dimensions_and_as_functions():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(8, 4), nn.ReLU()).double()
    assert_same_after(model, torch.randn(4, 6, 8, dtype=torch.double))
    network = Network(lambda m, a, b: F.linear(a, m.weight, m.bias).mean() + F.linear(b.mean((2, 3)), m.weight).mean())
    network.weight, network.bias = nn.Parameter(torch.randn(5, 8).double()), nn.Parameter(torch.randn(5).double())
    assert_same_after(network, X)


AVERAGES = {
    "F.pad": lambda m, x: F.pad(x, (1, 1, 1, 1), "replicate"),
    "nn.ReflectionPad2d": lambda m, x: nn.ReflectionPad2d(2)(x),
    "nn.AvgPool2d": lambda m, x: nn.AvgPool2d(2)(x),
    "F.avg_pool2d": lambda m, x: F.avg_pool2d(x, 2, ceil_mode=True),
    "nn.AdaptiveAvgPool2d": lambda m, x: nn.AdaptiveAvgPool2d(3)(x),
    "F.adaptive_avg_pool2d": lambda m, x: F.adaptive_avg_pool2d(x, (3, 1)),
    "to one value": lambda m, x: F.adaptive_avg_pool2d(x, 1),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_keeps_no_values(name, channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = Network(lambda m, a, b: AVERAGES[name](m, a.exp().floor() + m.transposed(b)))
    model = model.to(memory_format=layout)
    assert_same_after(model, X.contiguous(memory_format=layout))
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    difference = kept_bytes(model) - kept_bytes(converted)
    assert difference >= (0 if name == "to one value" else A_BYTES)


@pytest.mark.parametrize("kind, shape", [(nn.AvgPool1d, (2, 3, 8)), (nn.AvgPool3d, (2, 3, 4, 4, 4)),
                                         (nn.AdaptiveAvgPool1d, (2, 3, 8)), (nn.AdaptiveAvgPool3d, (2, 3, 4, 4, 4))])
def test_averages_of_one_and_three_dimensions(kind, shape):
    norm, conv = {3: (nn.BatchNorm1d, nn.Conv1d), 5: (nn.BatchNorm3d, nn.Conv3d)}[len(shape)]
    model = nn.Sequential(conv(3, 3, 1), norm(3), nn.ReLU(), conv(3, 4, 1), kind(2)).double()
    assert_same_after(model, torch.randn(shape, dtype=torch.double))


class DenseChain(nn.Module):
    """Dense layers that put what they make in front of, or behind, all that was there."""

    def __init__(self, in_front, changes=False):
        super().__init__()
        torch.manual_seed(0)
        self.in_front, self.changes = in_front, changes
        self.layers = nn.ModuleList(nn.Sequential(nn.BatchNorm2d(4 + 4 * i), nn.ReLU(), nn.Conv2d(4 + 4 * i, 8, 1, bias=False),
                                                  nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1, bias=False))
                                    for i in range(5))
        self.last = nn.Sequential(nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 4, 1, bias=False), nn.AvgPool2d(2))
        self.double()

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
            x = torch.cat([y, x] if self.in_front else [x, y], 1)
            if self.changes:
                x.mul_(2)
        return self.last(x)


class TwoDense(nn.Module):
    """Two dense layers that return a concatenation, or a feature."""

    def __init__(self, returns):
        super().__init__()
        torch.manual_seed(0)
        self.returns = returns
        self.first = nn.Conv2d(4, 4, 1)
        self.norm1, self.conv1 = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, padding=1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(12), nn.Conv2d(12, 4, 3, padding=1, bias=False)
        self.double()

    def forward(self, x):
        feature = self.first(x)
        inner = torch.cat([feature, x * 1], 1)
        y = self.conv1(F.relu(self.norm1(inner)))
        result = self.conv2(F.relu(self.norm2(torch.cat([y, inner], 1))))
        return result, {"concatenation": inner, "feature": feature}[self.returns]


@pytest.mark.parametrize("returns", ["concatenation", "feature"])
def test_a_concatenation_that_is_returned_has_its_gradient_and_may_be_written_over(returns):
    model = TwoDense(returns)
    results = []
    for network in (model, palimpsest.convert(copy.deepcopy(model))[0]):
        y, returned = network(X)
        results.append(list(torch.autograd.grad(y.square().sum(), [returned, *network.parameters()])))
        y, returned = network(X)
        if returns == "feature":  # the original saves the concatenation for the normalization
            with torch.no_grad():
                returned.zero_()
        results[-1] += torch.autograd.grad(y.square().sum(), list(network.parameters()))
    assert_all_close(results[1], results[0])


def test_an_input_that_the_caller_writes_over_and_one_of_inference_mode():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.norm, self.last = nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(12, 4, 1)

        def forward(self, x, e):
            return self.last(torch.cat([F.relu(self.norm(self.conv(x))), e], 1)).mean() + e.abs().mean()

    with torch.inference_mode():
        of_inference = torch.randn(2, 4, 8, 8, dtype=torch.double)
    model = Two().double()
    results = []
    for network in (model, palimpsest.convert(copy.deepcopy(model))[0]):
        e = torch.ones_like(X)
        y = network(X, e)
        e.zero_()
        results.append(torch.autograd.grad(y, list(network.parameters()))
                       + torch.autograd.grad(network(X, of_inference), list(network.parameters())))
    assert_all_close(results[1], results[0])


@pytest.mark.parametrize("make_smaller", [lambda u: F.interpolate(u, scale_factor=0.25), lambda u: F.pad(u, (-3, -3, -3, -3)),
                                          lambda u: F.max_pool2d(u, 7, 1)])
def test_a_large_tensor_is_not_held_for_a_small_one(make_smaller):
    class Enhanced(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.wide, self.narrow, self.norm, self.last = nn.Conv2d(4, 32, 1), nn.Conv2d(32, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            u = self.wide(x)
            return self.last(F.relu(self.norm(self.narrow(make_smaller(u))))).mean() + u.mean() * 0.1 + (-u).sum()

    model = Enhanced().double()
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    assert kept_bytes(converted) <= kept_bytes(model)


def test_where_hooks_on_saved_tensors_are_disabled():
    model = nn.Sequential(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 4, 1)).double()
    converted, _ = palimpsest.convert(model)
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        converted(X).sum().backward()


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("in_front", [False, True])
def test_concatenations_of_concatenations(in_front, changes):
    model = DenseChain(in_front, changes)
    assert_same_after(model, X)
    converted, report = palimpsest.convert(copy.deepcopy(model), X)
    assert changes or report.kept_bytes_after < 0.35 * report.kept_bytes_before, report

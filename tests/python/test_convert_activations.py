"""convert(activations=...): modules of the caller's that compute an activation in their own way."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from test_convert_layers import step
from test_convert_readers import kept_bytes


class _SwishFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * s * (1 + x * (1 - s))


class Swish(nn.Module):
    """The SiLU of EfficientNet-PyTorch, which torch.fx cannot look into."""

    def forward(self, x):
        return _SwishFunction.apply(x)


class Slope(nn.Module):
    """A leaky ReLU that a graph could enter."""

    def forward(self, x):
        return torch.where(x > 0, x, 0.2 * x)


class Plus(nn.Module):
    def forward(self, x):
        return torch.logaddexp(x, torch.zeros_like(x))


class Quick(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Doubling(nn.Module):
    def forward(self, x):
        return F.silu(x).repeat(1, 2, 1, 1)


class Channels(nn.Module):
    """An activation of 8 channels."""

    def __init__(self):
        super().__init__()
        self.slopes = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x):
        return F.prelu(x, self.slopes.flatten())


class Over(nn.Module):
    """Writes over its input."""

    def forward(self, x):
        return F.silu(x, inplace=True)


class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * torch.sigmoid(self.beta * x)


class Random(nn.Module):
    """RReLU, which is a leaky ReLU in evaluation alone."""

    def forward(self, x):
        return F.rrelu(x, 0.1, 0.3, self.training)


class OfSingle(nn.Module):
    """SiLU in f64, and something else in f32."""

    def forward(self, x):
        return F.silu(x) if x.dtype == torch.float64 else F.gelu(x)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope, self.calls = 0.2, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        return F.leaky_relu(x, self.slope)


class StraightThrough(nn.Module):
    """ReLU's values with another derivative."""

    def forward(self, x):
        return x + (F.relu(x) - x).detach()


def network(act):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), act, nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8),
                         copy.deepcopy(act), nn.Conv2d(8, 4, 3)).double()


X = torch.randn(2, 3, 12, 12, dtype=torch.double, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("act, activation, words", [(Swish(), "silu", "BatchNorm2d + silu"),
                                                    (Slope(), ["leaky_relu", 0.2], "BatchNorm2d + leaky_relu"),
                                                    (Plus(), "softplus", "BatchNorm2d + softplus")])
@pytest.mark.parametrize("proven", [False, True])
def test_a_named_activation_is_fused(act, activation, words, proven):
    model = network(act)
    converted, report = palimpsest.convert(copy.deepcopy(model), X if proven else None, activations={type(act): activation})
    assert [layer.kind for layer in report.layers] == [words] * 2, report
    with torch.no_grad():
        assert torch.equal(converted.eval()(X), model.eval()(X))
    model.train(), converted.train()
    if proven:
        without = palimpsest.convert(copy.deepcopy(model), X)[1]
        assert report.kept_bytes_after < 0.8 * without.kept_bytes_after
    for change in (lambda m: None, lambda m: m.eval(), lambda m: setattr(m[1], "eps", 0.5)):
        for changed in (model, converted):
            change(changed)
        for got, want in zip(step(converted, X), step(model, X), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)
    assert [type(m) for m in palimpsest.revert(converted).modules()] == [type(m) for m in model.modules()]


def test_copies_keep_it(tmp_path):
    model = network(Swish())
    converted, _ = palimpsest.convert(copy.deepcopy(model), activations={Swish: "silu"})
    torch.save(converted, tmp_path / "network.pt")
    for other in (copy.deepcopy(converted), torch.load(tmp_path / "network.pt", weights_only=False)):
        other.train()
        other[4].momentum = 0.3  # the graph is made anew
        assert kept_bytes(other, X) < 0.7 * kept_bytes(model, X)


def test_a_module_that_somebody_listens_to_is_called():
    model = network(Swish())
    calls = []
    model[2].register_forward_hook(lambda module, x, y: calls.append(1))
    converted, report = palimpsest.convert(model, activations={Swish: "silu"})
    assert [layer.kind for layer in report.layers] == ["BatchNorm2d", "BatchNorm2d + silu"]
    converted(X).sum().backward()
    assert calls == [1]


@pytest.mark.parametrize("activations, words", [
    ([Swish], "activations must be a dict of a module's class to an activation's name, got list"),
    ({"Swish": "silu"}, "a key of activations must be a class of modules, got 'Swish'"),
    ({torch.Tensor: "silu"}, "a key of activations must be a class of modules, got <class 'torch.Tensor'>"),
    ({Swish: "swish"}, r"activations\[Swish\] must be one of relu, .*, got 'swish'"),
    ({Swish: None}, r"activations\[Swish\] must be one of relu, .*, got None"),
    ({Swish: ("silu", 1.0)}, r"activations\[Swish\]: silu takes no parameter 1.0"),
    ({Swish: ("leaky_relu", -2)}, r"activations\[Swish\]: leaky_relu takes no parameter -2"),
    ({nn.SiLU: "silu"}, "activations names SiLU, but no module of the model is of this class"),
    ({Swish: "mish"}, r"says that Swish computes mish, but '2' differs: mish\(.*\) is .*, and it gives"),
])
def test_refusals(activations, words):
    model = network(Swish())
    with pytest.raises(ValueError, match=f"convert: .*{words}"):
        palimpsest.convert(model, activations=activations)
    assert not any("palimpsest" in key for module in model.modules() for key in vars(module))  # as it was


@pytest.mark.parametrize("act, activation, words", [
    (Quick(), "gelu", r"Quick computes gelu, but '1' differs: (the derivative of )?gelu\(.*\) is .*, and it gives"),
    (StraightThrough(), "relu", r"computes relu, but '1' differs: the derivative of relu\("),
    (Doubling(), "silu", r"computes silu, but '1' makes \(1, 2, 20, 20\) of a tensor of \(1, 1, 20, 20\)"),
    (Channels(), "relu", "computes relu, but '1' has parameters of its own"),
    (Learned(), "silu", "computes silu, but '1' has parameters of its own"),
    (Over(), "silu", "computes silu, but '1' writes over its input"),
    (Random().eval(), ("leaky_relu", 0.2), "computes leaky_relu, but '1' differs"),
    (OfSingle(), "silu", "computes silu, but '1' differs"),
    (nn.Softmax(7), "silu", "computes silu, but '1' raises for numbers from -8 to 8: IndexError"),
])
def test_what_computes_something_else_is_refused(act, activation, words):
    with pytest.raises(ValueError, match=words):
        palimpsest.convert(nn.Sequential(nn.BatchNorm2d(8), act), activations={type(act): activation})


def test_the_check_changes_nothing_and_runs_again_after_a_change():
    model = network(Counting())
    converted, report = palimpsest.convert(copy.deepcopy(model), activations={Counting: ("leaky_relu", 0.2)})
    assert [layer.kind for layer in report.layers] == ["BatchNorm2d + leaky_relu"] * 2
    assert converted[2].calls == 0 and converted[2].seen == 0
    for change in (lambda m: setattr(m[2], "slope", 0.5), lambda m: setattr(m, "5", copy.deepcopy(m[2]))):
        for changed in (model, converted):
            change(changed)
        for got, want in zip(step(converted, X)[:8], step(model, X)[:8], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)

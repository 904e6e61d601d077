"""Normalizations of samples (GroupNorm, LayerNorm, InstanceNorm) and what activations make of them are made again in backward."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from palimpsest._convert import again, sources
from test_convert_layers import assert_all_close, assert_same_after, assert_same_gradients, assert_same_under_hooks, step
from test_convert_readers import kept_bytes

X = torch.randn(2, 8, 8, 8, dtype=torch.double, generator=torch.Generator().manual_seed(0))
T_BYTES = X.numel() * 8

NORMS = {
    "GroupNorm": lambda: nn.GroupNorm(2, 8),
    "GroupNorm of no weights": lambda: nn.GroupNorm(4, 8, affine=False),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(8),
    "InstanceNorm2d of weights": lambda: nn.InstanceNorm2d(8, affine=True),
    "LayerNorm": lambda: nn.LayerNorm((8, 8, 8)),
    "LayerNorm of no bias": lambda: nn.LayerNorm((8, 8), bias=False),
}
ACTIVATIONS = {
    "relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU, "leaky": nn.LeakyReLU, "elu": lambda: nn.ELU(0.5), "sigmoid": nn.Sigmoid,
    "hardswish": nn.Hardswish, "relu in place": lambda: nn.ReLU(True), "leaky in place": lambda: nn.LeakyReLU(0.2, True),
    "silu in place": lambda: nn.SiLU(True), "elu in place": lambda: nn.ELU(0.5, True), "none": nn.Identity,
}


def network(norm, act):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), norm(), act(), nn.Conv2d(8, 8, 3, padding=1), norm(), act(),
                         nn.Conv2d(8, 1, 1)).double()


@pytest.mark.parametrize("act, channels_last", [*((act, False) for act in ACTIVATIONS), ("relu", True), ("leaky in place", True)])
@pytest.mark.parametrize("norm", NORMS)
def test_of_normalization_and_activation_the_input_is_kept(norm, act, channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = X.contiguous(memory_format=layout)
    model = network(NORMS[norm], ACTIVATIONS[act]).to(memory_format=layout)
    converted, report = palimpsest.convert(copy.deepcopy(model))
    assert report.converted == ["1", "4"]
    assert_same_after(model, x)
    assert kept_bytes(converted, x) <= 2 * T_BYTES * 1.15 < kept_bytes(model, x)


def test_only_some_layers_and_hooks():
    model = network(NORMS["GroupNorm"], ACTIVATIONS["silu in place"])
    model[4].register_forward_hook(lambda module, args, output: output * 2)
    _, report = palimpsest.convert(copy.deepcopy(model), (X,), module_filter_fn=lambda module, name: name != "1")
    assert report.left == {"1": "not selected", "4": "hooks listen to its calls"}
    model[2].register_forward_hook(lambda module, args, output: output * 2)
    assert_same_after(network(NORMS["GroupNorm"], ACTIVATIONS["relu"]), X)
    _, report = palimpsest.convert(copy.deepcopy(model), (X,))
    assert "4" in report.left
    for network_ in (model, palimpsest.convert(copy.deepcopy(model))[0]):
        step(network_, X)
    for got, want in zip(step(palimpsest.convert(copy.deepcopy(model))[0], X), step(model, X), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


class Forward(nn.Module):
    """Layers, and a function that uses them."""

    def __init__(self, compute):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 8, 1)
        self.group, self.instance, self.wide = nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True), nn.GroupNorm(4, 16)
        self.layer, self.grown, self.shrunk = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.down, self.up = nn.Conv2d(8, 8, 2, stride=2), nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.narrow = nn.Conv2d(2, 1, 1)
        self.weight, self.bias = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.compute = compute
        self.double()

    def forward(self, x):
        return self.compute(self, x)


def last(t):
    return t.permute(0, 2, 3, 1)


def first(t):
    return t.permute(0, 3, 1, 2)


def convnext(m, x):
    return x + first(m.shrunk(F.gelu(m.grown(m.layer(last(m.first(x)))))))


def transformer(m, x):
    t = x.flatten(2).transpose(1, 2)
    return t + m.shrunk(F.dropout(F.gelu(m.grown(m.layer(t))), 0.2, m.training))


def decoder(m, x):
    small = F.silu(m.group(m.down(x)))
    return m.third(F.silu(m.wide(torch.cat([m.first(x), m.up(small)], 1))))


def windows(m, x):
    t = torch.roll(m.layer(last(m.first(x))), (1, 1), (1, 2)).view(2, 2, 4, 2, 4, 8).permute(0, 1, 3, 2, 4, 5).reshape(8, 16, 8)
    return m.shrunk(F.gelu(m.grown(t)))


# name: (forward, how many tensors of X's size are kept, its result included, and in the original)
FORWARDS = {
    "convnext": (convnext, 6.3, 11.3),
    "transformer": (transformer, 5.8, 14.3),
    "decoder": (decoder, 3.4, 7.8),
    "windows": (windows, 6.3, 11.3),
    "functions": (lambda m, x: m.second(F.relu(F.group_norm(m.first(x), 4, m.weight, m.bias, 1e-3))), 2.1, 3.1),
    "an instance norm": (lambda m, x: m.second(F.leaky_relu(F.instance_norm(m.first(x), weight=m.weight, bias=m.bias), 0.1)), 2.1, 4.1),
    "an InstanceNorm in place": (lambda m, x: m.second(F.leaky_relu(m.instance(m.first(x)), 0.1)), 2.3, 4),
    "an InstanceNorm and SiLU": (lambda m, x: m.second(z := F.silu(m.instance(m.first(x)))) + m.first(z), 2.3, 4),
    "InstanceNorms in a concatenation": (lambda m, x: m.third(torch.cat([F.elu(m.instance(m.first(x))), F.relu(m.instance(m.second(x)))], 1)),
                                         3.5, 6.5),
    "a layer norm as a function": (lambda m, x: m.second(F.layer_norm(m.first(x), (8,), m.weight, m.bias)), 2.3, 3.3),
    "two readers": (lambda m, x: m.first(z := F.silu(m.group(m.first(x)))) + m.second(z), 2.1, 4.1),
    "activations": (lambda m, x: m.second(F.gelu(F.silu(m.first(F.silu(m.group(m.first(x))))))), 3.1, 7.1),
    "shuffled pixels": (lambda m, x: m.narrow(F.pixel_shuffle(F.silu(m.group(m.first(x))), 2)), 1.6, 3.6),
    "a normalization that others read": (lambda m, x: (y := m.group(m.first(x))) * y.sigmoid() + m.second(y), 4.1, 4.1),
    "behind a batch norm": (lambda m, x: m.second(m.group(F.relu(F.batch_norm(m.first(x), None, None, m.weight, m.bias, True)))), 3.1, 4.1),
    "its result is returned": (lambda m, x: (y := m.group(m.first(x))) + 0 * m.second(F.relu(y)).mean(), 2.1, 3.1),
    "its result is written over": (lambda m, x: m.second(F.relu(m.group(m.first(x)).mul_(2))), 3.1, 3.1),
    "its input is returned": (lambda m, x: m.second(F.silu(m.group(y := m.first(x)))) + y, 2.1, 4.1),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", FORWARDS)
def test_forwards(name, channels_last):
    compute, _, _ = FORWARDS[name]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = Forward(compute).to(memory_format=layout)
    converted, report = palimpsest.convert(copy.deepcopy(model))
    if not report.converted:
        pytest.skip("nothing to convert")
    assert_same_after(model, X.contiguous(memory_format=layout))


@pytest.mark.parametrize("name", FORWARDS)
def test_what_forwards_keep(name):
    compute, most, original = FORWARDS[name]
    model = Forward(compute)
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    assert kept_bytes(converted, X) <= most * T_BYTES
    assert kept_bytes(model, X) >= (original - 0.2) * T_BYTES


def test_layers_of_their_own_class_have_their_own_name():
    class ChannelNorm(nn.LayerNorm):
        def forward(self, x):
            return first(F.layer_norm(last(x), self.normalized_shape, self.weight, self.bias, self.eps))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 8, 1), ChannelNorm(8), nn.GELU(), nn.Conv2d(8, 1, 3)).double()
    converted, report = palimpsest.convert(copy.deepcopy(model), (X,))
    assert report.converted == ["1"] and report.layers[0].kind == "ChannelNorm"
    assert_same_after(model, X)
    assert kept_bytes(converted, X) < 1.4 * T_BYTES
    _, report = palimpsest.convert(copy.deepcopy(model), module_filter_fn=lambda module, name: name != "1")
    assert report.left == {"1": "not selected"}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(6, 8), (2, 6, 8)])
@pytest.mark.parametrize("norm", [nn.LayerNorm, lambda c: nn.GroupNorm(2, c), nn.BatchNorm1d])
def test_square_weights_of_functions(norm, shape, transposed):
    """autograd saves a transposed view of the weight, of the weight's shape."""
    model = Forward(lambda m, x: m.shrunk(F.gelu(m.grown(F.linear(F.silu(m.norm(m.layer2(x))), m.square.t() if transposed else m.square)))))
    model.norm, model.layer2 = norm(8 if len(shape) == 2 or norm is nn.LayerNorm else 6).double(), nn.Linear(8, 8).double()
    model.square = nn.Parameter(torch.randn(8, 8, dtype=torch.double))
    assert_same_after(model, torch.randn(shape, dtype=torch.double))


@pytest.mark.parametrize("x", [X, X[:1, :, :2, :2]], ids=["a large image", "a small one"])
def test_a_bias_may_change_before_backward(x):
    """As in the original, which does not save it."""
    model = Forward(FORWARDS["two readers"][0])
    results = []
    for network_ in (model, palimpsest.convert(copy.deepcopy(model))[0]):
        y = network_(x)
        with torch.no_grad():
            network_.group.bias.add_(1)
        y.square().sum().backward()
        results.append([p.grad for p in network_.parameters() if p.grad is not None])
    assert_all_close(results[1], results[0])


def test_a_forward_of_torchs_class_that_is_replaced_later_is_called(monkeypatch):
    model = network(lambda: nn.GroupNorm(2, 8), nn.SiLU)
    converted, report = palimpsest.convert(copy.deepcopy(model))
    assert report.converted
    assert_all_close(step(converted, X), step(model, X))
    monkeypatch.setattr(nn.GroupNorm, "forward", lambda self, x: 2 * F.group_norm(x, self.num_groups, self.weight, self.bias))
    assert_all_close(step(converted, X), step(model, X))


def test_the_report_says_what_keeps_as_much_as_before():
    model = Forward(lambda m, x: m.third(torch.cat([m.group(m.first(x)), x], 1)))
    _, report = palimpsest.convert(copy.deepcopy(model))
    assert report.left["group"] == "its result is saved all the same"
    moving = Forward(lambda m, x: m.second(F.instance_norm(m.first(x), m.mean, m.var)) + 0 * m.group(m.first(x)).mean())
    moving.mean, moving.var = torch.zeros(8).double(), torch.ones(8).double()
    assert not palimpsest.convert(moving)[1].converted
    _, report = palimpsest.convert(network(NORMS["GroupNorm"], nn.ReLU), strategy="checkpoint")
    assert report.left["1"] == "another strategy than 'auto' and 'store_y' is for batch normalizations"


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("act", [F.relu, F.silu])
def test_a_part_of_a_tensor_is_normalized_with_no_more_kept(act, channels_last):
    """torch keeps a copy of a part, and not the whole."""
    model = Forward(lambda m, x: m.second(act(m.group(m.wider(x).chunk(2, 1)[1]))))
    model.wider = nn.Conv2d(8, 16, 1).double()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model, x = model.to(memory_format=layout), X.contiguous(memory_format=layout)
    assert_same_after(model, x)
    assert kept_bytes(palimpsest.convert(copy.deepcopy(model))[0], x) <= 0.75 * kept_bytes(model, x)


def test_a_copy_that_is_normalized_lets_its_input_change():
    model = Forward(lambda m, x: m.second(F.silu(m.group(y := m.first(x).transpose(2, 3)))) + y.mul_(0).sum())
    assert_same_after(model, X)


def test_a_layer_that_is_called_twice_is_selected_once():
    class ChannelNorm(nn.LayerNorm):
        def forward(self, x):
            return first(F.layer_norm(last(x), self.normalized_shape, self.weight, self.bias, self.eps))

    model = Forward(lambda m, x: m.second(F.gelu(m.norm(m.first(F.gelu(m.norm(m.first(x))))))))
    model.norm = ChannelNorm(8).double()
    assert_same_after(model, X)
    _, report = palimpsest.convert(model, module_filter_fn=lambda module, name: name != "norm")
    assert [layer.how for layer in report.layers if layer.name == "norm"] == ["not selected"] * 2 and not report.converted


def test_weights_that_are_values_of_the_graph_are_saved():
    model = Forward(lambda m, x: F.linear(F.relu(m.layer(last(x))), F.relu(m.layer(last(m.first(x)))[0, 0])))
    assert_same_after(model, X)
    model = Forward(lambda m, x: m.second(F.group_norm(m.first(x), 2, F.relu(m.layer(x[0, 0])).mean(0))))
    assert_same_after(model, X)


def test_a_long_chain_of_activations():
    """In a time that grows with its length alone."""
    def chain(m, x):
        y = m.group(m.first(x))
        for _ in range(40):
            y = torch.tanh(torch.relu(y))
        return m.second(y)

    assert_same_after(Forward(chain), X)


@pytest.mark.parametrize("kind", [nn.GroupNorm, nn.GELU, nn.ReflectionPad2d, nn.PixelShuffle, nn.Dropout, nn.AvgPool2d, nn.Linear])
def test_a_forward_that_somebody_replaced_is_called(kind, monkeypatch):
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x: 2 * forward(self, x))
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.GELU(), nn.Dropout(0.2), nn.ReflectionPad2d(1),
                          nn.Conv2d(8, 8, 3), nn.AvgPool2d(2), nn.PixelShuffle(2), nn.Conv2d(2, 2, 3)).double()
    assert_same_after(model, X)


@pytest.mark.parametrize("change", [lambda y: y.transpose(1, 3), lambda y: y.transpose(2, 3), lambda y: y.chunk(2, 1)[0],
                                    lambda y: y[:, :, 1:], lambda y: y])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_result_of_a_group_norm_has_the_layout_of_torchs(channels_last, dims, change):
    """Which one sees where it is viewed."""
    x = torch.randn(2, 16, *[16] * dims, dtype=torch.double, requires_grad=True)
    if channels_last:
        x = x.contiguous(memory_format={2: torch.channels_last, 3: torch.channels_last_3d}[dims])
    x = change(x)
    norm = nn.GroupNorm(2, x.shape[1]).double()
    z, source = again.by_module(sources.Kept(x), norm, x)
    assert z.stride() == norm(x).stride() == source().stride() and torch.equal(z, norm(x)) and torch.equal(z, source())


def test_on_the_meta_device():
    model, _ = palimpsest.convert(Forward(FORWARDS["decoder"][0]))
    assert model.to("meta")(X.to("meta")).shape == X.shape


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1)).double()


def test_a_network_without_a_normalization():
    model, x = perceptron(), torch.randn(64, 8).double()
    converted, report = palimpsest.convert(copy.deepcopy(model), (x,))
    assert report.converted == ["*"] and "a byte per value" in str(report)
    assert_same_after(model, x)
    assert kept_bytes(converted, x) < 0.6 * kept_bytes(model, x)
    assert type(palimpsest.revert(converted)) is nn.Sequential
    _, report = palimpsest.convert(copy.deepcopy(model), module_filter_fn=lambda module, name: True)
    assert report.left == {"*": "not selected"}
    assert not palimpsest.convert(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))[1].layers


def test_paddings_alone():
    model = Forward(lambda m, x: m.second(F.pad(m.first(F.pad(x, (1, 1, 1, 1), "reflect")), (1, 0, 1, 0), mode="replicate")))
    converted, report = palimpsest.convert(copy.deepcopy(model))
    assert report.converted == ["*"]
    assert_same_after(model, X)
    assert kept_bytes(converted, X) < kept_bytes(model, X)


def test_parts_without_a_normalization_of_a_network_without_a_graph():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = perceptron(), perceptron()

        def forward(self, x):
            return self.a(x) if x.sum() > 0 else self.b(x)

    torch.manual_seed(0)
    model, x = Branches(), torch.rand(16, 8).double()
    _, report = palimpsest.convert(copy.deepcopy(model))
    assert report.converted == ["a.*", "b.*"]
    assert_same_after(model, x)
    _, report = palimpsest.convert(model, (x,))
    assert report.converted == ["a.*", "b.*"]


def test_what_is_wrong_of_the_rest_is_left(monkeypatch):
    right = again.activated
    monkeypatch.setattr(again, "activated", lambda source, y, *rest: right(None, y * 1.001, *rest))
    model, x = perceptron(), torch.randn(64, 8).double()
    _, report = palimpsest.convert(model, (x,))
    assert list(report.left) == ["*"] and "differed" in report.left["*"] and not report.converted


@pytest.mark.parametrize("kind, conv, shape", [(nn.InstanceNorm1d, nn.Conv1d, (3, 8, 10)), (nn.InstanceNorm3d, nn.Conv3d, (2, 8, 4, 5, 6)),
                                               (nn.InstanceNorm2d, nn.Conv2d, (1, 8, 3, 1)), (nn.InstanceNorm2d, nn.Conv2d, (8, 3, 3))])
@pytest.mark.parametrize("act", [nn.LeakyReLU, nn.ReLU, nn.Mish])
def test_instance_norms_of_other_dimensions(kind, conv, shape, act):
    torch.manual_seed(0)
    model = nn.Sequential(conv(8, 8, 1), kind(8, affine=True, eps=1e-3), act(), conv(8, 2, 1)).double()
    assert_same_after(model, torch.randn(shape, dtype=torch.double))


@pytest.mark.parametrize("act", [nn.LeakyReLU, nn.ReLU, nn.ELU])
def test_weights_of_instance_norms_that_are_zero_negative_or_frozen(act):
    model = network(NORMS["InstanceNorm2d of weights"], act)
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([0.0, 1.0, -1.0, 1e-30, 2.0, 0.0, -1e-6, 1.0]))
        model[4].bias.copy_(torch.linspace(-2, 2, 8))
    assert_same_after(model, X)
    assert_same_after(model, X, lambda network_: network_[1].requires_grad_(False))
    assert_same_after(model, X, lambda network_: setattr(network_[1], "eps", 0.1))


def test_the_error_of_one_value_per_channel_is_torchs():
    model = network(NORMS["InstanceNorm2d"], nn.LeakyReLU)
    for network_ in (model, palimpsest.convert(copy.deepcopy(model))[0]):
        with pytest.raises(ValueError, match="more than 1 spatial element"):
            network_(X[:, :, :1, :1])


def test_running_statistics_move_once():
    model = network(lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.ReLU)
    model = nn.Sequential(model, nn.GroupNorm(1, 1), nn.SiLU(), nn.Conv2d(1, 4, 1)).double()
    converted, report = palimpsest.convert(copy.deepcopy(model), (X,))
    assert report.converted == ["1"] and report.left["0.1"] == "not a layer that is converted"
    assert_same_after(model, X)
    assert_same_after(model.eval(), X)


def test_one_image_without_a_batch():
    for norm in ("InstanceNorm2d", "InstanceNorm2d of weights", "LayerNorm"):
        assert_same_after(network(NORMS[norm], nn.ReLU), X[0])


@pytest.mark.parametrize("norm, shape", [("InstanceNorm2d", (1, 2, 8, 8, 8)), ("InstanceNorm2d of weights", (2, 4, 8, 8)),
                                         ("GroupNorm", (2, 6, 8, 8)), ("LayerNorm", (2, 3, 8, 8))])
def test_the_error_of_a_wrong_shape_is_torchs(norm, shape):
    model = nn.Sequential(nn.Linear(8, 8), NORMS[norm](), nn.ReLU(), nn.Linear(8, 2)).double()
    said = []
    for network_ in (model, palimpsest.convert(copy.deepcopy(model))[0]):
        with pytest.raises((RuntimeError, ValueError)) as error:
            network_(torch.ones(shape, dtype=torch.double))
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("name", ["convnext", "transformer", "decoder", "functions", "an instance norm", "an InstanceNorm in place",
                                  "an InstanceNorm and SiLU"])
def test_checkpoints_hooks_and_compilation(name):
    model = Forward(FORWARDS[name][0])
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    want = step(model, X)

    # The dropout of a compiled network draws other numbers.
    assert_same_under_hooks(lambda: copy.deepcopy(converted), X, want, is_compiled=name != "transformer")


@pytest.mark.parametrize("frozen", [["first"], ["group"], ["second"], ["first", "group"], ["first", "second"]])
@pytest.mark.parametrize("act", [F.relu, F.silu])
def test_frozen_parts(frozen, act):
    model = Forward(lambda m, x: m.second(act(m.group(m.first(x)))))
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    for network_ in (model, converted):
        network_(X).square().sum().backward()
    assert_same_gradients(converted, model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["convnext", "transformer", "decoder", "an instance norm", "an InstanceNorm in place",
                                  "an InstanceNorm and SiLU"])
def test_autocast(name, dtype):
    model = Forward(FORWARDS[name][0]).float()
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    results, kept = [], []
    for network_ in (model, converted):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            y = network_(X.float())
        y.float().square().mean().backward()
        results.append([y.float()] + [p.grad for p in network_.parameters() if p.grad is not None])
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            kept.append(kept_bytes(network_, X.float()))
    largest = max(want.norm() for want in results[0])  # a bias in front of a normalization has a gradient of rounding alone
    for got, want in zip(results[1], results[0], strict=True):
        assert (got - want).norm() <= (1e-5 if dtype is torch.float32 else 0.02) * max(want.norm(), 0.01 * largest)
    assert kept[1] < 0.75 * kept[0]


@pytest.mark.parametrize("name", ["two readers", "decoder", "convnext", "transformer"])
def test_autocast_of_a_gpu(name, monkeypatch):
    """There normalizations of 16 bits run in f32: here their functions are made to do so."""
    def widened(function):
        def call(x, *arguments, **keywords):
            if not torch.is_autocast_enabled("cpu"):
                return function(x, *arguments, **keywords)
            with torch.autocast("cpu", enabled=False):
                return function(x.float(), *arguments, **keywords)
        return call

    for function in ("group_norm", "layer_norm"):
        monkeypatch.setattr(F, function, widened(getattr(F, function)))
    compute = FORWARDS[name][0]
    model = Forward(lambda m, x: compute(m, m.first(x)) if name in ("convnext", "transformer") else compute(m, x)).float()
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    results, kept = [], []
    for network_ in (model, converted):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            y = network_(X.float())
        y.float().square().mean().backward()
        results.append([y.float()] + [p.grad for p in network_.parameters() if p.grad is not None])
        with torch.autocast("cpu", torch.bfloat16):
            kept.append(kept_bytes(network_, X.float()))
    for got, want in zip(results[1], results[0], strict=True):
        # A convolution that is called twice sums its gradients in another type.
        assert (got - want).norm() <= 0.005 * want.norm()
    assert kept[1] < 0.6 * kept[0]


def test_weights_that_change_before_backward_are_an_error():
    """As in the original, whose normalization saves its weight."""
    model = Forward(FORWARDS["two readers"][0])
    for network_ in (model, palimpsest.convert(copy.deepcopy(model))[0]):
        y = network_(X)
        with torch.no_grad():
            network_.group.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_an_input_that_changes_before_backward_is_an_error():
    model = Forward(lambda m, x: (m.second(F.silu(m.group(y := m.first(x)))), y))
    for network_ in (model, palimpsest.convert(copy.deepcopy(model))[0]):
        z, y = network_(X)
        with torch.no_grad():
            y.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


@pytest.mark.parametrize("norm", ["GroupNorm", "InstanceNorm2d of weights"])
@pytest.mark.parametrize("act", ["relu", "silu", "leaky in place"])
def test_two_backward_passes_and_a_part_of_the_graph(act, norm):
    model = network(NORMS[norm], ACTIVATIONS[act])
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    results = []
    for network_ in (model, converted):
        y = network_(X)
        weights = [p for p in network_.parameters()]
        grads = [torch.autograd.grad(y.sum(), weights, retain_graph=True) for _ in range(2)]
        grads.append(torch.autograd.grad(y.square().sum(), [network_[3].weight], retain_graph=True))
        grads.append(torch.autograd.grad(y.sum(), weights))
        results.append([g for some in grads for g in some])
    assert_all_close(results[1], results[0])


def test_a_normalization_runs_twice_and_an_activation_too(monkeypatch):
    """Once in forward and once in backward, though the convolution and the activation both read it there."""
    calls = []
    group_norm = F.group_norm
    converted, _ = palimpsest.convert(network(NORMS["GroupNorm"], nn.SiLU))
    monkeypatch.setattr(F, "group_norm", lambda *a, **k: calls.append(1) or group_norm(*a, **k))
    converted(X).sum().backward()
    assert len(calls) == 4  # two layers


def test_nothing_is_held_after_backward():
    model, _ = palimpsest.convert(network(NORMS["GroupNorm"], nn.SiLU))
    model(X).sum().backward()
    with palimpsest.memory.measure() as measured:
        for _ in range(3):
            model(X).sum().backward()
    assert abs(measured.end_bytes) < T_BYTES


@pytest.mark.parametrize("name", ["convnext_atto", "resnetv2_50x1_bit", "vit_tiny_patch16_224"])
def test_networks_of_timm(name):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4, **({"img_size": 32} if "vit" in name else {})).double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.double)
    assert_same_after(model, x)
    _, report = palimpsest.convert(model)
    assert len(report.converted) > len(report.left)

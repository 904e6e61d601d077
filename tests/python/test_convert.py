"""The rules of convert(): what a network may do, and what may not be lost."""
import copy
import io
import pickle
import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest

X = torch.randn(4, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def conv_bn(c_in=3, c_out=6, act=None):
    return [nn.Conv2d(c_in, c_out, 3, padding=1), nn.BatchNorm2d(c_out)] + ([act] if act else [])


def small(act=None):
    torch.manual_seed(0)
    return nn.Sequential(*conv_bn(act=act or nn.ReLU(inplace=True)), *conv_bn(6, 6, nn.SiLU())).double()


def step(model, x=X, seed=1):
    """Outputs, gradients and buffers of a step in the mode of the model."""
    torch.manual_seed(seed)
    model.zero_grad()
    x = x.clone().requires_grad_(True)
    out = model(x)
    out = sum(out.values()) if isinstance(out, dict) else out
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [out.detach(), x.grad, *gradients], [b.clone() for b in model.buffers()]


def assert_same(model, converted, x=X):
    for a, b in zip(step(model, x), step(converted, x)):
        assert len(a) == len(b)
        for s, t in zip(a, b):
            torch.testing.assert_close(t, s, rtol=1e-9, atol=1e-10)


def convert_copy(model, *arguments, **keywords):
    return palimpsest.convert(copy.deepcopy(model), *arguments, **keywords)


class Forward(nn.Module):
    """Convolutions, normalizations and activations, put together by a function."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1, bias=False)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(6), nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.relu, self.pool, self.double_conv = nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(12, 6, 1, bias=False)
        for bn in (self.bn1, self.bn2, self.bn3):
            nn.init.normal_(bn.weight)
            nn.init.normal_(bn.bias)
        self.function = function
        self.double()

    def forward(self, x):
        return self.function(self, x)


def _residual(m, x, act):
    z = F.relu(m.bn1(m.conv1(x)))
    return act(m.bn2(m.conv2(z)) + z)


def _two_sums(m, x, act):
    a = m.relu(m.bn1(m.conv1(x)) + m.conv1(x))
    b = act(m.bn2(m.conv2(a)) + a)
    return act(m.bn3(m.conv3(b)) + b) + F.avg_pool2d(b, 3, 1, 1)


def _in_place_on_identity(m, x):
    y = m.bn1(m.conv1(x))
    y += 1
    return m.conv2(y)


def _changed_before_reading(m, x):
    z = F.silu(m.bn1(m.conv1(x)))
    again = z
    z += 1
    z.mul_(2)
    return m.conv2(z) + m.conv3(again)


def _residual_changed_later(m, x):
    r = m.conv1(x)
    out = m.bn2(m.conv2(m.relu(m.bn1(m.conv1(x))))) + r
    r.mul_(2)
    return out


def _input_changed(m, x):
    y = m.conv1(x)
    y *= 2
    return m.conv2(F.silu(m.bn1(y)))


def _input_changed_through_a_view(m, x):
    y = m.conv1(x)
    part = y[:, :3]
    part.mul_(2)
    return m.conv2(F.silu(m.bn1(y)))


def _feature_changed(m, x):
    a, b = m.conv1(x), m.conv2(m.conv1(x))
    y = m.bn12(torch.cat([a, b], 1))
    a.mul_(2)
    return m.double_conv(F.relu(y)) + a


def _input_changed_by_another_name(m, x):
    y = m.conv1(x)
    again = y
    y *= 2
    return m.conv2(F.silu(m.bn1(again)))


def _excitation(m, x, act):
    z = act(m.bn1(m.conv1(x)))
    return m.conv2(z * z.mean((2, 3), keepdim=True).sigmoid()) + m.conv3(z)


def _chunks(m, x):
    a, b = F.silu(m.bn1(m.conv1(x))).chunk(2, 1)
    return m.conv2(torch.cat([b, a], 1)) + m.conv3(torch.cat([a * 2, b], 1))


PATTERNS = {
    "conv reads": lambda m, x: m.conv2(F.silu(m.bn1(m.conv1(x)))),
    "two convs read": lambda m, x: m.conv2(z := F.gelu(m.bn1(m.conv1(x)))) + m.conv3(z),
    "pool and conv read": lambda m, x: F.interpolate(m.pool(z := m.relu(m.bn1(m.conv1(x)))), scale_factor=2) + m.conv2(z),
    "method": lambda m, x: m.conv2(m.bn1(m.conv1(x)).relu()),
    "leaky": lambda m, x: m.conv2(F.leaky_relu(m.bn1(m.conv1(x)), 0.2)),
    "elu": lambda m, x: m.conv2(F.elu(m.bn1(m.conv1(x)), 0.7)),
    "sigmoid": lambda m, x: m.conv2(torch.sigmoid(m.bn1(m.conv1(x)))),
    "gelu tanh": lambda m, x: m.conv2(F.gelu(m.bn1(m.conv1(x)), approximate="tanh")),
    "hardswish": lambda m, x: m.conv2(F.hardswish(m.bn1(m.conv1(x)))),
    "mish": lambda m, x: m.conv2(F.mish(m.bn1(m.conv1(x)))),
    "relu6": lambda m, x: m.conv2(F.relu6(m.bn1(m.conv1(x)))),
    "nothing behind": lambda m, x: m.bn1(m.conv1(x)),
    "residual relu": lambda m, x: _residual(m, x, F.relu),
    "residual silu": lambda m, x: _residual(m, x, F.silu),
    "residual relu6": lambda m, x: _residual(m, x, F.relu6),
    "residual leaky": lambda m, x: _residual(m, x, lambda t: F.leaky_relu(t, 0.1)),
    "residual linear": lambda m, x: _residual(m, x, lambda t: t),
    "sums": lambda m, x: _two_sums(m, x, m.relu),
    "sums silu": lambda m, x: _two_sums(m, x, F.silu),
    "two norms added": lambda m, x: m.relu(m.bn1(m.conv1(x)) + m.bn2(m.conv2(m.conv1(x)))),
    "broadcast sum": lambda m, x: m.relu(m.bn1(m.conv1(x)) + m.conv1(x).mean((2, 3), keepdim=True)),
    "added to itself": lambda m, x: (y := m.bn1(m.conv1(x))) + y,
    "shared norm": lambda m, x: m.relu(m.bn1(m.conv2(F.silu(m.bn1(m.conv1(x)))))),
    "pre-activation": lambda m, x: (y := m.conv1(x)) + m.conv2(F.relu(m.bn1(y))),
    "input kept anyway": lambda m, x: m.conv2(y := m.conv1(x)) + m.conv3(F.relu(m.bn1(y))),
    "concatenated": lambda m, x: m.double_conv(F.relu(m.bn12(torch.cat([a := m.conv1(x), m.conv2(a)], 1)))),
    "excitation silu": lambda m, x: _excitation(m, x, F.silu),
    "excitation relu6": lambda m, x: _excitation(m, x, F.relu6),
    "chunks": _chunks,
    "in place on a sum": lambda m, x: m.relu((m.bn1(m.conv1(x)) + m.conv1(x)).add_(1)),
    "in place on identity": _in_place_on_identity,
    "changed before reading": _changed_before_reading,
    "residual changed later": _residual_changed_later,
    "input changed": _input_changed,
    "input changed by another name": _input_changed_by_another_name,
    "a dict": lambda m, x: {"a": m.relu(m.bn1(m.conv1(x))), "b": m.bn2(m.conv1(x))},
    "no_grad inside": lambda m, x: m.relu(m.bn1(m.conv1(x))) + _without_grad(m, x),
    "an optional input": lambda m, x, scale=None: m.conv2(F.silu(m.bn1(m.conv1(x)))),
    "input changed through a view": _input_changed_through_a_view,
    "feature changed": _feature_changed,
    "added to a number": lambda m, x: F.relu(m.bn1(m.conv1(x)) + x.size(0)),
    "random numbers": lambda m, x: m.conv2(F.dropout(F.silu(m.bn1(m.conv1(x))), 0.5, m.training)),
}


# What these do to the tensors of the layer would be lost, or an error of autograd, so that bn1 stays as it is.
LEFT = ("in place on identity", "in place on a sum", "nothing behind", "input changed by another name",
        "input changed through a view", "no_grad inside")


def _without_grad(m, x):
    with torch.no_grad():
        return m.bn2(m.conv1(x))


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_pattern_equals_the_original(name, channels_last):
    model = Forward(PATTERNS[name])
    if name in ("concatenated", "feature changed"):
        model.bn12 = nn.BatchNorm2d(12).double()
    x = X
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), X.contiguous(memory_format=torch.channels_last)
    converted, report = convert_copy(model)
    assert bool({"bn1", "bn12"} & set(report.converted)) != (name in LEFT), str(report)
    for training in (True, False):
        assert_same(model.train(training), converted.train(training), x)
        assert_same(model, converted, x[:, :, :6, :4])
    converted.load_state_dict(model.state_dict())
    with torch.no_grad():
        outputs = [m(x) for m in (model, converted)]
    if isinstance(outputs[0], dict):
        outputs = [sum(out.values()) for out in outputs]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("zero", ["weight", "both"])
def test_a_weight_of_zero(zero):
    """As networks that start their residual blocks at zero have it: the sum is 0 where ReLU was, with gradient 0 there."""
    model = Forward(lambda m, x: _two_sums(m, x, m.relu))
    for bn in (model.bn2, model.bn3):
        nn.init.zeros_(bn.weight)
        if zero == "both":
            nn.init.zeros_(bn.bias)
    assert_same(model, convert_copy(model)[0])


@pytest.mark.parametrize("setting", [{"affine": False}, {"track_running_stats": False}, {"momentum": None}, {"eps": 0.1}])
def test_settings_of_the_normalization(setting):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6, **setting), nn.ReLU(), nn.Conv2d(6, 6, 1)).double()
    converted = convert_copy(model)[0]
    for _ in range(2):
        assert_same(model, converted)
    assert_same(model.eval(), converted.eval())


def test_normalizations_of_one_and_three_dimensions():
    for conv, bn, shape in ((nn.Conv1d, nn.BatchNorm1d, (4, 3, 9)), (nn.Conv3d, nn.BatchNorm3d, (2, 3, 4, 5, 6))):
        torch.manual_seed(0)
        model = nn.Sequential(conv(3, 6, 3), bn(6), nn.ReLU(), conv(6, 4, 1)).double()
        converted, report = convert_copy(model)
        assert report.converted == ["1"]
        assert_same(model, converted, torch.randn(shape, dtype=torch.float64))


def test_frozen_statistics_and_frozen_weights():
    model = small()
    model[1].eval()
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    assert_same(model, convert_copy(model)[0])


def test_one_value_per_channel_is_refused_as_by_torch():
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.ReLU())
    converted = convert_copy(model)[0]
    for m in (model, converted):
        with pytest.raises((ValueError, RuntimeError), match="more than (1|one) value per channel"):
            m(torch.randn(1, 3, 1, 1))


def test_empty_batch():
    model = small()
    assert_same(model, convert_copy(model)[0], X[:0])


def test_hooks_before_and_after():
    model = small()
    seen = []
    model[1].register_forward_hook(lambda *_: seen.append("before"))
    converted, report = palimpsest.convert(model)
    assert report.converted == ["4"] and "hooks" in report.left["1"]
    converted(X)
    handle = converted[4].register_forward_hook(lambda *_: seen.append("after"))
    with pytest.warns(RuntimeWarning, match="1 were") as caught:
        converted(X)
    assert caught[0].filename == __file__
    assert seen == ["before", "before", "after"]
    handle.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted(X)
    assert seen == ["before", "before", "after", "before"]


def test_a_layer_that_is_replaced_later():
    model = small()
    converted, _ = convert_copy(model)
    for m in (model, converted):
        torch.manual_seed(3)
        m[5] = nn.Tanh()
        m[3] = nn.Conv2d(6, 6, 1).double()
    assert_same(model, converted)


def test_compile_sees_what_changed_later():
    torch._dynamo.reset()
    model = small()
    converted, _ = convert_copy(model)

    def compiled():
        return torch.compile(converted, fullgraph=True, backend="aot_eager")

    assert_same(model, compiled())
    for m in (model, converted):
        torch.manual_seed(3)
        m[5] = nn.Tanh()
    assert_same(model, compiled())
    for m in (model, converted):
        m[2] = nn.LeakyReLU(0.5)
    assert_same(model, compiled())
    for m in (model, converted):
        m[2].negative_slope = 0.1
    assert_same(model, compiled())
    seen = []
    converted[2].register_forward_hook(lambda *_: seen.append(1))
    torch._dynamo.reset()  # torch.compile itself does not look for new hooks
    assert_same(model, compiled())
    assert seen


def test_compile_calls_a_backward_hook_of_later():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.SiLU(), nn.Conv2d(6, 6, 1)).double()
    converted, _ = convert_copy(model)
    for m in (model, converted):
        m[1].register_full_backward_hook(lambda module, gradients, _: tuple(2 * g for g in gradients))
    assert_same(model, torch.compile(converted, backend="eager"))


def test_an_attribute_that_changes_later():
    class Scaled(Forward):
        scale = 1.0

        def forward(self, x):
            return self.relu(self.bn1(self.conv1(x))) * self.scale

    model = Scaled(None)
    model.scale = 2.0
    converted, _ = convert_copy(model)
    assert_same(model, converted)
    model.scale = converted.scale = 3.0
    assert_same(model, converted)


def test_optional_inputs():
    class Optional(Forward):
        def forward(self, x, mask=None, twice=False):
            z = self.relu(self.bn1(self.conv1(x)))
            if mask is not None:
                z = z * mask
            return self.conv2(z) * 2 if twice else self.conv2(z)

    model = Optional(None)
    converted, report = convert_copy(model)
    assert report.converted
    mask = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    calls = (((X,), {}), ((X, mask), {}), ((X,), {"mask": mask}), ((X, None, True), {}), ((X,), {"twice": True}))
    for arguments, keywords in calls:
        with warnings.catch_warnings():  # of a graph without the layer
            warnings.simplefilter("error", RuntimeWarning)
            a, b = model(*arguments, **keywords), converted(*arguments, **keywords)
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["branch on values", "keeps a tensor", "draws a number", "autograd function", "checkpoint",
                                  "constant"])
def test_a_forward_without_a_graph_leaves_its_children_to_be_converted(kind):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    class Strange(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = small()

        def forward(self, x):
            if kind == "checkpoint":
                return palimpsest.checkpoint(self.body, x)
            out = self.body(x)
            if kind == "branch on values" and out.sum() > 1e9:
                return out * 2
            if kind == "keeps a tensor":
                self.last = out.detach()
            if kind == "draws a number" and float(torch.rand(())) < 0.5:
                out = out * 2
            if kind == "autograd function":
                out = Square.apply(out)
            return out + torch.ones(8, dtype=torch.float64) if kind == "constant" else out

    model = Strange()
    names = set(vars(model))
    converted, report = palimpsest.convert(copy.deepcopy(model))
    assert set(vars(converted)) == names and len(report.converted) == 2, str(report)
    assert type(converted) is Strange
    assert_same(model, converted)


def test_checkpoint_moves_the_statistics_once():
    model = small()
    converted, _ = convert_copy(model)
    x = X.clone().requires_grad_(True)
    model(X).sum().backward()
    palimpsest.checkpoint(converted, x).sum().backward()
    for a, b in zip(model.buffers(), converted.buffers()):
        torch.testing.assert_close(a, b)
    for a, b in zip(model.parameters(), converted.parameters()):
        torch.testing.assert_close(a.grad, b.grad)


def test_checkpoint_of_a_part_keeps_its_input_alone():
    model = Forward(PATTERNS["excitation silu"])
    converted, _ = palimpsest.convert(model)
    x = X.clone().requires_grad_(True)
    with palimpsest.memory.measure() as m:
        out = palimpsest.checkpoint(converted, x)
        m.forward_done()
        out.sum().backward()
    assert m.kept_bytes < 1.5 * out.numel() * 8


def test_modes_that_have_no_rule_run_the_own_forward():
    model = small()
    converted, _ = convert_copy(model)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        moved = {k: v * 1.5 for k, v in parameters.items()}
    a = torch.func.functional_call(model.eval(), moved, (X,))
    torch.testing.assert_close(torch.func.functional_call(converted.eval(), moved, (X,)), a)
    grads = [torch.func.grad(lambda p, m=m: torch.func.functional_call(m, p, (X,)).sum())(parameters)
             for m in (model, converted)]
    for key in parameters:
        torch.testing.assert_close(*(g[key] for g in grads))
    traced = torch.jit.trace(converted, X, check_trace=False)
    assert "palimpsest" not in str(traced.inlined_graph)
    for strict in (False, True):
        program = torch.export.export(converted, (X,), strict=strict)
        assert not any("palimpsest" in str(node.target) for node in program.graph.nodes)
        torch.testing.assert_close(program.module()(X), model(X))


def test_copies_and_files():
    model = small()
    converted, _ = convert_copy(model)
    stored = io.BytesIO()
    torch.save(converted, stored)
    stored.seek(0)
    copies = [copy.deepcopy(converted), pickle.loads(pickle.dumps(converted)), torch.load(stored, weights_only=False)]
    for other in copies:
        assert type(other).__name__ == "Sequential" and isinstance(other, nn.Sequential)
        assert_same(model, other)
        model.load_state_dict(converted.state_dict())
        other.load_state_dict(model.state_dict(), strict=True)
        palimpsest.revert(other)
        assert type(other) is nn.Sequential
    assert_same(model, converted)


class _WithAux(nn.Module):
    """Reads an attribute of a part that its graph calls."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))
        self.aux = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))

    def forward(self, x):
        y = self.body(x)
        return y if self.aux is None else y * self.aux[1].eps + self.aux(y)


def test_files_of_a_network_that_lost_a_part():
    model = _WithAux().double()
    converted, _ = convert_copy(model)
    assert any(path == "aux.1" for path, _ in converted._palimpsest_settings.read_of_called)
    model.aux = converted.aux = None
    other = pickle.loads(pickle.dumps(converted))
    for part in (None, nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).double(), None):
        model.aux, other.aux = part, copy.deepcopy(part)
        assert_same(model, other)
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(other, backend="eager")(X), model(X))


def test_files_of_an_older_version():
    model = _WithAux().double()
    converted, _ = convert_copy(model)
    del converted._palimpsest_settings.read_of_called
    other = pickle.loads(pickle.dumps(converted))
    assert_same(model, other)
    assert_same(model, copy.deepcopy(other))


def test_pools_and_dense_blocks_of_untraceable_parents():
    class Strange(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.pool = nn.Conv2d(3, 4, 1), nn.MaxPool2d(2)

        def forward(self, x):
            return self.pool(self.conv(x)) if float(x.sum()) < 1e9 else x

    model = Strange().double()
    converted, report = convert_copy(model)
    assert report.converted
    assert_same(model, converted)


@pytest.mark.parametrize("has_graph", [True, False])
def test_a_shared_module_is_the_same_for_the_other_model(has_graph):
    class Opaque(nn.Sequential):
        def forward(self, x):
            return super().forward(x) if float(x.sum()) < 1e9 else x

    body = small()
    original = copy.deepcopy(body)
    one = (nn.Sequential if has_graph else Opaque)(body, nn.ReLU())
    kinds = [type(m) for m in body.modules()]
    assert len(palimpsest.convert(one)[1].converted) == 2
    assert ([type(m) for m in body.modules()] == kinds) == has_graph
    for training in (True, False):
        assert_same(original.train(training), body.train(training))
    palimpsest.revert(one)
    assert [type(m) for m in body.modules()] == kinds


def test_module_filter():
    model = small()
    asked = []
    converted, report = palimpsest.convert(model, module_filter_fn=lambda m, name: asked.append(name) or name != "1")
    assert report.converted == ["4"] and report.left == {"1": "not selected"} and asked == ["1", "4"]


@pytest.mark.parametrize("strategy", ["checkpoint", "checkpoint_normalized", "store_y"])
def test_strategies(strategy):
    model = small()
    converted, report = convert_copy(model, strategy=strategy)
    assert len(report.converted) == 2
    assert_same(model, converted)
    with pytest.raises(ValueError, match="relu"):
        palimpsest.convert(model, strategy="inplace_2")
    assert type(model) is nn.Sequential
    leaky, _ = palimpsest.convert(nn.Sequential(*conv_bn(act=nn.LeakyReLU())), strategy="inplace_2")


@pytest.mark.parametrize("strategy", ["checkpoint", "checkpoint_normalized", "inplace_1", "inplace_2", "inplace_bit", "store_y"])
def test_the_report_names_the_strategy_of_a_layer(strategy):
    act = nn.SiLU() if strategy == "inplace_bit" else nn.LeakyReLU()
    _, report = palimpsest.convert(nn.Sequential(*conv_bn(act=act), nn.AvgPool2d(2)), strategy=strategy)
    assert f"({strategy})" in str(report)


def test_the_proof_restores_the_model_and_reports():
    model = nn.Sequential(*small(), nn.Dropout(0.3)).double()
    model[1].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    state = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    converted, report = palimpsest.convert(model, X)
    assert converted is model and report.kept_bytes_after < report.kept_bytes_before
    assert "2 of 2 layers converted" in str(report) and re.search(r"[\d.]+ [kM]B, [\d.]+ [kM]B before", str(report))
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert [m.training for m in (model, model[0], model[1])] == [True, True, False]
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight)) and model[3].weight.grad is None
    assert torch.equal(random, torch.get_rng_state())


def test_the_proof_leaves_a_wrong_layer_alone(monkeypatch):
    """A layer made wrong on purpose is found, and only it."""
    from palimpsest._convert import runtime
    right = runtime._settings

    def wrong(norm, x):
        weight, *rest = right(norm, x)
        return (weight * 2 if norm.eps == 2e-5 else weight), *rest

    monkeypatch.setattr(runtime, "_settings", wrong)
    model = small()
    model[1].eps = 2e-5
    model, report = palimpsest.convert(model, (X,))
    assert report.converted == ["4"] and "differed" in report.left["1"]
    assert_same(palimpsest.revert(copy.deepcopy(model)), model)


def test_nothing_to_convert():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4))
    same, report = palimpsest.convert(model)
    assert same is model and type(model) is nn.Sequential and not report.converted
    assert "nothing was converted" in str(report) and report.left == {"2": "its result goes to others than convolutions and linear layers"}
    assert palimpsest.revert(model) is model
    with pytest.raises(ValueError, match="not converted"):
        palimpsest.revert(model)


class _Refusal:
    """A call of convert() that must fail, and what the message says."""
    cases = {
        "twice": (lambda: palimpsest.convert(small())[0], {}, "converted already"),
        "inside": (lambda: nn.Sequential(palimpsest.convert(small())[0]), {}, "'0' is converted already"),
        "script": (lambda: torch.jit.script(small()), {}, "TorchScript"),
        "frozen script": (lambda: torch.jit.freeze(torch.jit.script(small().eval())), {}, "TorchScript"),
        "frozen": (lambda: small().requires_grad_(False), {}, "requires a gradient"),
        "devices": (lambda: nn.Sequential(small(), nn.Linear(2, 2, device="meta")), {}, "one device, got cpu, meta"),
        "inputs": (small, {"example_inputs": torch.randn(2, 5, 8, 8)}, "refuses example_inputs"),
        "strategy": (small, {"strategy": "fast"}, "strategy must be one of auto"),
        "standard": (small, {"strategy": "standard"}, "strategy must be one of auto"),
        "pair": (small, {"strategy": "inplace_1"}, "'inplace_1' does not fit the activation 'relu'.* take one of auto, checkpoint, .*store_y$"),
        "no module": (lambda: torch.relu, {}, "needs a torch.nn.Module"),
        "compiled": (lambda: torch.compile(small()), {}, "before torch.compile"),
    }


@pytest.mark.parametrize("name", _Refusal.cases)
def test_refusals(name):
    make, keywords, message = _Refusal.cases[name]
    model = make()
    kinds = [type(m) for m in model.modules()] if isinstance(model, nn.Module) else None
    state = copy.deepcopy(model.state_dict()) if kinds and name != "devices" else {}
    with pytest.raises(ValueError, match=message) as error:
        palimpsest.convert(model, **keywords)
    assert "\n" not in str(error.value)
    if kinds:
        assert [type(m) for m in model.modules()] == kinds
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items() if k in state)


def test_a_quantized_model_is_refused():
    if not hasattr(nn, "quantized"):
        pytest.skip("this torch has no quantized layers")
    model = nn.Sequential(nn.quantized.Linear(3, 4))
    with pytest.raises(ValueError, match="quantized"):
        palimpsest.convert(model)


def test_revert_refuses_a_model_that_is_not_converted():
    with pytest.raises(ValueError, match="not converted"):
        palimpsest.revert(small())


def _one_of_two(rank, file, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    try:
        both = []
        for converted in (False, True):
            model = small()
            if converted:
                palimpsest.convert(model)
            parallel = nn.parallel.DistributedDataParallel(model)
            for i in range(2):
                parallel(X[2 * rank:2 * rank + 2] + i).square().sum().backward()
            both.append([p.grad.clone() for p in model.parameters()])
        for a, b in zip(*both):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
        results.put((rank, None))
    except Exception as error:  # noqa: BLE001: the parent reports it
        results.put((rank, repr(error)))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package")
def test_distributed_data_parallel(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = torch.multiprocessing.get_context("spawn")  # a fork after a backward with threads is refused
    results = context.SimpleQueue()
    processes = [context.Process(target=_one_of_two, args=(rank, tmp_path / "meeting", results)) for rank in range(2)]
    for process in processes:
        process.start()
    answers = [results.get() for _ in processes]
    for process in processes:
        process.join()
    assert sorted(answers) == [(0, None), (1, None)]

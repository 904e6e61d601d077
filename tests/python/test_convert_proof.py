"""convert() with example inputs: what it proves, what it gives back, and what it refuses."""
import copy
import gc
import itertools
import pickle
import random
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from networks import NETWORKS, from_package
from palimpsest import functional
from palimpsest._convert import again, proof, readers, region, runtime, writer
from test_convert import X, Forward, assert_same, conv_bn, small


class Opaque(nn.Module):
    """A forward without a graph, so that its parts are converted one by one."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        if float(x.detach().sum()) > 1e9:
            return x
        for part in self.parts:
            x = part(x)
        return x


def marked():
    """A network whose first normalization a test makes wrong."""
    model = small()
    model[1].eps = 2e-5
    return model


def make_wrong(monkeypatch, wrong):
    """wrong(norm, settings) in place of the settings of the marked normalization."""
    right = runtime._settings
    monkeypatch.setattr(runtime, "_settings",
                        lambda norm, x: wrong(norm, right(norm, x)) if norm.eps == 2e-5 else right(norm, x))


def twice_the_weight(norm, settings):
    return settings[0] * 2, *settings[1:]


def assert_plain(model, kinds):
    assert [type(m) for m in model.modules()] == kinds
    assert not any("palimpsest" in key for m in model.modules() for key in vars(m))


@pytest.mark.parametrize("name", ["efficientnet_b0", "resnet18", "yolo_like"])
def test_a_network_proves_itself(name):
    makers = {"resnet18": from_package("torchvision.models", lambda models: models.resnet18())}
    build = makers.get(name) or NETWORKS[name][0]
    torch.manual_seed(0)
    model = build()
    state = copy.deepcopy(model.state_dict())
    model, report = palimpsest.convert(model, torch.randn(2, 3, 64, 64))
    assert report.converted and not report.notes
    assert not [how for how in report.left.values() if "differed" in how or "raised" in how], str(report)
    assert report.kept_bytes_after < report.kept_bytes_before
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_a_layer_that_raises_is_left_alone(monkeypatch):
    def refuse(norm, settings):
        raise RuntimeError("no such layer")

    make_wrong(monkeypatch, refuse)
    model, report = palimpsest.convert(marked(), X)
    assert report.converted == ["4"] and "raised" in report.left["1"] and "no such layer" in report.left["1"]
    assert_same(marked(), model)


def test_no_layer_is_converted_if_all_raise(monkeypatch):
    def refuse(norm, x):
        raise RuntimeError("no such layer")

    monkeypatch.setattr(runtime, "_settings", refuse)
    model = small()
    kinds = [type(m) for m in model.modules()]
    model, report = palimpsest.convert(model, X)
    assert not report.converted and "nothing was converted" in str(report)
    assert report.kept_bytes_after == report.kept_bytes_before
    assert_plain(model, kinds)


def test_a_layer_that_raises_in_the_own_dtype_only(monkeypatch):
    def refuse(norm, settings):
        if settings[0].dtype == torch.float32:
            raise RuntimeError("not in f32")
        return settings

    make_wrong(monkeypatch, refuse)
    model = marked().float()
    kinds = [type(m) for m in model.modules()]
    model, report = palimpsest.convert(model, X.float())
    assert not report.converted and "not in f32" in str(report)
    assert_plain(model, kinds)


@pytest.mark.parametrize("kind", ["other values", "raises"])
def test_a_model_that_is_not_the_same_twice_is_left_alone(kind):
    calls = itertools.count()

    class Counting(Opaque):
        def forward(self, x):
            call = next(calls)
            if kind == "raises" and call > 4:
                raise RuntimeError("called too often")
            return super().forward(x) * (call if kind == "other values" else 1)

    model = Counting(small())
    kinds = [type(m) for m in model.modules()]
    model, report = palimpsest.convert(model, X)
    assert not report.converted and "not do the same twice" in str(report)
    assert kind != "raises" or "called too often" in str(report)
    assert_plain(model, kinds)


def test_random_numbers_are_the_same_for_both():
    class Noisy(Opaque):
        def __init__(self, *parts):
            super().__init__(*parts)
            self.generator = torch.Generator().manual_seed(1)

        def forward(self, x):
            return super().forward(x) * random.random() + torch.rand(1, generator=self.generator, dtype=x.dtype)

    model = Noisy(small())
    states = random.getstate(), model.generator.get_state()
    model, report = palimpsest.convert(model, X)
    assert len(report.converted) == 2
    assert random.getstate() == states[0] and torch.equal(model.generator.get_state(), states[1])


def test_a_nan_does_not_hide_a_difference(monkeypatch):
    make_wrong(monkeypatch, twice_the_weight)

    class Nan(Opaque):
        def forward(self, x):
            y = super().forward(x)
            return y, y.detach().sum() * float("nan")

    _, report = palimpsest.convert(Nan(marked()), X)
    assert report.converted == ["parts.0.4"]


def test_an_output_that_needs_no_gradient_is_compared(monkeypatch):
    make_wrong(monkeypatch, lambda norm, settings: (settings[0], settings[1] + 1, *settings[2:]))

    class Detached(Opaque):
        def forward(self, x):
            y = super().forward(x)
            return y.detach(), y * 0

    _, report = palimpsest.convert(Detached(nn.Sequential(*conv_bn(act=nn.SiLU()))).double(), X)
    assert report.converted  # of a right network
    _, report = palimpsest.convert(Detached(marked()), X)
    assert report.converted == ["parts.0.4"]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("before, after, are_equal", [
    ([[1.0, NAN]], [[1.0, NAN]], True),
    ([[1.0, NAN]], [[2.0, NAN]], False),
    ([[1.0, NAN]], [[NAN, 1.0]], False),
    ([[1.0, INF]], [[1.0, INF]], True),
    ([[1.0, INF]], [[1.0, -INF]], False),
    ([[1000.0], [1.0]], [[1000.0], [1.28]], False),     # a small gradient beside a large one
    ([[1000.0], [1e-5]], [[1000.0], [-1e-5]], True),     # 0 but for rounding
    ([[1]], [[2]], False),
    ([[1.0]], [[1.0], [1.0]], False),
    ([[1.0]], [[1]], False),
])
def test_the_rule_of_equality(before, after, are_equal):
    before, after = ([torch.tensor(value) for value in values] for values in (before, after))
    assert proof._equal_tensors(before, after) == are_equal


def test_a_small_gradient_of_a_network_in_f32(monkeypatch):
    """A part of the marked layer's gradient is lost, which is little beside the gradients of the other part."""
    class Shortened(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            return weight.clone()

        @staticmethod
        def backward(ctx, dy):
            return dy * 0.7

    make_wrong(monkeypatch, lambda norm, settings: (Shortened.apply(settings[0]), *settings[1:]))

    class InF32(Opaque):
        def forward(self, x):
            a, b = self.parts
            return a(x.float()) * 0.1 + b(x.float()) * 10

    _, report = palimpsest.convert(InF32(marked(), small()).float(), X.float())
    assert report.converted == ["parts.0.4", "parts.1.1", "parts.1.4"], str(report)


@pytest.mark.parametrize("attribute", ["a generator", "a tensor with a graph", "a copy that shares"])
def test_a_model_that_cannot_be_copied(monkeypatch, attribute):
    make_wrong(monkeypatch, twice_the_weight)
    model = Opaque(marked(), nn.ReLU())
    if attribute == "a generator":
        model.held = (i for i in range(3))
    elif attribute == "a tensor with a graph":
        model.held = model.parts[0][0].weight * 2
    else:
        model.held = "the parts"
        monkeypatch.setattr(Opaque, "__deepcopy__", lambda self, memo: Opaque(*self.parts), raising=False)
    held, state = model.held, copy.deepcopy(model.state_dict())
    model, report = palimpsest.convert(model, X)
    assert report.converted == ["parts.0.4"] and model.held is held
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert attribute != "a generator" or list(held) == [0, 1, 2]


def test_a_forward_that_begins_in_place():
    class First(Forward):
        def forward(self, x):
            x -= 0.5
            return self.conv2(torch.relu(self.bn1(self.conv1(x))))

    x = X.clone()
    model, report = palimpsest.convert(First(None), x)
    assert report.kept_bytes_before and torch.equal(x, X)
    torch.testing.assert_close(model(X.clone()), First(None)(X.clone()), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("can_be_copied", [True, False])
def test_the_proof_gives_everything_back(can_be_copied):
    class Meter:
        total = 0

    class Recording(Opaque):
        def __init__(self, *parts):
            super().__init__(*parts)
            self.calls, self.outputs, self.options, self.names = 0, [], {"scale": 1.0, "by name": {"a": [1]}}, {"a"}
            self.meter, self.space, self.plain = Meter(), types.SimpleNamespace(n=0), torch.zeros(1)
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
            self.register_buffer("center", torch.zeros(6, dtype=torch.float64))
            self.register_buffer("replaced", torch.zeros(6, dtype=torch.float64))

        def forward(self, x):
            y = super().forward(x)
            with torch.no_grad():
                self.calls += 1
                self.outputs.append(y.detach())
                self.options["scale"] *= 2
                self.options["by name"]["a"].append(2)
                self.names.add("b")
                self.meter.total += 1
                self.space.n += 1
                self.plain += 1
                self.steps += 1
                self.center.mul_(0.9).add_(y.mean((0, 2, 3)))
                self.replaced = self.replaced + 1
                self.parts[0][0].weight.data = self.parts[0][0].weight.data * 0.5
                self.parts[0][3].bias.mul_(0.5)
                self.new = 1
            return y

    model = Recording(small())
    model.parts[0][1].eval()
    if not can_be_copied:
        model.held = (i for i in range(3))
    names, state, modes = set(vars(model)), copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    storages = [t.data_ptr() for t in model.state_dict().values()]
    model, report = palimpsest.convert(model, X)
    assert len(report.converted) == 2
    assert set(vars(model)) == names and [m.training for m in model.modules()] == modes
    assert (model.calls, model.outputs, model.meter.total, model.space.n, float(model.plain)) == (0, [], 0, 0, 0)
    assert model.options == {"scale": 1.0, "by name": {"a": [1]}} and model.names == {"a"}
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert [t.data_ptr() for t in model.state_dict().values()] == storages


def test_a_buffer_of_integers_is_compared(monkeypatch):
    def count_twice(norm, settings):
        if norm.training:
            norm.num_batches_tracked.add_(1)
        return settings

    make_wrong(monkeypatch, count_twice)
    _, report = palimpsest.convert(marked(), X)
    assert report.converted == ["4"]


def test_the_modes_of_the_model_itself_are_proven(monkeypatch):
    """A layer that is wrong only where one normalization is frozen and the other is not."""
    seen, right = {}, runtime._settings

    def settings(norm, x):
        seen[norm.eps] = norm.training
        is_mixed = len(set(seen.values())) > 1
        return twice_the_weight(norm, right(norm, x)) if norm.eps != 2e-5 and is_mixed else right(norm, x)

    monkeypatch.setattr(runtime, "_settings", settings)
    assert len(palimpsest.convert(marked(), X)[1].converted) == 2
    model = marked()
    model[1].eval()
    assert palimpsest.convert(model, X)[1].converted == ["1"]


def test_frozen_normalizations_may_not_run_in_training():
    """One value per channel, as in a segmentation head on one image."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), *conv_bn(act=nn.ReLU()), nn.Conv2d(6, 6, 1)).double()
    model[2].eval()
    assert palimpsest.convert(model, X[:1])[1].converted == ["2"]


def test_inputs_that_only_training_takes():
    class WithTargets(Opaque):
        def forward(self, x, target):
            if not self.training:
                raise ValueError("no target in evaluation")
            return super().forward(x) * target

    assert len(palimpsest.convert(WithTargets(small()), {"x": X, "target": X[:, :1]})[1].converted) == 2


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("inputs", [None, X])
def test_any_error_leaves_the_model_as_it_was(monkeypatch, error, inputs):
    right, calls = region.make_usual_plans, itertools.count(1)

    def second_fails(module):
        if next(calls) % 2 == 0:
            raise error("in the second region")
        return right(module)

    monkeypatch.setattr(region, "make_usual_plans", second_fails)
    model = Opaque(small(), nn.Sequential(*conv_bn(6, 6, nn.SiLU())).double())
    kinds = [type(m) for m in model.modules()]
    with pytest.raises(error, match="in the second region"):
        palimpsest.convert(model, inputs)
    assert_plain(model, kinds)


def test_an_error_of_the_measurement_leaves_the_model_as_it_was(monkeypatch):
    def interrupt(self, report):
        raise KeyboardInterrupt

    monkeypatch.setattr(proof.Proof, "measure", interrupt)
    model = small()
    kinds = [type(m) for m in model.modules()]
    with pytest.raises(KeyboardInterrupt):
        palimpsest.convert(model, X)
    assert_plain(model, kinds)


class _NoBackward(nn.Module):
    def forward(self, x):
        z = torch.sigmoid(x)
        z.mul_(2)
        return z


@pytest.mark.parametrize("make, keywords, message", [
    (lambda: nn.Sequential(nn.LazyConv2d(6, 1), nn.BatchNorm2d(6)), {"example_inputs": X}, "lazy parameters"),
    (small, {"module_filter_fn": "bn"}, "module_filter_fn must be a function, got str"),
    (small, {"example_inputs": ()}, "refuses example_inputs: TypeError"),
    (small, {"example_inputs": {"y": X}}, "refuses example_inputs: TypeError"),
    (small, {"example_inputs": "image"}, "refuses example_inputs: TypeError"),
    (small, {"example_inputs": X.to("meta")}, "refuses example_inputs"),
    (lambda: nn.Sequential(*small(), _NoBackward()), {"example_inputs": X}, "refuses example_inputs: RuntimeError.*inplace"),
])
def test_refusals(make, keywords, message):
    model = make()
    kinds = [type(m) for m in model.modules()]
    with pytest.raises(ValueError, match=message) as error:
        palimpsest.convert(model, **keywords)
    assert "\n" not in str(error.value)
    assert_plain(model, kinds)


def test_a_part_that_is_converted_with_another_model():
    body = small()
    a, b = Opaque(body), Opaque(body, nn.Sequential(*conv_bn(6, 6, nn.SiLU())).double())
    original = copy.deepcopy(b)
    kinds_a, kinds_b = ([type(m) for m in model.modules()] for model in (a, b))
    palimpsest.convert(a)
    assert_same(original, b)
    for inputs in (None, X):
        b, report = palimpsest.convert(b, inputs)
        assert report.converted == ["parts.1.1"]
        assert set(report.left.values()) == {"converted already, with another model"}
        assert_same(original, b)
        palimpsest.revert(b)
        assert region.is_region(body) and not region.is_region(b.parts[1])  # what convert(a) made is a's
    palimpsest.convert(b)
    palimpsest.revert(a)
    assert_plain(a, kinds_a)
    assert_same(original, b)
    palimpsest.revert(b)
    assert_plain(b, kinds_b)
    with pytest.raises(ValueError, match="not converted"):
        palimpsest.revert(b)


def test_a_model_of_nothing_but_a_shared_part():
    body = small()
    a, b = Opaque(body), Opaque(body)
    palimpsest.convert(a)
    b, report = palimpsest.convert(b, X)
    assert not report.converted and len(report.left) == 2
    palimpsest.revert(a)
    palimpsest.revert(b)
    assert_plain(b, [type(m) for m in Opaque(small()).modules()])


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_converted_model_is_converted(make_copy):
    a = Opaque(small())
    palimpsest.convert(a)
    other = make_copy(a)
    for model in (other, nn.Sequential(other), other.parts, a.parts):  # the model, around it and within
        with pytest.raises(ValueError, match="converted already"):
            palimpsest.convert(model)
    palimpsest.revert(nn.Sequential(other))
    assert_plain(other, [type(m) for m in Opaque(small()).modules()])
    palimpsest.revert(a.parts)
    assert_plain(a, [type(m) for m in Opaque(small()).modules()])


def test_a_part_whose_other_model_is_gone():
    body = small()
    a, b = Opaque(body), Opaque(body)
    palimpsest.convert(a)
    del a
    gc.collect()
    palimpsest.revert(b)
    assert len(palimpsest.convert(b)[1].converted) == 2


def test_a_wrong_gradient_of_a_feature_is_found(monkeypatch):
    """As of a feature that the network returns, and that nothing of its loss reads."""
    right = writer.Writer._deferred
    monkeypatch.setattr(writer.Writer, "_deferred", lambda self, *arguments: right(self, *arguments[:4]))

    def forward(m, x):
        h = m.conv1(x)
        f = torch.relu(m.bn1(m.conv2(h)) + h)
        return m.conv3(f), f

    _, report = palimpsest.convert(Forward(forward), X)
    assert "differed" in report.left["bn1"]


def _pooled(m, x):
    return m.conv3(F.avg_pool2d(F.relu(m.bn1(m.conv1(x))), 2) + F.max_pool2d(m.bn2(m.conv2(m.conv1(x))), 2))


def test_what_is_wrong_beside_the_layers_is_left(monkeypatch):
    monkeypatch.setitem(readers._LEAN, F.avg_pool2d, lambda *arguments: F.avg_pool2d(*arguments) * 1.001)
    model, other = Forward(_pooled), Forward(_pooled)
    _, report = palimpsest.convert(model, X)
    assert report.converted == ["max_pool2d", "bn1", "bn2"]
    assert report.notes == [f"beside the layers nothing is converted: {proof._DIFFERED}"]
    assert_same(model, other)


def test_a_wrong_pooling_function_is_left(monkeypatch):
    monkeypatch.setattr(functional, "max_pool2d", lambda *arguments, **keywords: F.max_pool2d(*arguments, **keywords) * 1.001)
    model, other = Forward(_pooled), Forward(_pooled)
    _, report = palimpsest.convert(model, X)
    assert "differed" in report.left["max_pool2d"] and report.converted == ["bn1", "bn2"]
    assert_same(model, other)


def test_a_wrong_normalization_function_is_left(monkeypatch):
    right = again._NORMALIZATIONS["group_norm"]
    monkeypatch.setitem(again._NORMALIZATIONS, "group_norm", lambda source, x, *rest, **keywords: right(None, x * 1.001, *rest, **keywords))

    def forward(m, x):
        return m.conv3(F.silu(F.group_norm(m.conv2(F.relu(m.bn1(m.conv1(x)))), 2)))

    model, other = Forward(forward), Forward(forward)
    _, report = palimpsest.convert(model, X)
    assert "bn1" in report.converted and "beside the layers nothing is converted" in report.notes[0]
    assert_same(model, other)


def test_a_rest_that_raises_in_the_models_own_dtype_is_left(monkeypatch):
    right = again.activated

    def raises(source, y, *rest):
        if y.dtype == torch.float32:
            raise RuntimeError("no f32")
        return right(source, y, *rest)

    monkeypatch.setattr(again, "activated", raises)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.GELU(), nn.Conv2d(6, 6, 1), nn.SiLU(), nn.Conv2d(6, 6, 1))
    _, report = palimpsest.convert(model, X.float())
    assert not report.converted and "no f32" in report.notes[-1]
    assert type(model) is nn.Sequential

"""convert() where tensors share memory and change in place: whoever reads them must see what the original's readers see."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from test_convert import X, Forward, assert_same, convert_copy
from test_convert_layers import assert_all_close, assert_same_after, step


class _WritesItsInput(nn.Module):
    """Has no graph, so that nobody knows what it writes."""

    def forward(self, x):
        return x.mul_(2) if float(x.detach().sum()) < 1e9 else x


def _written_by(write):
    """Writes over the result of an activation whose layer saves what lies before it; then a convolution reads the result."""
    def forward(m, x):
        z = F.silu(m.bn1(m.conv1(x)))
        write(z)
        return m.conv2(z) + z.mean((2, 3), keepdim=True)
    return forward


def _sum_in_a_view(m, x):
    h = m.conv1(x)
    part = h[:, :]
    part += m.bn1(m.conv2(x * 2) if m.conv2.in_channels == x.shape[1] else m.bn2(h * 0.5))
    return h * 1.0


def _base_of_a_feature_changes(m, x):
    h = m.conv1(x)
    y = m.bn1(torch.cat([h[:, :4], h[:, 4:] * 3.0], 1))
    h.mul_(2)  # cat has copied it
    return m.conv2(F.relu(y)) + h


def _old_name_of_a_feature(m, x):
    p = m.conv1(x)
    t = p
    t += 1
    y = m.bn1(torch.cat([t[:, :4], t[:, 4:]], 1))
    p.mul_(3)
    return m.conv2(F.relu(y))


def _one_layer_twice(m, x):
    p, q = m.bn1(m.conv1(x)), m.bn1(m.conv1(x * 3 + 1))
    return F.relu(p + p.detach()) + F.relu(q)


def _one_layer_before_two_convolutions(m, x):
    p, q = F.relu(m.bn1(m.conv1(x))), F.relu(m.bn1(m.conv1(x * 3 + 1)))
    return m.conv2(q) + m.conv2(p)


PATTERNS = {
    "narrow": _written_by(lambda z: torch.narrow(z, 1, 0, 2).mul_(2)),
    "select": _written_by(lambda z: z.select(1, 0).mul_(2)),
    "reshape": _written_by(lambda z: torch.reshape(z, z.shape).mul_(2)),
    "a cast that is none": _written_by(lambda z: z.double().mul_(2)),
    "movedim": _written_by(lambda z: z.movedim(1, 0)[0].mul_(2)),
    "unfold": _written_by(lambda z: z.unfold(2, 1, 1)[:, 0].mul_(2)),
    "tensor_split": _written_by(lambda z: torch.tensor_split(z, 2, 1)[0].mul_(2)),
    "diagonal": _written_by(lambda z: z.diagonal(0, 2, 3).mul_(2)),
    "dropout that is none": _written_by(lambda z: F.dropout3d(z, 0.5, False).mul_(2)),
    "out=": _written_by(lambda z: torch.mul(z.detach(), 2, out=z.detach())),
    "a sum in a view": _sum_in_a_view,
    "the base of a feature changes": _base_of_a_feature_changes,
    "the old name of a feature": _old_name_of_a_feature,
    "one layer twice": _one_layer_twice,
    "one layer before two convolutions": _one_layer_before_two_convolutions,
}


@pytest.mark.parametrize("name", PATTERNS)
def test_writes_are_seen(name):
    model = Forward(PATTERNS[name])
    converted, _ = convert_copy(model)
    for training in (True, False):
        assert_same(model.train(training), converted.train(training), X)


def test_a_module_without_a_graph_may_write():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), _WritesItsInput(), nn.Conv2d(8, 4, 1)).double()
    converted, report = convert_copy(model)
    assert report.converted == ["1"]
    for training in (True, False):
        assert_same(model.train(training), converted.train(training), X)


class _Branch(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 3, 1), nn.BatchNorm2d(3)
        self.last = last

    def forward(self, x):
        return self.last(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class _SumsWithoutGraph(nn.Module):
    """A residual block that branches on values: its branch is converted alone, and the sum is written over the result."""

    def __init__(self, last):
        super().__init__()
        self.branch = _Branch(last)

    def forward(self, x):
        if float(x.detach().sum()) > 1e9:
            return x
        out = self.branch(x)
        out += x
        return out


@pytest.mark.parametrize("last", [nn.Identity(), nn.SiLU(), nn.LeakyReLU(), nn.GELU()], ids=lambda m: type(m).__name__)
def test_the_caller_may_write_over_a_result(last):
    torch.manual_seed(0)
    model = _SumsWithoutGraph(last).double()
    converted, report = convert_copy(model)
    assert "branch.bn1" in report.converted
    for training in (True, False):
        assert_same(model.train(training), converted.train(training), X)
    branch, converted_branch = model.branch, palimpsest.convert(copy.deepcopy(model.branch))[0]
    results = [m(X).div_(2).square().sum() for m in (branch, converted_branch)]
    torch.testing.assert_close(*results)
    results[1].backward()


def test_a_sum_into_an_argument_is_seen_by_the_caller():
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x, total):
            total += self.bn(self.conv(x))
            return total

    torch.manual_seed(0)
    model = Adds().double()
    converted, _ = convert_copy(model)
    totals = [X * 1.0 for _ in range(2)]
    for m, total in zip((model, converted), totals):
        m(X, total)
    torch.testing.assert_close(*totals)


def test_hooks_of_an_activation_within_a_normalization_are_called():
    class BatchNormAct2d(nn.BatchNorm2d):  # as timm's
        def __init__(self, n):
            super().__init__(n)
            self.drop, self.act = nn.Identity(), nn.SiLU()

        def forward(self, x):
            return self.act(self.drop(super().forward(x)))

    for before in (True, False):
        calls = []
        model = nn.Sequential(nn.Conv2d(3, 4, 1), BatchNormAct2d(4), nn.Conv2d(4, 4, 1), BatchNormAct2d(4)).double()
        if before:
            model[1].act.register_forward_hook(lambda *_: calls.append(1))
        palimpsest.convert(model)
        if not before:
            model[1].act.register_forward_hook(lambda *_: calls.append(1))
        model(X)
        assert calls == [1]


@pytest.mark.parametrize("act", [nn.LeakyReLU(2.0), nn.LeakyReLU(-0.5), nn.ELU(-1.0)], ids=repr)
def test_an_activation_that_the_operator_refuses_stays(act):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), act, nn.Conv2d(8, 4, 1)).double()
    converted, _ = convert_copy(model)
    assert_same(model, converted, X)


def test_modules_that_are_called_with_keywords():
    torch.manual_seed(0)
    model = Forward(lambda m, x: m.pool(input=m.same(input=m.relu(input=m.bn1(m.conv1(x))))))
    model.same = nn.Identity()
    converted, _ = convert_copy(model)
    assert_same(model, converted, X)


def test_efficientnet_without_stochastic_depth():
    """Where no path is dropped, torchvision's function returns its input, and the sum is written over it."""
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    model = models.efficientnet_b0(stochastic_depth_prob=0.0, dropout=0.0).double()
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    converted, report = convert_copy(model)
    assert report.converted
    for training in (True, False):
        assert_same(model.train(training), converted.train(training), x)


# ---- What the caller does with tensors that it gave or got


def _sum_is_returned(m, x):
    h = m.conv1(x)
    f = F.relu(m.bn1(m.conv2(h)) + h)
    return m.conv3(f) + F.relu(m.bn2(m.conv2(f)) + f), f


def _part_is_returned(m, x):
    a, b = F.relu(m.bn12(m.double_conv(torch.cat([m.conv1(x)] * 2, 1)).repeat(1, 2, 1, 1))).chunk(2, 1)
    return m.conv2(a) + m.conv3(b) * a, a


FEATURES = {
    "a sum": _sum_is_returned,
    "a part of a split": _part_is_returned,
    "an activation": lambda m, x: (m.conv2(f := F.silu(m.bn1(m.conv1(x)))) + m.conv3(f), f),
    "a product": lambda m, x: (m.conv2(f := F.relu(m.bn1(m.conv1(x)) + m.conv1(x)) * m.conv3(x[:, :1].repeat(1, 6, 1, 1))), f),
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_that_is_returned_has_its_gradient_and_its_hooks(name):
    model = Forward(FEATURES[name])
    model.bn12 = nn.BatchNorm2d(12).double()
    converted, report = convert_copy(model, X)
    assert report.converted and not report.notes and not any("differed" in how for how in report.left.values())
    results = []
    for network in (model, converted):
        y, f = network(X)
        results.append([torch.autograd.grad(y.square().sum(), f)[0]])
        y, f = network(X)
        f.retain_grad()
        f.register_hook(lambda g: g * 0.5)
        (y.square().sum() + f.sum()).backward()
        results[-1] += [f.grad, *(p.grad for p in network.parameters() if p.grad is not None)]
    for got, want in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_features_of_an_extractor_have_their_gradients():
    models = pytest.importorskip("torchvision.models")
    from torchvision.models.feature_extraction import create_feature_extractor
    torch.manual_seed(0)
    model = create_feature_extractor(models.resnet18(), ["layer3", "fc"]).double()
    converted, report = convert_copy(model)
    assert len(report.converted) == len(report.layers)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    gradients = []
    for network in (model, converted):
        out = network(x)
        gradients.append(torch.autograd.grad(out["fc"][:, 7].sum(), out["layer3"])[0])
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-10)


class _Skip(nn.Module):
    """The residual is the caller's: as an argument, or as a result."""

    def __init__(self, result=lambda out, skip: out):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn, self.result = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), result

    def forward(self, x, skip):
        skip = skip * 2 if self.result(0, 1) else skip
        return self.result(F.relu(self.bn(self.conv(x)) + skip), skip)


@pytest.mark.parametrize("result", [lambda out, skip: out, lambda out, skip: (out, skip)], ids=["given", "returned"])
def test_the_caller_may_write_over_a_residual(result):
    model = _Skip(result).double()
    converted, report = convert_copy(model)
    assert report.converted == ["bn"]
    gradients = []
    for network in (model, converted):
        skip = torch.linspace(-1, 1, 4 * 4 * 8 * 8, dtype=torch.float64).view(4, 4, 8, 8)
        out = network(X, skip)
        written = skip if torch.is_tensor(out) else out[1]
        out = out if torch.is_tensor(out) else out[0]
        written.zero_()
        out.square().sum().backward()
        gradients.append([p.grad for p in network.parameters()])
    for got, want in zip(*reversed(gradients)):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_a_residual_that_a_convolution_reads_is_fused():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

        def forward(self, x):
            return F.relu(self.bn(self.conv(x)) + x)

    _, report = convert_copy(Block().double(), X)
    assert report.layers[0].kind == "BatchNorm2d + residual + relu"


# ---- Statistics that others read


class _Statistics(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.conv, self.bn, self.other, self.last = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.double()
        if kind == "shared":
            self.other._buffers.update(self.bn._buffers)

    def forward(self, x):
        h = self.conv(x)
        y = self.bn(h)
        if self.kind == "shared":
            seen = self.other(x.repeat(1, 2, 1, 1)[:, :4] * 3).sin()
        else:
            seen = self.bn.running_var.sqrt()
        return self.last(F.relu(y + h if self.kind == "read before a sum" else y)), seen


@pytest.mark.parametrize("kind", ["read", "read before a sum", "shared"])
def test_statistics_are_moved_before_others_read_them(kind):
    model = _Statistics(kind)
    converted, report = convert_copy(model)
    assert "bn" in report.converted
    for got, want in zip(converted(X), model(X)):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    for got, want in zip(converted.buffers(), model.buffers()):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


WRITES = {  # `inplace` in its place among the arguments
    "leaky_relu": lambda t: F.leaky_relu(t, 0.2, True),
    "elu": lambda t: F.elu(t, 1.0, True),
    "celu": lambda t: F.celu(t, 1.0, True),
    "hardtanh": lambda t: F.hardtanh(t, -0.5, 0.5, True),
    "threshold": lambda t: F.threshold(t, 0.1, 0.2, True),
    "dropout": lambda t: F.dropout(t, 0.5, True, True),
    "dropout2d": lambda t: F.dropout2d(t, 0.5, True, True),
    "rrelu": lambda t: F.rrelu(t, 0.1, 0.3, False, True),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_function_in_place_is_seen_by_the_place_of_its_argument(name):
    def forward(m, x):
        t = m.bn1(m.conv1(x))
        z = WRITES[name](t)
        return m.conv2(F.silu(t)) + m.conv2(z)  # t is z

    assert_same_after(Forward(forward), X)


_WRITES_OVER = {"by a mask": lambda z: z.masked_fill_(z > 1, 0.0), "a part": lambda z: z[:, :1].zero_(), "clamped": lambda z: z.clamp_(-1, 0.5),
                "dropout": lambda z: F.dropout(z, 0.2, True, inplace=True), "an activation": lambda z: F.leaky_relu(z, 0.1, inplace=True)}


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize("write", _WRITES_OVER)
@pytest.mark.parametrize("before", ["group", "layer", "instance", "activation", "sum"])
def test_what_is_made_again_is_read_as_it_was_changed(before, write, proven):
    def forward(m, x):
        y = m.conv1(x)
        y = {"group": lambda: F.silu(F.group_norm(y, 2)), "layer": lambda: F.layer_norm(y, y.shape[2:]),
             "instance": lambda: F.gelu(F.instance_norm(y)), "activation": lambda: F.gelu(F.silu(y)),
             "sum": lambda: F.gelu(F.relu(m.bn1(y) + y))}[before]()
        _WRITES_OVER[write](y)
        return m.conv2(y)

    model = Forward(forward)
    converted, _ = palimpsest.convert(copy.deepcopy(model), *[X] * proven)
    for _ in range(2):
        assert_all_close(step(converted, X), step(model, X))

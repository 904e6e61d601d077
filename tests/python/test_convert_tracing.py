"""Which forwards convert() takes as a graph, and when it makes the graph anew."""
import copy
import cProfile
import random
import sys
import threading
import types
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from palimpsest._convert import region, tracing, watch
from blocks import X, Block, assert_close, converted


class Opaque(nn.Module):
    """Has no graph, so that a graph calls it."""
    flag = 1.0

    def forward(self, x):
        return x * 2 if float(x.detach().sum()) < 1e9 else x


def assert_draws_alike(*networks):
    """The networks compute the same from the same random numbers."""
    results = []
    for network in networks:
        torch.manual_seed(3)
        results.append(network(X))
    assert_close(*results)


def layers_in(out):
    """The names of autograd's nodes behind a tensor."""
    found, stack = set(), [out.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in found:
            found.add(node)
            stack += [before for before, _ in node.next_functions]
    return {node.name() for node in found}


def is_converted(out):
    return any("Abn" in name for name in layers_in(out))


# ---- What a forward does while it is traced


def _counts(m, x):
    if m.training:
        m.steps.add_(1)
        m.center.mul_(0.9).add_(x.detach().mean() * 0.1)
    return m.body(x) * m.center.mean()


def test_buffers_change_in_forwards_alone():
    model = Block(_counts)
    other, report = converted(model)
    assert report.converted == ["bn"]
    assert other.steps == 0 and torch.equal(other.center, model.center)
    for _ in range(3):
        assert_close(model(X), other(X))
    assert other.steps == 3
    assert_close(model.center, other.center)


@pytest.mark.parametrize("forward", [lambda m, x: m.body(x) * m.alpha.item(),
                                     lambda m, x: m.body(x) * 2 if m.alpha > 0.5 else m.body(x),
                                     lambda m, x: m.body(x) * float(m.plain),
                                     lambda m, x: m.body(x.to(m.plain.dtype)).double(),
                                     lambda m, x: m.body(x) * float(m.many[0].sum()),
                                     lambda m, x: m.body(x) * float(m._buffers["alpha"])],
                         ids=["item", "branch", "plain tensor", "dtype", "in a dict", "table"])
def test_values_of_own_tensors_are_read_in_each_forward(forward):
    model = Block(forward, plain=torch.ones((), dtype=torch.float64), many={0: torch.ones(2)})
    other, _ = converted(model)
    for m in (model, other):
        with torch.no_grad():
            m.alpha.fill_(0.25)
            m.plain.fill_(0.5)
            m.many[0].fill_(0.75)
    assert_close(model(X), other(X))
    for m in (model, other):
        m.plain = m.plain.float()
        m.float()
    torch.testing.assert_close(model(X.float()), other(X.float()))


def test_own_tensors_without_a_name_are_not_written():
    def forward(m, x):
        m.plain.add_(1)
        return m.body(x)

    other, _ = converted(Block(forward, plain=torch.zeros(())))
    assert other.plain == 0
    other(X)
    assert other.plain == 1


def test_a_caught_refusal_is_one():
    def forward(m, x):
        try:
            return m.body(x) * float(m._buffers["alpha"])
        except Exception:  # noqa: BLE001
            return m.body(x) * 7

    model = Block(forward)
    assert_close(model(X), converted(model)[0](X))


class Meter:
    total = 0


@pytest.mark.parametrize("name", ["list", "dict", "set", "nested", "object", "of the class"])
def test_a_forward_that_fills_a_container_runs_itself(name):
    class Filling(Block):
        of_all = []

    def forward(m, x):
        y = m.body(x)
        if name == "list":
            m.feats.append(y)
        elif name == "dict":
            m.table["last"] = y
        elif name == "set":
            m.names.add(len(m.names))
        elif name == "nested":
            m.table["deep"][0].append(1)
        elif name == "object":
            m.meter.total += 1
        else:
            m.of_all.append(y)
        return y

    model = Filling(forward, feats=[], table={"deep": ([],)}, names=set(), meter=Meter())
    other, report = converted(model)
    assert not report.converted and type(other) is Filling
    assert (other.feats, other.table, other.names, other.meter.total, Filling.of_all) == ([], {"deep": ([],)}, set(), 0, [])
    other(X)
    count = {"list": lambda: len(other.feats), "dict": lambda: len(other.table) - 1, "set": lambda: len(other.names),
             "nested": lambda: len(other.table["deep"][0]), "object": lambda: other.meter.total,
             "of the class": lambda: len(Filling.of_all)}
    assert count[name]() == 1


@pytest.mark.parametrize("forward", [lambda m, x: m.body(x * 2 if isinstance(x, torch.Tensor) else x),
                                     lambda m, x: m.body(x * 2 if torch.is_tensor(x) else x),
                                     lambda m, x: m.body(x * 2 if isinstance(x.shape, tuple) else x),
                                     lambda m, x: m.body(x * 2 if isinstance(x.size(0), int) else x)],
                         ids=["isinstance", "is_tensor", "shape", "size"])
def test_isinstance_of_a_value(forward):
    model = Block(forward)
    assert_close(model(X), converted(model)[0](X))


def test_values_go_to_functions_and_methods_of_torch():
    """Which look for the stand-ins among their arguments by isinstance."""
    def forward(m, x):
        a, b = m.body(x).chunk(2, 1)
        y = torch.stack([a, torch.where(b > 0, b, a)]).sum(0)
        return torch.cat([F.interpolate(y, size=x.shape[-2:]), m.extra + a], 1) * torch.sigmoid(m.alpha)

    model = Block(forward, extra=torch.ones(2, 1, 1, dtype=torch.float64))
    other, report = converted(model)
    assert report.converted
    assert_close(model(X), other(X))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not say which call of a line runs")
@pytest.mark.parametrize("forward", [
    lambda m, x: F.avg_pool2d(m.body(x), x.size(2)),
    lambda m, x: F.avg_pool2d(
        m.body(x), kernel_size=(x.size(2),
                                x.shape[3])),
    lambda m, x: F.max_pool2d(m.body(x), x.size()[2:]),
    lambda m, x: m.body(x) * torch.rand([x.shape[0], 1, 1, 1], dtype=x.dtype, device=x.device),
    lambda m, x: m.body(x) + torch.ones([x.size(0), 1, 1, 1], dtype=x.dtype),
], ids=["pool", "in lines", "slice", "rand", "ones"])
def test_sizes_go_to_functions_of_torch_in_cpp(forward):
    """Which ask for the type of each argument, and leave the call to the stand-in."""
    model = Block(forward)
    other, report = converted(model)
    assert report.converted
    assert_draws_alike(model, other)


@pytest.mark.parametrize("forward", [
    lambda m, x: nn.ReLU(inplace=True)(m.bn(m.conv(x)) + m.conv(x)),
    lambda m, x: nn.Sequential(nn.ReLU(), nn.Dropout(0.5))(m.body(x)),
    lambda m, x: nn.Dropout(0.5)(m.body(x)),
], ids=["ReLU", "Sequential", "Dropout"])
@pytest.mark.parametrize("training", [True, False])
def test_modules_that_a_forward_makes(forward, training):
    """They are made in training mode, whatever the mode of the network."""
    model = Block(forward).train(training)
    other, report = converted(model)
    assert report.converted
    assert_draws_alike(model, other)


def test_modules_that_the_network_does_not_know():
    """Nobody would hear of a change of theirs."""
    model = Block(lambda m, x: m.hidden[0](m.body(x)), hidden=[nn.LeakyReLU(0.5)])
    other, report = converted(model)
    assert not report.converted
    for network in (model, other):
        network.hidden[0].negative_slope = 0.25
    assert_close(model(X), other(X))


def _hooked(m, x):
    act = nn.ReLU()
    act.register_forward_hook(lambda module, inputs, out: out * 2)
    return act(m.bn(m.conv(x)))


class Scaled(nn.Module):
    factor = 1.5

    def forward(self, x):
        return torch.relu(x) * self.factor


@pytest.mark.parametrize("forward", [_hooked, lambda m, x: Scaled()(m.body(x))], ids=["hooked", "of another class"])
def test_modules_that_a_forward_makes_and_somebody_may_change(forward, monkeypatch):
    model = Block(forward)
    other, report = converted(model)
    assert not report.converted
    monkeypatch.setattr(Scaled, "factor", 4.0)
    assert_close(model(X), other(X))


def test_modules_with_weights_that_a_forward_makes():
    model = Block(lambda m, x: nn.BatchNorm2d(4, dtype=x.dtype)(m.body(x)))
    other, report = converted(model)
    assert not report.converted
    assert_close(model(X), other(X))


@pytest.mark.parametrize("forward", [
    lambda m, x: F.avg_pool2d(m.body(x), 1 if isinstance(x.size(2), int) else 2),
    lambda m, x: m.body(x) * Doubled.apply(x).mean(),
    lambda m, x: F.avg_pool2d(m.body(x), _size_if_int(x.size(2))),
], ids=["isinstance within a call", "Function", "isinstance in a function"])
def test_types_within_calls_in_cpp(forward):
    model = Block(forward)
    assert_close(model(X), converted(model)[0](X))


def _ones_or(m, x):
    try:
        scale = torch.ones(x.size(0), 1, 1, x.size(3), dtype=x.dtype)  # a stand-in is refused among several positions
    except TypeError:
        scale = 5.0
    return m.body(x) * scale


def _rand_or(m, x):
    try:
        scale = torch.rand([x.size(0), 1, 1, 1], generator=m.generator, dtype=x.dtype)  # a graph takes no generator
    except (TypeError, NotImplementedError):
        scale = 5.0
    return m.body(x) * scale


@pytest.mark.parametrize("forward", [_ones_or, _rand_or])
def test_an_error_that_only_a_stand_in_raises(forward):
    results = []
    for convert in (copy.copy, lambda model: palimpsest.convert(model)[0]):
        model = convert(Block(forward))
        model.generator = torch.Generator().manual_seed(1)
        results.append(model(X))
    assert_close(*results)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def _size_if_int(size):
    return size if isinstance(size, int) else 1


def _is_given(value):
    return value is not None


class Pair(nn.Module):
    """Has no graph, and a second result that may be None."""

    def forward(self, x):
        return x * 2, None if float(x.detach().sum()) < 1e9 else x


def _unpacked(m, x):
    y, extra = m.pair(x)
    return m.body(y) if extra is None else m.body(y) * extra


def _asked_elsewhere(m, x):
    y, extra = m.pair(x)
    return m.body(y) * (3 if _is_given(extra) else 1)


def _from_a_dict(m, inputs):
    y = m.body(inputs["x"])
    return y if inputs["mask"] is None else y * 2


def _from_a_dict_by_name(m, inputs):
    mask = inputs.get("mask")
    return m.body(inputs["x"]) * (2 if mask is not None else 1)


def _from_a_list(m, inputs):
    x, mask = inputs
    return m.body(x) * (1 if mask is None else 2)


def _rebound(m, x):
    extra = m.pair(x)[1]
    if extra is None:
        extra = 2
    return m.body(x) * extra


def _deleted(m, x):
    extra = m.pair(x)[1]
    is_none = extra is None
    del extra
    return m.body(x) * (2 if is_none else 3)


def _in_a_loop(m, x):
    given = 0
    for value in m.pair(x)[1], x:
        if value is None:
            given += 1
    return m.body(x) * (2 + given)


def _in_a_comprehension(m, x):
    return m.body(x) * (2 + sum([value is None for value in (m.pair(x)[1], x)]))


def _matched(m, x):
    match m.pair(x)[1]:
        case None:
            return m.body(x)
    return m.body(x) * 2


def _matched_by_name(m, x):
    extra = m.pair(x)[1]
    match extra:
        case None:
            extra = 2
    return m.body(x) * extra


def _matched_as_a_list(m, x):
    match x:
        case [first, _]:
            return m.body(first)
    return m.body(x[0]) * 2


def _second_of(m, x):
    return m.pair(x)[1]


def _asked_of_a_call(m, x):
    return m.body(x) * (2 if _second_of(m, x) is None else 3)


QUESTIONS = {
    "a variable that is bound again": (_rebound, X),
    "a variable that is deleted": (_deleted, X),
    "a variable of a loop": (_in_a_loop, X),
    "a variable of a comprehension": (_in_a_comprehension, X),
    "match": (_matched, X),
    "match of a variable": (_matched_by_name, X),
    "match of a list": (_matched_as_a_list, [X, X]),
    "a result of a function": (_asked_of_a_call, X),
    "an entry of a dict": (_from_a_dict, {"x": X, "mask": None}),
    "get of a dict": (_from_a_dict_by_name, {"x": X}),
    "an entry of a list": (_from_a_list, [X, None]),
    "a result of a part": (_unpacked, X),
    "a result of a part in a function": (_asked_elsewhere, X),
    "a result of a part at once": (lambda m, x: m.body(x) * (1 if m.pair(x)[1] is None else 2), X),
    "an attribute": (lambda m, x: m.body(x) * (1 if getattr(x, "mask", None) is None else 2), X),
    "a gradient": (lambda m, x: m.body(x) * (1 if x.grad is None else 2), X),
    "its type": (lambda m, x: m.body(x) * (1 if type(x) is torch.Tensor else 2), X),
    "whether it has an attribute": (lambda m, x: m.body(x) * (2 if hasattr(x, "mask") else 1), X),
    "whether two are one": (lambda m, x: m.body(x[0]) * (1 if x[0] is x[1] else 2), [X, X]),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_about_a_value_has_the_answer_of_the_call(name):
    forward, x = QUESTIONS[name]
    model = Block(forward, pair=Pair())
    other, _ = converted(model)
    assert_close(model(x), other(x))


def test_questions_about_modules_and_constants_keep_the_graph():
    class Asking(Block):
        extra = None

        def forward(self, x, mask=None, twice=None):
            y, x, shape = self.body(x), self.drop(x), x.shape
            if self.extra is None and self.conv.bias is not None and type(self.bn) is nn.BatchNorm2d and hasattr(self, "act"):
                y = y * 2 if getattr(self, "missing", None) is None else y
            y = y if mask is None or shape is None else y * mask
            return y if twice is None else y + y

    model = Asking(drop=Opaque())
    other, report = converted(model)
    assert report.converted == ["bn"] and isinstance(other, Asking) and region.is_region(other)
    for arguments in ((X,), (X, X[:, :1]), (X, None, True)):
        out = other(*arguments)
        assert is_converted(out)
        assert_close(model(*arguments), out)


def _hooked(module):
    module.register_forward_hook(lambda module, inputs, output: None)
    return module


def _with_options(m, x):
    x = m.hooked(m.opaque(x))
    if m.opts[0] is not None and m.plain[1] is None and m.plain[0].get("a") is not None:
        x = m.opts[0](x)
    return m.body(x)


def _summed(m, x):
    y = None
    for part in m.opts:
        y = part(x) if y is None else y + part(x)
    return m.body(y)


@pytest.mark.parametrize("forward", [_with_options, _summed])
def test_questions_about_modules_beside_unknown_ones_keep_the_graph(forward):
    model = Block(forward, opaque=Opaque(), plain=[{"a": 1}, None], hooked=_hooked(nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())),
                  opts=nn.ModuleList([_hooked(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(nn.ReLU()))),
                                      _hooked(palimpsest.nn.BatchNormAct(3))]))
    other, report = converted(model)
    assert report.converted == ["bn"] and region.is_region(other), str(report)
    assert_close(model(X), other(X))


def _from_a_list_of_its_own(m, x):
    z = [None]
    z = [m.pair(x)[1]]
    return m.body(x) * (2 if z[0] is None else 3)


def test_questions_about_lists_of_the_forward():
    model = Block(_from_a_list_of_its_own, pair=Pair())
    other, report = converted(model)
    assert not report.converted
    assert_close(model(X), other(X))


def _under_a_function(run):
    heard = []

    def profiler(frame, event, argument):
        heard.append(event)

    sys.setprofile(profiler)
    try:
        run()
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert "c_call" in heard and "return" in heard


def _under_c(run):
    with cProfile.Profile():
        was = sys.getprofile()
        run()
        assert sys.getprofile() is was and sys.gettrace() is None


def _under_c_and_a_debugger(run):
    def debugger(frame, event, argument):
        return None

    with cProfile.Profile():
        sys.settrace(debugger)
        try:
            run()
            assert sys.gettrace() is debugger
        finally:
            sys.settrace(None)


def _under_torchs(run):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True):
        run()


@pytest.mark.parametrize("profile", [_under_a_function, _under_c, _under_c_and_a_debugger, _under_torchs])
def test_questions_under_a_profiler(profile):
    made = []
    for forward in (_unpacked, _asked_elsewhere) if profile is not _under_c_and_a_debugger else (_unpacked,):
        profile(lambda: made.append(converted(Block(forward, pair=Pair()))))
        other, report = made[-1]
        assert not report.converted
        assert_close(Block(forward, pair=Pair())(X), other(X))
    profile(lambda: made.append(converted(Block())))
    assert made[-1][1].converted == ["bn"]


@pytest.mark.parametrize("asks, is_refused", [
    ("m.k is None", False), ("m.conv.bias is not None", False), ("x is None", False), ("m.pair is m.pair", True),
    ("x.grad is None", True), ("m.pair(x)[1] is None", True), ("type(x) is int", True), ("m.k is None and x.grad is None", True)])
def test_code_without_source(asks, is_refused):
    scope = {}
    exec(f"def forward(m, x):\n    y = m.body(x)\n    return y * 2 if {asks} else y", scope)
    model = Block(scope["forward"], k=None, pair=Pair())
    other, report = converted(model)
    assert report.converted == ([] if is_refused else ["bn"]), str(report)
    assert_close(model(X), other(X))


def test_a_text_of_values_keeps_the_graph():
    def forward(m, x):
        torch._assert(x.shape[1] == 3, f"expected 3 channels, got {x.shape[1]} in {x.shape} of {x!r}")
        return m.body(x)

    model = Block(forward)
    other, report = converted(model)
    assert report.converted == ["bn"] and not report.left
    out = other(X)
    assert is_converted(out)
    assert_close(model(X), out)


@pytest.mark.parametrize("draw", [random.random, lambda: float(torch.rand(())),
                                  lambda: float(pytest.importorskip("numpy").random.rand())], ids=["python", "torch", "numpy"])
def test_a_forward_that_draws_to_decide_runs_itself(draw):
    draw()
    _, report = converted(Block(lambda m, x: m.body(x) * (2 if draw() < 0.5 else 1)))
    assert not report.converted


def test_autocast_asked_for_is_that_of_the_forward():
    model = Block(lambda m, x: m.body(x) * (3 if torch.is_autocast_enabled("cpu") else 1)).float()
    other, _ = converted(model)
    torch.testing.assert_close(model(X.float()), other(X.float()))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(X.float()), other(X.float()))


def test_conversion_under_no_grad():
    model = Block(lambda m, x: m.body(x) * (3 if torch.is_grad_enabled() else 1))
    with torch.no_grad():
        other, report = converted(model)
    assert report.converted
    assert_close(model(X), other(X))


def test_another_thread_runs_while_a_graph_is_made():
    """torch.fx replaces nn.Module.__call__ for all threads."""
    model = Block()
    stop, problems, expected = threading.Event(), [], model(X)

    def run():
        while not stop.is_set():
            if type(model(X)) is not torch.Tensor or model.training is not True:
                problems.append("traced")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(5):
            converted(Block())
    finally:
        stop.set()
        thread.join()
    assert not problems
    assert_close(expected, model(X))


# ---- When a graph is made anew


def _set(path, value):
    def change(m):
        *parents, name = path.split(".")
        for parent in parents:
            m = getattr(m, parent)
        setattr(m, name, value() if callable(value) and name == "bias" else value)
    return change


CHANGES = {
    "a dict": (dict(opt={"k": 1.0}), lambda m, x: m.body(x) * m.opt["k"], lambda m: m.opt.update(k=3.0)),
    "a list": (dict(w=[1.0]), lambda m, x: m.body(x) * m.w[0], lambda m: m.w.__setitem__(0, 3.0)),
    "a nested list": (dict(w=[[1.0]]), lambda m, x: m.body(x) * m.w[0][0], lambda m: m.w[0].__setitem__(0, 3.0)),
    "a record": (dict(c=types.SimpleNamespace(k=1.0)), lambda m, x: m.body(x) * m.c.k, lambda m: setattr(m.c, "k", 3.0)),
    "a function": (dict(f=F.relu), lambda m, x: m.f(m.bn(m.conv(x))), _set("f", torch.neg)),
    "a private attribute": (dict(_k=1.0), lambda m, x: m.body(x) * m._k, _set("_k", 3.0)),
    "an int that becomes a float": (dict(k=2), lambda m, x: m.body(x) * (x.size(0) // m.k), _set("k", 2.0)),
    "None that becomes a tensor": (dict(k=None), lambda m, x: m.body(x) * (1 if m.k is None else m.k),
                                   _set("k", torch.full((), 3.0, dtype=torch.float64))),
    "a buffer that becomes None": ({}, lambda m, x: m.body(x) * (2 if m.alpha is None else m.alpha), _set("alpha", None)),
    "a new attribute": ({}, lambda m, x: m.body(x) * getattr(m, "k", 1.0), _set("k", 3.0)),
    "a bias": ({}, lambda m, x: m.act(m.bn(m.conv(torch.cat([x[:, :2], x[:, :1]], 1)))),
               _set("conv.bias", lambda: nn.Parameter(torch.ones(4).double()))),
    "padding": ({}, lambda m, x: m.body(x), _set("conv.padding", (1, 1))),
    "stride": ({}, lambda m, x: m.body(x), _set("conv.stride", (2, 2))),
    "a forward of a part": ({}, lambda m, x: m.body(x), lambda m: setattr(m.act, "forward", lambda x: x * 3)),
}


def _reads_its_parts(m, x):
    y = m.body(x) * m.bn.scale * m.conv.scale * m.opaque.flag * m.bn.eps * m.opaque.options["k"]
    y = y * getattr(m.bn, "late", 1.0) * (2 if m.bn.training else 3) * (4 if m.bn.weight is None else 5)
    return m.opaque(y) + m.drop.p


def _of_parts():
    parts = dict(opaque=Opaque(), drop=nn.Dropout(0.0))
    parts["opaque"].options = {"k": 1.0}
    return parts


for _path, _value in (("bn.scale", 3.0), ("conv.scale", 3.0), ("opaque.flag", 3.0), ("bn.eps", 0.1), ("bn.late", 3.0),
                      ("bn.training", False), ("drop.p", 0.5), ("bn.weight", None)):
    CHANGES[f"{_path} of a part"] = _of_parts, _reads_its_parts, _set(_path, _value)
CHANGES["a dict of a part"] = _of_parts, _reads_its_parts, lambda m: m.opaque.options.update(k=3.0)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_after_convert_counts(name):
    attributes, forward, change = CHANGES[name]

    def make():
        model = Block(forward, **(attributes() if callable(attributes) else attributes))
        model.conv.scale = model.bn.scale = 1.0
        return model

    model = make()
    other, report = converted(model)
    assert report.converted
    assert_close(model(X), other(X))
    change(model), change(other)
    assert_close(model(X), other(X))
    torch._dynamo.reset()
    compiled, _ = converted(make())
    if name not in ("a dict", "a list", "a nested list", "a record"):  # shared by the copies above
        change(compiled)
    model.load_state_dict(compiled.state_dict(), strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_close(copy.deepcopy(compiled)(X), torch.compile(compiled, backend="aot_eager")(X))


def test_an_attribute_that_the_forward_does_not_read_changes_nothing():
    other, _ = converted(Block(history=[]))
    other(X)
    plans = dict(other._palimpsest_settings.plans)
    for i in range(3):
        other.history.append(i)
        other.loss = float(i)
        other(X)
    assert other._palimpsest_settings.plans == plans


def test_a_tensor_attribute_is_not_kept():
    other, _ = converted(Block(lambda m, x: m.body(x) * m.mask, mask=torch.ones(1, dtype=torch.float64)))
    other(X)
    sentinel = torch.full((1,), 2.0, dtype=torch.float64)
    other.mask = sentinel
    other(X)
    assert "mask" in other._palimpsest_settings.read
    assert not any(value is sentinel for value in watch.Watch(other, {"mask"}, ())._values)


def test_a_method_of_a_class_that_is_replaced():
    class Own(Block):
        scale = 1.0

        def forward(self, x):
            return self.body(x) * self.scale

    model = Own()
    other, _ = converted(model)
    other(X)
    Own.scale = 2.0
    assert_close(model(X), other(X))
    Own.body = lambda self, x: self.conv(x)
    assert_close(model(X), other(X))
    Own.forward = lambda self, x: self.conv(x) * 5
    assert_close(model(X), other(X))
    with torch.no_grad():
        assert_close(model(X), other(X))
        assert_close(model(X), converted(Own())[0](X))


class Drop(nn.Module):
    """timm's DropPath."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if self.rate == 0.0 or not self.training:
            return x
        return x * x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(1 - self.rate) / (1 - self.rate)


@pytest.mark.parametrize("make", [lambda: nn.Dropout(0.0), lambda: Drop(0.0)])
def test_rates_with_a_schedule_stay_converted(make):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.SiLU(), make(), nn.Conv2d(4, 4, 1)).double()
    other, _ = converted(model)
    name = "p" if isinstance(model[3], nn.Dropout) else "rate"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(20):
            for m in (model, other):
                setattr(m[3], name, i / 100)
            torch.manual_seed(i)
            expected = model(X)
            torch.manual_seed(i)
            out = other(X)
            assert is_converted(out)
            assert_close(expected, out)
    assert len(other._palimpsest_settings.plans) <= region._FEW_PLANS + 1


def test_ever_new_numbers_stay_converted_and_are_warned_of_once():
    class Scaled(Block):
        def forward(self, x, scale=1.0):
            return self.body(x) * scale

    model = Scaled()
    other, _ = converted(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(region._MOST_PLANS + 6):
            out = other(X, i / 7)
            assert is_converted(out)
            assert_close(model(X, i / 7), out)
    assert [(w.category, w.filename) for w in caught if "palimpsest" in str(w.message)] == [(RuntimeWarning, __file__)]
    assert len(other._palimpsest_settings.plans) <= region._MOST_PLANS


def test_a_part_that_changes_itself_needs_no_new_plans():
    class Counting(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.SiLU(), Counting()).double()
    other, _ = converted(model)
    for _ in range(6):
        out = other(X)
        assert_close(model(X), out)
        assert is_converted(out)
    assert other[3].calls == 6 and len(other._palimpsest_settings.plans) <= 2


# ---- Hooks and compilation


def test_hooks_on_all_modules_hear_each():
    other, _ = converted(Block())
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m).__name__))
    try:
        other(X)
        assert sorted(seen) == ["BatchNorm2d", "Block", "Conv2d", "SiLU"]
        seen.clear()
        converted(Block())
        assert not seen
    finally:
        handle.remove()
    assert is_converted(other(X))


def test_checkpoint_runs_the_plan_again():
    model = Block()
    other, _ = converted(model)
    x = X.clone().requires_grad_(True)
    palimpsest.checkpoint(other, x).square().sum().backward()
    model(X).square().sum().backward()
    for p, q in zip(model.parameters(), other.parameters()):
        assert_close(p.grad, q.grad)
    assert_close(model.bn.running_mean, other.bn.running_mean)


def test_compile_asks_for_the_kinds_of_inputs_and_the_gradient_mode():
    class Joined(Block):
        def forward(self, x, skip):
            return self.body(x if skip is None else x + skip)

    model = Joined()
    other, _ = converted(model)
    torch._dynamo.reset()
    assert_close(model(X, None), torch.compile(other, backend="aot_eager")(X, None))
    seen = []

    def backend(module, _):
        seen.extend(str(node.target) for node in module.graph.nodes)
        return module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        assert_close(model.eval()(X, X), torch.compile(other.eval(), backend=backend)(X, X))
    assert seen and not any("palimpsest" in target for target in seen)

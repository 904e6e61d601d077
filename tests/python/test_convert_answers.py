"""Forwards that a graph cannot stand for, because a stand-in for a value gives another answer than the value: convert() lets
them run themselves. And values that a graph can pass on only as they are."""
import collections
import contextlib
import copy
import dataclasses
import enum
import itertools
import logging
import random
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from blocks import X, Block, assert_close, converted

np = pytest.importorskip("numpy")
LARGER = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


# ---- Questions that have another answer


def _length_or(m, x):
    try:
        n = len(x)
    except Exception:
        n = 7
    return m.body(x) * n


def _number_or(m, x):
    try:
        return m.body(x) * int(x.shape[1])
    except TypeError:
        return m.body(x)


def _branch_or(m, x):
    y = m.body(x)
    try:
        if x.shape[-1] > 5:
            y = y * 5
    except Exception:
        pass
    return y


def _parts_or(m, x):
    try:
        return m.body(x) * len([row for row in x])
    except Exception:
        return m.body(x)


def _key_or(m, x):
    try:
        scale = x["scale"]
    except KeyError:
        scale = 3.0
    return m.body(x["x"]) * scale


def _key_or_nothing(m, x):
    scale = 3.0
    with contextlib.suppress(KeyError):
        scale = x["scale"]
    return m.body(x["x"]) * scale


def _attribute_or(m, x):
    return m.body(x) * getattr(x, "scale", 3.0)


def _gradient_of_a_weight(m, x):
    return m.body(x) * (2 if m.conv.weight.grad is None else 3)


def _type_of_a_weight(m, x):
    return m.body(x) * (2 if m.conv.weight.dtype is torch.float64 else 3)


def _attribute_of_a_weight(m, x):
    return m.body(x) * (3 if hasattr(m.conv.weight, "scale") else 2)


def _cached(m, x):
    return m.body(x) * m.scales.get(tuple(x.shape[2:]), 1.0)


def _named_by_text(m, x):
    key = f"{x.shape[-1]}"
    return m.body(x) * m.by_text.get(key, 1.0)


def _entry_or(m, x):
    try:
        scale = x[1]
    except IndexError:
        scale = 3.0
    return m.body(x[0]) * scale


def _get(entries, key, default):
    try:
        return entries[key]
    except KeyError:
        return default


def _asserts_text(m, x):
    try:
        assert str(x.dtype) != "torch.float64"
    except AssertionError:
        return m.body(x) * 2
    return m.body(x)


ANSWERS = {
    "a number in a set": (lambda m, x: m.body(x) * (3 if x.dim() in {3, 4} else 1), X),
    "a type in a set": (lambda m, x: m.body(x) * (3 if x.dtype in {torch.float16, torch.float64} else 1), X),
    "a number in a dict": (lambda m, x: m.body(x) * {6: 2.0, 8: 3.0}.get(x.shape[-1], 1.0), X),
    "a tuple in a dict": (_cached, X),
    "a text": (lambda m, x: m.body(x) * (2 if "cpu" in str(x.device) else 3), X),
    "a text in a dict": (_named_by_text, X),
    "a formatted text": (lambda m, x: m.body(x) * (2 if "{}".format(x.shape[-1]) == "6" else 3), X),
    "a length": (_length_or, X),
    "a number": (_number_or, X),
    "a branch": (_branch_or, X),
    "a loop": (_parts_or, X),
    "a key that is missing": (_key_or, {"x": X}),
    "a key that may be missing": (_key_or_nothing, {"x": X}),
    "an attribute that is missing": (_attribute_or, X),
    "the gradient of a weight": (_gradient_of_a_weight, X),
    "the type of a weight": (_type_of_a_weight, X),
    "an attribute of a weight": (_attribute_of_a_weight, X),
    "whether it can be called": (lambda m, x: m.body(x) * (2 if callable(x) else 3), X),
    "an entry of a list that is missing": (_entry_or, [X]),
    "a key that a function looks for": (lambda m, x: m.body(x["x"]) * _get(x, "scale", 3.0), {"x": X}),
    "a text that an assertion compares": (_asserts_text, X),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_is_that_of_the_value(name):
    forward, x = ANSWERS[name]
    model = Block(forward, scales={(6, 6): 2.0}, by_text={"6": 2.0})
    other, report = converted(model)
    assert_close(model(x), other(x))
    assert not report.converted


def test_a_proof_with_one_size_holds_for_another():
    model = Block(lambda m, x: m.body(x) * (3 if x.shape[-1] in {8, 10} else 1))
    other, _ = converted(model, X)
    for x in (X, LARGER):
        assert_close(model(x), other(x))


def _says(m, x):
    print("sizes", x.shape)
    logging.getLogger("palimpsest test").debug(f"of {x.dtype}")
    if m.training is None:
        raise ValueError(f"no mode for {x.shape}")
    assert m.training is not None, f"of {x.shape}"
    message = f"bad input {x.shape}"
    if m.training: print(x.shape)  # noqa: E701
    assert m.training is not None, message
    if m.training is None:
        raise ValueError(message)
    return m.body(x)


def _catches_in_a_dict(m, x):
    values = {"a": x}
    try:
        x = values["a"] * 2
    except KeyError:
        pass
    return m.body(x)


def _has_tied_weights(m, x):
    return m.body(x) * (1 if m.conv.weight is m.other.weight else 2)


def _asks_itself(m, x):
    return m.body(x) * getattr(m, "scale", 2.0) * (1 if m.conv.bias is None else 3)


@pytest.mark.parametrize("forward", [_catches_in_a_dict, _has_tied_weights, _asks_itself])
def test_questions_with_an_answer_keep_the_graph(forward):
    model = Block(forward, other=nn.Conv2d(3, 4, 1))
    for _ in range(2):
        other, report = converted(model)
        assert report.converted == ["bn"]
        assert_close(model(X), other(X))
        model.other.weight = model.conv.weight


def test_a_lambda_without_source_asks_with_a_default():
    forwards = {"one":
        (lambda m, x: m.body(x) * getattr(x, "scale", 3.0),
         1)}
    model = Block(forwards["one"][0])
    other, _ = converted(model)
    assert_close(model(X), other(X))


def test_text_for_a_person_keeps_the_graph(capsys):
    model = Block(_says)
    other, report = converted(model)
    assert report.converted == ["bn"]
    assert_close(model(X), other(X))


# ---- What a forward sets


def _limits_its_weight(m, x):
    m.conv.weight.data = torch.renorm(m.conv.weight.data, 2, 0, 0.1)
    return m.body(x)


def _freezes(m, x):
    m.conv.weight.requires_grad = False
    return m.body(x)


class Graph:
    def __init__(self, x):
        self.x = x


def _sets_an_input(m, data):
    data.x = m.body(data.x)
    return data


@pytest.mark.parametrize("forward", [_limits_its_weight, _freezes])
def test_an_attribute_of_a_weight_is_set(forward):
    model = Block(forward)
    other, report = converted(model)
    for network in (model, other):
        network(X).sum().backward()
    assert_close(model(X), other(X))
    assert_close(model.conv.weight.detach(), other.conv.weight.detach())
    assert (model.conv.weight.grad is None) == (other.conv.weight.grad is None)


def test_an_attribute_of_an_input_is_set():
    model = Block(_sets_an_input)
    other, _ = converted(model)
    assert_close(model(Graph(X)).x, other(Graph(X)).x)


# ---- States that a network holds


class Count:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def next(self):
        self.n += 1
        return self.n % 2


def _next_of(array):
    array += 1
    return int(array[0]) % 2


class PrivateArray:
    __slots__ = ("__n",)

    def __init__(self):
        self.__n = np.zeros(1)

    def next(self):
        return _next_of(self.__n)


STATES = {
    "random.Random": (lambda: random.Random(0), lambda s: s.random() < 0.5),
    "a generator of numpy": (lambda: np.random.default_rng(0), lambda s: s.random() < 0.5),
    "an old generator of numpy": (lambda: np.random.RandomState(0), lambda s: s.rand() < 0.5),
    "torch.Generator": (lambda: torch.Generator().manual_seed(0), lambda s: torch.rand(1, generator=s).item() < 0.5),
    "an array": (lambda: np.zeros(1), _next_of),
    "an object with slots": (Count, Count.next),
    "a generator in a list": (lambda: [random.Random(0)], lambda s: s[0].random() < 0.5),
    "a generator in a tuple": (lambda: (random.Random(0),), lambda s: s[0].random() < 0.5),
    "a method of a generator": (lambda: random.Random(0).random, lambda s: s() < 0.5),
    "an array in a simple object": (lambda: types.SimpleNamespace(a=np.zeros(1)), lambda s: _next_of(s.a)),
    "an array in private slots": (PrivateArray, PrivateArray.next),
    "itertools.count": (itertools.count, lambda s: next(s) % 2),
}


@pytest.mark.parametrize("proved", [False, True])
@pytest.mark.parametrize("name", STATES)
def test_a_state_decides_in_each_forward(name, proved):
    make, draw = STATES[name]
    model = Block(lambda m, x: m.body(x) * (2.0 if draw(m.state) else 3.0), state=make())
    other = Block(model.function, state=make())
    _, report = palimpsest.convert(other, *[X] * proved)
    assert not report.converted
    outs = [[float(network(X).abs().sum()) for _ in range(16)] for network in (model, other)]
    if name == "itertools.count":  # cannot be put back: it may begin at another number
        assert len(set(outs[1])) == 2
    else:
        assert outs[1] == pytest.approx(outs[0], rel=1e-12)


class Meter:
    __slots__ = ("average", "last")

    def __init__(self, last):
        self.average, self.last = 0.0, last


@pytest.mark.parametrize("last", [0.0, np.float32(0), (np.zeros(3), 1), None])
def test_an_object_with_slots_holds_no_stand_in_afterwards(last):
    def forward(m, x):
        y = m.body(x + torch.rand(()))
        m.state.average = 0.9 * m.state.average + 0.1 * y.detach().mean()
        m.state.last = y.detach().mean()
        return y

    model, other = Block(forward, state=Meter(last)), Block(forward, state=Meter(last))
    torch.manual_seed(3)
    palimpsest.convert(other)
    drawn = torch.rand(())
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(()))
    assert type(other.state.average) is float and other.state.last is last
    results = []
    for network in (model, other):
        torch.manual_seed(3)
        results.append(network(X))
    assert_close(*results)
    assert_close(model.state.average, other.state.average)


class Unbound:
    """As a context-local object outside of its context."""

    @property
    def __class__(self):
        raise RuntimeError("not bound")


class Raises:
    __slots__ = ("x",)

    def __getattr__(self, name):
        raise KeyError(name)


class OfNoModule:
    __slots__ = ("x",)


OfNoModule.__module__ = None


@pytest.mark.parametrize("value", [random.SystemRandom(), types.SimpleNamespace(a=Unbound()), Raises(), OfNoModule(),
                                   np.ma.masked_array([1.0], [True]), np.array([object()]), np.zeros(0)],
                         ids=lambda value: object.__getattribute__(value, "__class__").__name__
                         if type(value) is not Unbound else "Unbound")
@pytest.mark.parametrize("example", [(), (X,)])
def test_attributes_that_the_forward_does_not_read(value, example):
    model = Block(lambda m, x: m.body(x))
    model.value = value
    _, report = palimpsest.convert(model, *example)
    assert report.converted == ["bn"]


def test_a_forward_that_sets_the_seed_runs_itself():
    def forward(m, x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return m.body(x + torch.randn_like(x))

    model = Block(forward)
    other, _ = converted(model)
    assert_close(model(X), other(X))


# ---- Constants, names and types


class Level(enum.IntEnum):
    P3 = 3


class Flags(enum.IntFlag):
    A = 1
    B = 2


@pytest.mark.parametrize("factor, keeps", [(np.sqrt(2), True), (np.float64(0.5), True), (Level.P3, True),
                                           (Flags.A | Flags.B, False),
                                           (complex(0, float("inf")), False)])
def test_constants_of_other_types(factor, keeps):
    model = Block(lambda m, x: m.body(x) * m.factor, factor=factor)
    other, report = converted(model)
    assert_close(model(X), other(X), equal_nan=True)  # 0 times infinity
    assert report.converted == ["bn"] * keeps


class WithDefault(Block):
    def forward(self, x, factor=np.sqrt(2)):
        return self.body(x) * factor


def test_a_default_of_another_type():
    model = WithDefault(None)
    other, report = converted(model)
    assert_close(model(X), other(X))
    assert report.converted == ["bn"]


def _heads(m, x):
    return torch.cat([head(m.body(x)) for head in m.heads.values()], 1)


@pytest.mark.parametrize("example", [(), (X,)])
def test_a_part_whose_name_is_a_word_of_python(example):
    model = Block(_heads, heads=nn.ModuleDict({"class": nn.Conv2d(4, 2, 1), "box": nn.Conv2d(4, 4, 1)}))
    other, _ = converted(model, *example)
    assert_close(model(X), other(X))


class Boxes(list):
    pass


@dataclasses.dataclass
class Sized:
    out: torch.Tensor
    size: int = dataclasses.field(default=0, init=False)


def _lists(m, x):
    lists = collections.defaultdict(list)
    lists["out"].append(m.body(x))
    return lists


OUTPUTS = {
    "OrderedDict": (lambda m, x: collections.OrderedDict(out=m.body(x), size=x.shape), lambda y: y["out"], True),
    "defaultdict": (_lists, lambda y: y["out"][0], False),
    "a dict by enumeration": (lambda m, x: {Level.P3: m.body(x)}, lambda y: y[Level.P3], False),
    "a kind of list": (lambda m, x: Boxes([m.body(x)]), lambda y: y[0], False),
    "a dataclass": (lambda m, x: Sized(m.body(x)), lambda y: y.out, False),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_has_its_type(name):
    forward, of, keeps = OUTPUTS[name]
    model = Block(forward)
    other, report = converted(model)
    want, got = model(X), other(X)
    assert type(got) is type(want)
    assert_close(of(want), of(got))
    assert report.converted == ["bn"] * keeps


def test_an_ordered_dict_that_is_returned_twice_is_one():
    def forward(m, x):
        out = collections.OrderedDict(out=m.body(x))
        return out, out

    other, report = converted(Block(forward))
    assert report.converted == ["bn"]
    first, second = other(X)
    assert first is second


def test_an_ordered_dict_may_be_written_over_by_the_caller():
    model = Block(lambda m, x: collections.OrderedDict(out=m.bn(m.conv(x))))
    other, _ = converted(model)
    for network in (model, other):
        F.relu(network(X)["out"], inplace=True).sum().backward()
    assert_close(model.conv.weight.grad, other.conv.weight.grad)


# ---- A convolution that computes something else


@pytest.mark.parametrize("before", [True, False])
def test_a_convolution_with_a_computation_of_its_own(before):
    def patch(network):
        conv = network.conv
        conv._conv_forward = lambda x, weight, bias: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), weight, bias)

    model = Block(lambda m, x: m.body(x))
    other = copy.deepcopy(model)
    patch(model)
    if before:
        patch(other)
    palimpsest.convert(other)
    if not before:
        patch(other)
    for network in (model, other):
        network(X).square().sum().backward()
    assert_close(model(X), other(X))
    assert_close(model.conv.weight.grad, other.conv.weight.grad)

"""convert() on classes and calls of every kind: what a stranger's modules may be."""
import abc
import copy
import typing
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from palimpsest._convert import region
from test_convert import X, assert_same, convert_copy


class _Mixin:
    __slots__ = ()


class _Registered(nn.Module):
    names = set()

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        if cls.__name__ in _Registered.names:
            raise KeyError(f"{cls.__name__} is registered already")
        _Registered.names.add(cls.__name__)


def network_of(*bases):
    class Network(*bases):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 4, 1))

        def forward(self, x):
            return self.body(x)

    return Network().double()


@pytest.mark.parametrize("bases", [(abc.ABC, nn.Module), (nn.Module, abc.ABC), (_Mixin, nn.Module),
                                   (typing.Generic[typing.TypeVar("T")], nn.Module)],
                         ids=["abc first", "abc last", "slots", "generic"])
def test_classes_with_other_bases(bases):
    model = network_of(*bases)
    kind = type(model)
    converted, report = convert_copy(model, X)
    assert report.converted == ["body.1"]
    assert_same(model, converted)
    assert_same(model, copy.deepcopy(converted))
    palimpsest.revert(converted)
    assert type(converted) is kind


def test_a_class_that_refuses_subclasses_keeps_its_forward():
    model = network_of(_Registered)
    kind = type(model)
    converted, report = convert_copy(model, X)
    assert type(converted) is kind and report.converted == ["body.1"]
    assert_same(model, converted)


class _Optional(nn.Module):
    """A block that looks at an input which may be missing."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.SiLU(), nn.Conv2d(3, 3, 1))

    def forward(self, x, skip=None):
        if skip is not None and skip.shape[2] > x.shape[2]:
            x = F.interpolate(x, scale_factor=2.0)
        return self.body(x)


class _Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.block = _Optional()

    def forward(self, x):
        return self.block(x, x) if float(x.detach().sum()) < 1e9 else x  # has no graph


def test_a_block_with_an_optional_input_is_converted_for_both_calls():
    model = _Decoder().double()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        converted, report = convert_copy(model, X)
        assert report.converted == ["block.body.1"] and report.kept_bytes_after < report.kept_bytes_before
        assert_same(model, converted)


class _Simple(nn.Conv2d):
    """As torchvision's Conv3DSimple: another constructor, the same forward."""

    def __init__(self, c_in, c_out):
        super().__init__(c_in, c_out, 3, padding=1, bias=False)


class _Doubled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("convolution,is_fused", [
    (_Simple(6, 4), True), (nn.Conv2d(6, 4, 3, padding="same"), True), (nn.Conv2d(6, 4, 3, padding="valid"), True),
    (nn.Conv2d(6, 4, 2, padding="same"), False), (_Doubled(6, 4, 1), False),
    (nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"), False)], ids=str)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolutions_of_other_classes_and_paddings(convolution, is_fused):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.SiLU(), convolution).double()
    converted, report = convert_copy(model)
    assert ("with 3" in report.layers[0].how) == is_fused
    assert_same(model, converted)
    if isinstance(convolution.padding, tuple):
        for m in (model, converted):
            m[3].dilation = (2, 2)
        assert_same(model, converted)


def test_symbolic_traces_are_those_of_the_original():
    model = network_of(nn.Module)
    converted, _ = convert_copy(model)
    traces = [torch.fx.symbolic_trace(m.body if m is model else m.body) for m in (model, converted)]
    assert [str(node.target) for node in traces[0].graph.nodes] == [str(node.target) for node in traces[1].graph.nodes]
    assert not any("palimpsest" in str(node.target) for node in torch.fx.symbolic_trace(converted).graph.nodes)


@pytest.mark.parametrize("model,x", [
    (nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)), torch.randn(2, 8, 4, 4)),
    (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)), torch.randn(8, 4, 4)),
], ids=["4 dimensions", "3 dimensions"])
def test_inputs_that_torch_refuses_are_refused(model, x):
    converted, _ = convert_copy(model)
    with pytest.raises(ValueError) as expected:
        model(x)
    with pytest.raises(ValueError) as got:
        converted(x)
    assert str(got.value) == str(expected.value)


def test_parts_and_copies_of_a_converted_network_are_ordinary():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).double()
    converted, _ = convert_copy(model)
    for other in (converted[:3], type(converted)(*converted.children()), type(converted)(*converted)):
        assert type(other) is nn.Sequential
        assert_same(model[:len(other)], other)
    assert_same(model, converted)


def test_objects_that_are_made_without_a_constructor_are_converted():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).double()
    converted, _ = convert_copy(model)
    blank = type(converted).__new__(type(converted))
    blank.__dict__.update(converted.__dict__)
    for other in (converted._replicate_for_data_parallel(), blank, copy.copy(converted)):
        assert region.is_region(other) and type(other) is type(converted)
        out = other(X)
        assert out.grad_fn.name() == converted(X).grad_fn.name() != model(X).grad_fn.name()
        torch.testing.assert_close(out, model(X))


class _Meta(type):
    def __call__(cls, *arguments):
        made = super().__call__(*arguments)
        made.is_made_by_meta = True
        return made


class _OfMeta(nn.Sequential, metaclass=_Meta):
    pass


def test_classes_that_derive_from_a_converted_class_make_their_own_objects():
    for kind in (nn.Sequential, _OfMeta):
        converted, _ = convert_copy(kind(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))

        class Derived(type(converted)):
            pass

        assert type(Derived(nn.ReLU())) is Derived and type(converted[:1]) is kind
        assert hasattr(converted[:1], "is_made_by_meta") == (kind is _OfMeta)


def test_what_cannot_be_converted_or_reverted_is_named():
    model = network_of(nn.Module)
    model.compile(backend="eager")
    with pytest.raises(ValueError, match="the model is compiled: convert before torch.compile"):
        palimpsest.convert(model)
    with pytest.raises(ValueError, match="revert needs a torch.nn.Module, got int"):
        palimpsest.revert(3)

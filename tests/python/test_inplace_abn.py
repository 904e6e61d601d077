"""The drop-in package inplace_abn: the original's names, orders of arguments and weights."""
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

import inplace_abn
import palimpsest


@pytest.mark.parametrize("arguments, keywords, activation, slope", [
    ((1e-5, 0.1, True, True, "elu", 0.5), {}, "elu", 0.5),
    ((1e-5, 0.1, True, "elu", 0.5), {}, "elu", 0.5),  # before 1.1
    ((), dict(activation="none"), "identity", 0.01),
    ((), dict(activation="leaky_relu", slope=0.2), "leaky_relu", 0.2),
    ((), dict(activation="leaky_relu", activation_param=0), "leaky_relu", 0.0),
    ((), {}, "leaky_relu", 0.01),
])
@pytest.mark.parametrize("kind", [inplace_abn.ABN, inplace_abn.InPlaceABN, inplace_abn.InPlaceABNSync])
def test_both_orders_and_all_names_of_the_arguments(kind, arguments, keywords, activation, slope):
    layer = kind(6, *arguments, **keywords).double()
    assert (layer.activation, layer.activation_param, layer.track_running_stats) == (activation, slope, True)
    x = torch.randn(4, 6, 5, 5, dtype=torch.double)
    y = F.batch_norm(x, None, None, training=True)
    want = {"elu": lambda: F.elu(y, slope), "identity": lambda: y, "leaky_relu": lambda: F.leaky_relu(y, slope)}[activation]()
    assert torch.allclose(layer(x.clone()), want)
    assert list(layer.state_dict()) == list(torch.nn.BatchNorm2d(6).state_dict())


def test_the_layer_and_the_function_write_over_their_input():
    x = torch.randn(4, 6, 5, 5)
    layer = inplace_abn.InPlaceABN(6)
    given = x.clone()
    assert layer(given).data_ptr() == given.data_ptr()
    given = x.clone()
    z = inplace_abn.inplace_abn(given, None, None, None, None, True, 0.1, 1e-5, "leaky_relu", 0.01)
    want = F.leaky_relu(F.batch_norm(x, None, None, training=True))
    assert z.data_ptr() == given.data_ptr() and torch.allclose(z, want, atol=1e-5)


def test_slope_0_is_relu_with_exact_gradients():
    x = torch.randn(4, 6, 5, 5, dtype=torch.double)
    gradients = []
    relu = torch.nn.Sequential(torch.nn.BatchNorm2d(6), torch.nn.ReLU())
    for layer in (inplace_abn.InPlaceABN(6, activation="leaky_relu", activation_param=0.0), relu):
        leaf = x.clone().requires_grad_()
        layer.double()(leaf * 1).square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.allclose(*gradients)


def test_without_a_group_the_synchronized_layer_is_the_plain_one():
    x = torch.randn(4, 6, 5, 5)
    with pytest.warns(RuntimeWarning, match="this process alone"):
        z = inplace_abn.inplace_abn_sync(x.clone(), None, None, None, None)
    assert torch.equal(z, inplace_abn.inplace_abn(x.clone(), None, None, None, None))
    layer = inplace_abn.InPlaceABNSync(6)
    inplace_abn.set_active_group(torch.nn.Sequential(layer), "a group")
    assert layer.group == "a group"


@pytest.mark.parametrize("call, error, says", [
    (lambda: inplace_abn.InPlaceABN(6, act=1), TypeError, "no argument 'act'"),
    (lambda: inplace_abn.InPlaceABN(6, 1e-5, eps=1e-5), TypeError, "'eps' twice"),
    (lambda: inplace_abn.InPlaceABN(6, 1e-5, 0.1, True, "elu", 0.1, 3), TypeError, "at most 5 more positional"),
    (lambda: inplace_abn.InPlaceABN(6, activation="gelu"), RuntimeError, "Unknown activation function gelu"),
    (lambda: inplace_abn.inplace_abn(torch.randn(1, 6, 1, 1), None, None, None, None), ValueError, "more than one value"),
])
def test_wrong_arguments_are_named(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_weights_of_the_original_are_converted():
    original = {"bn.weight": torch.tensor([-0.5, 0.0, 2.0]), "bn.bias": torch.zeros(3), "bn.running_mean": torch.zeros(3),
                "bn.running_var": torch.ones(3), "conv.weight": -torch.ones(2, 3, 1, 1)}
    converted = palimpsest.load_original(original, eps=1e-3)
    assert torch.allclose(converted["bn.weight"], torch.tensor([0.501, 0.001, 2.001]))
    assert converted["conv.weight"] is original["conv.weight"] and original["bn.weight"][0] == -0.5


def test_weights_of_some_layers_are_converted():
    """The original's ABN and torch's layers use the weight as it is."""
    model = torch.nn.Sequential(inplace_abn.InPlaceABN(2), inplace_abn.ABN(2), torch.nn.BatchNorm2d(2),
                                inplace_abn.InPlaceABN(2, affine=False), inplace_abn.InPlaceABNSync(2))
    original = {name: -value if name.endswith("weight") else value for name, value in model.state_dict().items()}
    for layers in (model, ["0", "4"], iter(("0", "4"))):
        converted = palimpsest.load_original(original, eps=1e-3, layers=layers)
        for name in original:
            want = torch.full((2,), 1.001) if name in ("0.weight", "4.weight") else original[name]
            assert torch.equal(converted[name], want), name
        model.load_state_dict(converted)
    state = model.state_dict()
    assert palimpsest.load_original(state)._metadata == state._metadata  # versions that some modules of torch read
    alone = palimpsest.load_original(model[0].state_dict(), layers=model[0])  # its name is ""
    assert torch.equal(alone["weight"], model[0].weight.abs() + 1e-5)
    for layers, says in ((["0", "9"], "no '9.weight'"), (["3"], "no '3.weight'"), ("0", r"one string '0'; write \['0'\]"),
                         (torch.nn.Sequential(torch.nn.BatchNorm2d(2)), "a Sequential, has no InPlaceABN")):
        with pytest.raises(ValueError, match=says):
            palimpsest.load_original(original, layers=layers)


def test_both_names_of_the_parameter_of_the_functions():
    x = torch.randn(4, 3, 5, 5)
    y = F.batch_norm(x, None, None, training=True)
    for keywords, slope in ((dict(slope=0.3), 0.3), (dict(activation_param=0.3), 0.3), ({}, 0.01), (dict(slope=0), 0.0)):
        z = inplace_abn.inplace_abn(x.clone(), None, None, None, None, **keywords)
        assert torch.allclose(z, F.leaky_relu(y, slope), atol=1e-5)
        with pytest.warns(RuntimeWarning, match="this process alone"):
            assert torch.equal(inplace_abn.inplace_abn_sync(x.clone(), None, None, None, None, **keywords), z)
    with pytest.raises(TypeError, match="two names of one argument"):
        inplace_abn.inplace_abn(x, None, None, None, None, activation_param=0.1, slope=0.1)
    for kind in (inplace_abn.ABN, inplace_abn.InPlaceABN, inplace_abn.InPlaceABNSync):
        with pytest.raises(TypeError, match=f"{kind.__name__} got .* two names of one argument"):
            kind(3, activation_param=0.1, slope=0.2)
        with pytest.raises(TypeError, match="'activation_param' twice"):
            kind(3, 1e-5, 0.1, True, True, "elu", 0.1, slope=0.2)


@pytest.mark.parametrize("arguments, keywords", [(([0, 1],), {}), ((None, 1e-5), {}), (((0,),), {}), ((), dict(devices=[0]))])
def test_devices_are_refused_at_construction(arguments, keywords):
    with pytest.raises(TypeError, match="no argument 'devices'.*one process per device"):
        inplace_abn.InPlaceABNSync(4, *arguments, **keywords)


def test_convert_reports_layers_that_are_in_place_already():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), inplace_abn.InPlaceABN(4), torch.nn.Conv2d(4, 4, 3),
                                inplace_abn.ABN(4), torch.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    _, report = palimpsest.convert(model)
    assert report.left == {"1": "in place already", "3": "not a layer that is converted"}


def test_beside_the_original_the_import_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.1.0")
    with pytest.raises(ImportError, match="inplace-abn 1.1.0 .* uninstall both"):
        inplace_abn._refuse_original()


@pytest.mark.parametrize("other, says", [(None, "needs palimpsest, which is not installed"),
                                         ("palimpsest/kernels", "needs palimpsest, which is not installed"),
                                         ("palimpsest.py", "palimpsest.py is another project of that name")])
def test_without_palimpsest_the_import_says_where_it_comes_from(tmp_path, other, says):
    """PyPI has another project of the name, and a clone has a folder."""
    shutil.copytree(pathlib.Path(inplace_abn.__file__).parent, tmp_path / "inplace_abn")
    if other:
        (tmp_path / other).touch() if other.endswith(".py") else (tmp_path / other).mkdir(parents=True)
    end = subprocess.run([sys.executable, "-c", "import inplace_abn"], capture_output=True, text=True, cwd=tmp_path,
                         env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert end.returncode == 1 and says in end.stderr.splitlines()[-1] and "pip install ." in end.stderr.splitlines()[-1]


def test_the_classes_derive_as_the_original_s_do():
    """Code that initializes weights asks isinstance(module, ABN)."""
    for kind in (inplace_abn.InPlaceABN, inplace_abn.InPlaceABNSync):
        layer = kind(3)
        assert isinstance(layer, inplace_abn.ABN) and layer.strategy == "auto"
    assert inplace_abn.ABN(3).strategy == "standard" and not isinstance(inplace_abn.ABN(3), inplace_abn.InPlaceABN)


def test_the_group_may_stand_last():
    group = object()
    layer = inplace_abn.InPlaceABNSync(3, 1e-5, 0.1, True, True, "leaky_relu", 0.01, group)
    assert layer.group is group and layer.activation_param == 0.01
    layer = inplace_abn.InPlaceABNSync(3, 1e-5, 0.1, True, "elu", 0.5, group)  # the order before 1.1
    assert layer.group is group and layer.activation == "elu" and layer.activation_param == 0.5
    with pytest.raises(TypeError):
        inplace_abn.InPlaceABNSync(3, 1e-5, 0.1, True, True, "leaky_relu", 0.01, None, None)

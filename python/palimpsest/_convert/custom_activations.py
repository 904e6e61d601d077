"""Modules of the caller's that compute an activation we know: convert(activations={Swish: "silu"})."""
import torch
from torch import nn
from torch.nn import functional as F

from palimpsest._convert import layers

# Name to the function, and the keyword of its parameter.
_FUNCTIONS = {"relu": (F.relu, None), "leaky_relu": (F.leaky_relu, "negative_slope"), "elu": (F.elu, "alpha"),
              "relu6": (F.relu6, None), "gelu": (F.gelu, None), "gelu_tanh": (F.gelu, None), "silu": (F.silu, None),
              "hardswish": (F.hardswish, None), "mish": (F.mish, None), "sigmoid": (torch.sigmoid, None), "tanh": (torch.tanh, None)}
_CLOSE = 1e-5  # by how much a value or a derivative may differ: some modules compute in f32


def checked(activations, model):
    """{class: (name, parameter or None)} of what the caller gave. Raises ValueError for a class that the model does not have,
    an unknown name, and a class that computes something else."""
    if activations is None:
        return {}
    if not isinstance(activations, dict):
        raise ValueError(f"convert: activations must be a dict of a module's class to an activation's name, got "
                         f"{type(activations).__name__}")
    known = {}
    for kind, given in activations.items():
        name, param = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ValueError(f"convert: a key of activations must be a class of modules, got {kind!r}")
        if not isinstance(name, str) or name not in _FUNCTIONS:
            raise ValueError(f"convert: activations[{kind.__name__}] must be one of {', '.join(_FUNCTIONS)}, got {name!r}")
        if param is not None and (_FUNCTIONS[name][1] is None or layers.checked(name, param) is None):
            raise ValueError(f"convert: activations[{kind.__name__}]: {name} takes no parameter {param!r}")
        modules = [m for m in model.modules() if type(m) is kind]
        if not modules:
            raise ValueError(f"convert: activations names {kind.__name__}, but no module of the model is of this class")
        known[kind] = name, param
        for module in modules:
            _check(module, kind.__name__, *known[kind])
    return known


def _check(module, what, name, param):
    """Raises ValueError if a module computes something else than the activation."""
    where = torch.linspace(-8, 8, 1600, dtype=torch.float64).view(1, 1, 40, 40)  # no integer: there some derivatives jump
    results = []
    for function in (module.forward, lambda x: _call(x, name, param)):
        x = where.clone().requires_grad_()
        try:
            with torch.enable_grad():
                y = function(x * 1)
                results.append((y.detach(), torch.autograd.grad(y.sum(), x)[0]))
        except Exception as error:
            raise ValueError(f"convert: activations says that {what} computes {name}, but it raises for numbers from -8 to 8: "
                             f"{type(error).__name__}: {error}") from error
    for got, want, of in zip(*results, ("", "the derivative of ")):
        if got.shape != want.shape:
            raise ValueError(f"convert: activations says that {what} computes {name}, but it makes {tuple(got.shape)} of a "
                             f"tensor of {tuple(want.shape)}")
        difference = (got - want).abs().nan_to_num(nan=torch.inf)
        if difference.max() > _CLOSE:
            at = difference.argmax()
            raise ValueError(f"convert: activations says that {what} computes {name}, but {of}{what}({where.flatten()[at]:.4g}) is "
                             f"{got.flatten()[at]:.6g}, and that of {name} {want.flatten()[at]:.6g}")


def _arguments(name, param):
    if name == "gelu_tanh":
        return {"approximate": "tanh"}
    return {} if param is None else {_FUNCTIONS[name][1]: param}


def _call(x, name, param):
    return _FUNCTIONS[name][0](x, **_arguments(name, param))


def modules_of(module, activations):
    """The modules within `module` that a graph must call, and not enter."""
    return [m for m in module.modules() if type(m) in activations and m is not module] if activations else []


def put_functions(graph, modules, activations):
    """Puts torch's function in place of each call of such a module."""
    for node in list(graph.nodes):
        module = modules[node.target] if node.op == "call_module" else None
        if type(module) not in activations or len(node.args) != 1 or node.kwargs or layers.has_hooks(module):
            continue
        name, param = activations[type(module)]
        with graph.inserting_before(node):
            new = graph.call_function(_FUNCTIONS[name][0], node.args, _arguments(name, param))
        node.replace_all_uses_with(new)
        graph.erase_node(node)

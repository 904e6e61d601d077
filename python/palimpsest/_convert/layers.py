"""Which modules and functions are a normalization, an activation, a convolution, a pooling, a dense block."""
import collections
import operator

import torch
from torch import nn
from torch.nn import functional as F

from palimpsest import functional
from palimpsest.nn import BatchNormAct


def checked(name, param):
    """(name, parameter), or None for a parameter that the operator refuses."""
    is_known = isinstance(param, (int, float)) and 0 <= param <= (1 if name == "leaky_relu" else 1e30)
    return (name, float(param)) if is_known else None


_ACTIVATION_MODULES = {
    nn.ReLU: lambda m: ("relu", 0.0),
    nn.ReLU6: lambda m: ("relu6", 0.0) if (m.min_val, m.max_val) == (0, 6) else None,
    nn.LeakyReLU: lambda m: checked("leaky_relu", m.negative_slope),
    nn.ELU: lambda m: checked("elu", m.alpha),
    nn.GELU: lambda m: ("gelu_tanh" if m.approximate == "tanh" else "gelu", 0.0),
    nn.SiLU: lambda m: ("silu", 0.0),
    nn.Hardswish: lambda m: ("hardswish", 0.0),
    nn.Mish: lambda m: ("mish", 0.0),
    nn.Sigmoid: lambda m: ("sigmoid", 0.0),
    nn.Tanh: lambda m: ("tanh", 0.0),
    nn.Softplus: lambda m: ("softplus", 0.0) if (m.beta, m.threshold) == (1, 20) else None,
}

# Function to the name, the parameter's place and default.
_ACTIVATION_FUNCTIONS = {
    **dict.fromkeys((F.relu, torch.relu, F.relu_, torch.relu_), ("relu", None, 0.0)),
    **dict.fromkeys((F.leaky_relu, F.leaky_relu_), ("leaky_relu", "negative_slope", 0.01)),
    **dict.fromkeys((F.elu, F.elu_), ("elu", "alpha", 1.0)),
    F.relu6: ("relu6", None, 0.0),
    F.silu: ("silu", None, 0.0),
    F.hardswish: ("hardswish", None, 0.0),
    F.mish: ("mish", None, 0.0),
    **dict.fromkeys((torch.sigmoid, F.sigmoid), ("sigmoid", None, 0.0)),
    **dict.fromkeys((torch.tanh, F.tanh), ("tanh", None, 0.0)),
}
_ACTIVATION_METHODS = {name: name.removesuffix("_") for name in ("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_")}

_ADDITIONS = (operator.add, operator.iadd, torch.add)

# Functions, methods and modules whose backward does not read their full-size input.
_SAVES_NO_INPUT = {
    operator.add, operator.iadd, operator.sub, torch.add, torch.sub, torch.cat, torch.concat, torch.flatten, torch.mean,
    torch.sum, torch.chunk, torch.split, torch.permute, torch.transpose, F.adaptive_avg_pool2d, F.avg_pool2d, F.interpolate,
    F.pad, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, getattr, operator.getitem, collections.OrderedDict,
}
_METHODS_SAVE_NO_INPUT = {"add", "add_", "sub", "mean", "sum", "flatten", "view", "reshape", "size", "dim", "permute",
                          "transpose", "chunk", "split", "contiguous", "detach"}
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_MODULES_SAVE_NO_INPUT = (nn.AdaptiveAvgPool2d, nn.AvgPool2d, *DROPOUTS, nn.Flatten, nn.Upsample, nn.Identity)

#: the forwards of torch's classes, which somebody may replace
_FORWARDS = {kind: kind.forward for kind in vars(nn).values() if isinstance(kind, type) and issubclass(kind, nn.Module)}


def has_hooks(module):
    """Whether somebody listens to calls of the module, or replaced its forward: then it must be called."""
    d, kind = module.__dict__, type(module)
    if _FORWARDS.get(kind, kind.forward) is not kind.forward:
        return True
    return bool(d["_forward_hooks"] or d["_forward_pre_hooks"] or d["_backward_hooks"] or d["_backward_pre_hooks"]
                or "forward" in d)


def is_norm_with_act(module):
    """A batch normalization that holds its activation, as timm's BatchNormAct2d."""
    return (isinstance(module, nn.BatchNorm2d) and type(module).__name__ == "BatchNormAct2d"
            and isinstance(getattr(module, "act", None), nn.Module) and type(getattr(module, "drop", None)) is nn.Identity)


def is_norm(module):
    """A batch normalization of torch's, or one with its activation."""
    return type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm) or is_norm_with_act(module)


#: normalizations that take no statistics over the batch
NORMS_OF_SAMPLES = (nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def _moves_no_statistics(module):
    return getattr(module, "running_mean", None) is None


def is_norm_of_samples(module):
    """A normalization of torch's over each sample, which moves no statistics."""
    return type(module) in NORMS_OF_SAMPLES and _moves_no_statistics(module)


def is_instance_norm(module):
    """torch's InstanceNorm, or a class of it."""
    return isinstance(module, nn.modules.instancenorm._InstanceNorm)


def normalizes_samples(node, modules):
    """Whether a node calls such a normalization, as a module that nobody listens to or as a function."""
    if node.op == "call_module":
        module = modules[node.target]
        return is_norm_of_samples(module) and not has_hooks(module) and len(node.args) == 1 and not node.kwargs
    return node.op == "call_function" and node.target in (F.group_norm, F.layer_norm, F.instance_norm) and bool(node.args) \
        and isinstance(node.args[0], torch.fx.Node) and not _moves_statistics(node)


def _moves_statistics(node):
    """Whether a call of F.instance_norm has running statistics, which another run would move again."""
    statistics = (*node.args[1:3], node.kwargs.get("running_mean"), node.kwargs.get("running_var"))
    return node.target is F.instance_norm and any(a is not None for a in statistics)


def module_of_norm(node, modules):
    """The path of the module of which a normalization of samples is part, and that module; (None, None) for a function alone."""
    if node.op == "call_module":
        return node.target, modules[node.target]
    calls = node.meta.get("nn_module_stack") or {"": None}
    path = next(reversed(calls)).partition("@")[0]  # @1: of the second call
    return (path, modules[path]) if isinstance(modules.get(path), NORMS_OF_SAMPLES) else (None, None)


def takes_norm_of_samples(node, modules, options):
    """Whether a node normalizes samples, and the caller of convert() wants that layer converted."""
    if not normalizes_samples(node, modules):
        return False
    path, module = module_of_norm(node, modules)
    return options.takes_rest if module is None else options.accepts(module, path)


def keeps_output(module):
    """A layer of ours that is in place already: backward starts from its result."""
    return isinstance(module, BatchNormAct) and module.strategy != "standard" and functional.saved_by(
        functional.resolve_strategy(module.strategy, module.activation), module.activation).startswith("output")


#: name to torch's function of an activation, and the keyword of its parameter
FUNCTIONS = {"relu": (F.relu, None), "leaky_relu": (F.leaky_relu, "negative_slope"), "elu": (F.elu, "alpha"),
             "relu6": (F.relu6, None), "gelu": (F.gelu, None), "gelu_tanh": (F.gelu, None), "silu": (F.silu, None),
             "hardswish": (F.hardswish, None), "mish": (F.mish, None), "sigmoid": (torch.sigmoid, None),
             "tanh": (torch.tanh, None), "softplus": (F.softplus, None)}
#: activations whose function in torch has an argument `inplace`
HAVE_INPLACE = ("leaky_relu", "elu", "relu", "relu6", "silu", "hardswish", "mish")


def arguments_behind(name, param):
    """The arguments of torch's function of an activation behind its input."""
    return (param,) if FUNCTIONS[name][1] else ()


# Activations whose result autograd saves: nobody may write over it.
SAVED_BY_AUTOGRAD = ("relu", "sigmoid", "tanh")


def activation_of_module(module):
    """(name, parameter) of an activation that we know, or None."""
    known = _ACTIVATION_MODULES.get(type(module))
    return known(module) if known else None


def activation_of(node, modules):
    """(name, parameter) of a node that applies an activation we know to its first argument, or None."""
    if node.op == "call_module":
        return activation_of_module(modules[node.target])
    if node.op == "call_method":
        name = _ACTIVATION_METHODS.get(node.target)
        return (name, 0.0) if name else None
    if node.op != "call_function" or "out" in node.kwargs:
        return None
    if node.target is F.softplus:
        return ("softplus", 0.0) if len(node.args) == 1 and not node.kwargs else None
    if node.target is F.gelu:
        return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu", 0.0
    known = _ACTIVATION_FUNCTIONS.get(node.target)
    if known is None or not node.args:
        return None
    name, keyword, default = known
    param = node.args[1] if keyword and len(node.args) > 1 else node.kwargs.get(keyword, default)
    return checked(name, param) if keyword else (name, param)


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_torchs_convolution(module):
    """torch's convolution, or a class of it that computes the same, as torchvision's Conv3DSimple."""
    kind = type(module)
    if "_conv_forward" in getattr(module, "__dict__", ()):
        return False
    return kind in _CONVOLUTIONS or (
        isinstance(module, _CONVOLUTIONS) and "forward" not in module.__dict__ and not hasattr(module, "parametrizations")
        and any(kind.forward is c.forward and kind._conv_forward is c._conv_forward for c in _CONVOLUTIONS))


def is_convolution(module):
    """A convolution that our operators can take the place of."""
    return is_torchs_convolution(module) and module.padding_mode == "zeros" and padding_of(module) is not None


def padding_of(conv):
    """The zeros on both sides of each dimension; None if the sides differ, as under "same" with an even window."""
    padding = conv.padding
    if not isinstance(padding, str):
        return padding
    if padding == "valid":
        return (0,) * len(conv.kernel_size)
    whole = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size)]
    return None if any(w % 2 for w in whole) else tuple(w // 2 for w in whole)


def is_max_pool(module):
    return type(module) is nn.MaxPool2d and not module.return_indices


def is_small_window(size):
    """functional.is_small_window() of a size that may be a node of the graph."""
    sides = size if isinstance(size, (list, tuple)) else [size]
    return all(isinstance(side, int) for side in sides) and functional.is_small_window(size)


def _is_torchvisions(module, name):
    """Whether a module is of a class of torchvision's and of no other, with torchvision's forward."""
    kind = type(module)
    return kind.__name__ == name and all(of.__module__.startswith("torchvision.") for of in (kind, kind.forward))


def is_dense_block(module):
    """torchvision's _DenseBlock: layers of norm1, relu1, conv1, norm2, relu2, conv2, each on all features before it."""
    if not _is_torchvisions(module, "_DenseBlock"):
        return False
    layers = list(module.children())
    return bool(layers) and all(_is_dense_layer(layer, layers[0]) for layer in layers)


def _is_dense_layer(layer, first):
    parts = [getattr(layer, name, None) for name in ("norm1", "conv1", "norm2", "conv2", "relu1", "relu2")]
    if any(part is None or has_hooks(part) for part in parts) or has_hooks(layer) \
            or not _is_torchvisions(layer, "_DenseLayer"):
        return False
    norm1, conv1, norm2, conv2, relu1, relu2 = parts
    norms = all(type(n) is nn.BatchNorm2d and n.eps == first.norm1.eps and n.momentum == first.norm1.momentum
                and n.momentum is not None and n.affine and n.track_running_stats and n.training == first.norm1.training
                for n in (norm1, norm2))
    return (norms and type(relu1) is type(relu2) is nn.ReLU and is_convolution(conv1) and is_convolution(conv2)
            and conv1.kernel_size == conv1.stride == (1, 1) and conv1.padding == (0, 0)
            and conv2.stride == conv2.dilation == (1, 1) and conv2.padding == tuple(k // 2 for k in conv2.kernel_size)
            and conv1.groups == conv2.groups == 1 and conv1.bias is None and conv2.bias is None
            and layer.drop_rate == first.drop_rate)


def may_be_converted(module):
    """Whether convert() may change what a layer saves, so that the caller may choose it."""
    is_of_samples = isinstance(module, NORMS_OF_SAMPLES) and _moves_no_statistics(module)
    return is_norm(module) or is_of_samples or is_max_pool(module) or is_dense_block(module)


def added(node):
    """The two tensors that a node adds, or None."""
    is_addition = (node.op == "call_function" and node.target in _ADDITIONS) or \
        (node.op == "call_method" and node.target in ("add", "add_"))
    if not is_addition or len(node.args) != 2 or node.kwargs:
        return None
    a, b = node.args
    both = all(isinstance(x, torch.fx.Node) for x in (a, b))
    return (a, b) if both and a is not b else None


def saves_input(node, modules):
    """Whether backward of a node may need a value that it reads, so that autograd saves it."""
    if node.op == "output" or node.meta.get("saves_no_input", False):
        return False
    if node.op == "call_module":
        module = modules[node.target]
        return not (type(module) in _MODULES_SAVE_NO_INPUT or is_max_pool(module))
    if node.op == "call_method":
        return node.target not in _METHODS_SAVE_NO_INPUT
    return node.target not in _SAVES_NO_INPUT


def may_be_saved(value, modules, without=None):
    """Whether a reader of a value, other than `without`, may need it for backward."""
    return any(saves_input(reader, modules) for reader in value.users if reader is not without)


def concatenated(node):
    """(tensors, dimension) of a node that concatenates a list of the graph's tensors, or None."""
    if node.op != "call_function" or node.target not in (torch.cat, torch.concat) or node.kwargs.keys() - {"dim"} \
            or not node.args or not isinstance(node.args[0], (list, tuple)):
        return None
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    is_known = isinstance(dim, int) and all(isinstance(t, torch.fx.Node) for t in node.args[0])
    return (list(node.args[0]), dim) if is_known else None


def is_split(node):
    """chunk or split of a tensor."""
    return (node.op == "call_function" and node.target in (torch.chunk, torch.split)) or \
        (node.op == "call_method" and node.target in ("chunk", "split"))


def parts_of_split(node):
    """The number of parts of a chunk, or of a split into a list of sizes; None if it is not known."""
    if not is_split(node) or len(node.args) < 2:
        return None
    name = node.target if node.op == "call_method" else node.target.__name__
    argument = node.args[1]
    if name == "chunk" and isinstance(argument, int):
        return argument
    return len(argument) if name == "split" and isinstance(argument, (list, tuple)) else None


def is_product(node):
    """x * y of two tensors: squeeze and excitation."""
    return (node.op == "call_function" and node.target in (operator.mul, torch.mul)) or \
        (node.op == "call_method" and node.target == "mul")

"""Which values of a graph may share memory, and which of them change in place."""
import collections
import operator

import torch
from torch import nn
from torch.nn import functional as F

from palimpsest._convert import layers

_CALLER = "caller"  # the memory of all inputs and attributes: they may share it among themselves

# Every other function, method and module may return its input, or a view of it.
_NEW_NAMES = """add sub mul div true_divide floor_divide matmul bmm mm addmm neg abs square pow sqrt rsqrt exp log maximum minimum
clamp where cat concat stack clone mean sum amax amin var std softmax log_softmax sigmoid tanh relu relu6 elu leaky_relu gelu silu
hardswish hardsigmoid mish softplus flip roll pad""".split()
_NEW_FUNCTIONS = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.neg, operator.pow, operator.matmul,
    *(getattr(torch, name) for name in _NEW_NAMES if hasattr(torch, name)),
    *(getattr(F, name) for name in _NEW_NAMES if hasattr(F, name)),
    F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.linear, F.batch_norm,
    F.layer_norm, F.group_norm, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d, F.interpolate,
}
_NEW_MODULES = tuple(f"torch.nn.modules.{name}" for name in ("conv", "batchnorm", "instancenorm", "normalization", "pooling",
                                                             "activation"))
#: those of x += y and its like
ARITHMETIC_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod,
                       operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift)
_IN_PLACE_OPERATORS = (*ARITHMETIC_IN_PLACE, operator.setitem)
_INPLACE_SECOND = (F.relu, F.relu6, F.silu, F.hardswish, F.mish, F.hardsigmoid, F.selu)  # their second argument is `inplace`
# Functions of no tensor library that are known to write nothing, though they may return their input.
_WRITE_NOTHING = {"torchvision.ops.stochastic_depth.stochastic_depth", "timm.layers.drop.drop_path"}


def _qualified(function):
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"


def _is_torchs(function):
    module = getattr(function, "__module__", None) or ""
    return (function in (getattr, operator.getitem, collections.OrderedDict) or module in ("_operator", "math")
            or module.split(".")[0] == "torch" or "_VariableFunctions" in getattr(function, "__qualname__", ""))


def writes_over(node, value, modules):
    """Whether a node may change its argument `value` in place."""
    if node.op in ("placeholder", "get_attr", "output") or value not in node.all_input_nodes:
        return False
    is_first = node.args[0] is value if node.args else True  # a call with keywords alone: any of them
    if node.op == "call_module":
        module = modules[node.target]
        is_torchs = type(module).__module__.startswith("torch.nn.modules.") and not any(True for _ in module.children())
        if not is_torchs or module._forward_hooks or module._forward_pre_hooks:
            return not _is_known(module)
        return is_first and bool(getattr(module, "inplace", False))
    if node.op == "call_method":
        return is_first and node.target.endswith("_") and not node.target.endswith("__")
    if node.kwargs.get("out") is value:
        return True
    if hasattr(node.target, "_schema"):
        return node.target._schema.is_mutable
    if not _is_torchs(node.target):
        return not is_known_function(node.target)
    name = getattr(node.target, "__name__", "")
    inplace = node.kwargs.get("inplace") is True or (node.target in _INPLACE_SECOND and node.args[1:2] == (True,))
    return is_first and (node.target in _IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")) or inplace)


def is_known_function(function):
    return _is_torchs(function) or _qualified(function) in _WRITE_NOTHING


def returns_tensor(module):
    """Whether a module that a graph calls is known to return a tensor, and no None. Its hooks return what it returns."""
    kind = type(module)
    if getattr(kind, "_palimpsest_forward", kind.forward) is nn.Sequential.forward:
        return all(map(returns_tensor, module.children()))
    return kind.__module__.startswith("torch.nn.modules.") and not any(True for _ in module.children()) \
        or kind.__module__.startswith(("palimpsest.", "inplace_abn")) or layers.is_norm_with_act(module) \
        or layers.is_torchs_convolution(module) or layers.is_dense_block(module)


def leaves(value):
    """What nested lists, tuples, dicts and slices hold."""
    if type(value) in (list, tuple):
        for part in value:
            yield from leaves(part)
    elif type(value) in (dict, collections.OrderedDict):
        yield from leaves(list(value.values()))
    elif type(value) is slice:
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def _is_known(module):
    """A module of another package that a graph does not enter, and that writes nothing."""
    return (layers.is_norm_with_act(module) or layers.is_torchs_convolution(module)) \
        and not any(layers.has_hooks(m) for m in module.modules())


def _is_new(node, modules):
    """Whether a node is known to return memory of its own."""
    if node.op == "call_module":
        module = modules[node.target]
        is_new = type(module).__module__ in _NEW_MODULES or type(module) is nn.Linear or _is_known(module)
        return is_new and not module._forward_hooks
    if node.op == "call_method":
        return node.target in _NEW_NAMES
    return node.op == "call_function" and node.target in _NEW_FUNCTIONS


class Aliases:
    """Made from a graph before it is rewritten. A node that takes the place of another one answers for it: see `replaces`."""

    def __init__(self, graph, modules):
        self._modules = modules
        self._roots, self._order, self._writes = {}, {}, []
        self._returned = frozenset()
        for position, node in enumerate(graph.nodes):
            inputs = frozenset().union(*(self._roots[i] for i in node.all_input_nodes))
            written = [i for i in node.all_input_nodes if writes_over(node, i, modules)]
            self._order[node] = position
            if node.op in ("placeholder", "get_attr"):
                self._roots[node] = frozenset([_CALLER])
            elif _is_new(node, modules) and not written:
                self._roots[node] = frozenset([node])
            elif written:  # the result of an operator in place
                self._roots[node] = frozenset([node]).union(*(self._roots[i] for i in written))
                self._writes.append((position, self._roots[node]))
            else:
                self._roots[node] = inputs | {node}
            if node.op == "output":
                self._returned = inputs

    @staticmethod
    def replaces(new, old):
        """Says that a node that was added has the value of an old one."""
        new.meta["stands_for"] = old.meta.get("stands_for", old)

    def position(self, node):
        """The place of a node in the graph as it was."""
        return self._order[node.meta.get("stands_for", node)]

    def is_changed(self, value):
        """Whether the memory of `value` may be written after `value` was made."""
        value = value.meta.get("stands_for", value)
        roots, position = self._roots.get(value), self._order.get(value)
        return roots is None or any(at > position and not roots.isdisjoint(written) for at, written in self._writes)

    def is_returned(self, value):
        """Whether the caller gets `value`, or a view of it, and may write over it."""
        return not self._roots[value.meta.get("stands_for", value)].isdisjoint(self._returned)

    def has_own_memory(self, value):
        """Whether `value` is no view of another value."""
        value = value.meta.get("stands_for", value)
        return self._roots[value] == {value}

    def is_callers(self, value):
        """Whether the caller holds memory of `value`, as an input or as a result, and may write over it."""
        return _CALLER in self._roots[value.meta.get("stands_for", value)] or self.is_returned(value)

    def ends_with(self, value, reader):
        """Whether `reader`, which writes over `value`, is the last to see its memory under any name but its own."""
        roots = self._roots[value]
        last = self._order[reader]
        return _CALLER not in roots and not any(
            self._order[user] > last for node, shared in self._roots.items()
            if self._order[node] < last and not roots.isdisjoint(shared) for user in node.users if user in self._order)

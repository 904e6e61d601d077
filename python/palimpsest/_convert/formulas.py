"""Activations that a forward writes out by their formula: x * sigmoid(x) is SiLU.

Two formulas are left: a product with F.hardsigmoid, which in torch is hardswish to 1e-7 alone in f64, and that of Mish, which
is f32 under autocast on a GPU, where Mish is not."""
import operator

import torch
from torch.nn import functional as F

from palimpsest._convert import layers
from palimpsest._convert.aliases import Aliases, writes_over

_ADDITIONS = (operator.add, torch.add)
_DIVISIONS = (operator.truediv, torch.div, torch.true_divide)


def fold_formulas(graph, modules, takes):
    """Puts one call of torch's function in the place of each formula of a normalization's result, or of a sum with one.

    takes(node of the normalization, name of the activation): whether they may become one layer."""
    found = []
    for node in graph.nodes:
        x, name = _activation_by_formula(node, modules)
        if name is not None and any(takes(norm, name) for norm in _norms_in(x, modules)):
            found.append((node, x, name))
    aliases = Aliases(graph, modules) if found else None
    for node, x, name in found:
        if aliases.is_changed(x):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(getattr(F, name), (x,))
        node.replace_all_uses_with(new)
        _erase(graph, node, x)


def _erase(graph, node, x):
    sources = [source for source in node.all_input_nodes if source is not x]
    graph.erase_node(node)
    for source in sources:
        _erase(graph, source, x)


def _norms_in(x, modules):
    return [node for node in (x, *(layers.added(x) or ()))
            if node.op == "call_module" and layers.is_norm(modules[node.target])]


def _activation_by_formula(node, modules):
    """(x, name of the activation of x that a node computes by its formula), or (None, None)."""
    for x, gate in _factors(node):
        if _is_sigmoid(gate, x, modules):
            return x, "silu"
        if _is_read_once(gate) and _is_relu6_of_3_more(_divided_by_6(gate), x, modules):
            return x, "hardswish"
    for x, gate in _factors(_divided_by_6(node)):
        if _is_relu6_of_3_more(gate, x, modules):
            return x, "hardswish"
    return None, None


def _factors(node):
    """Both orders of the two tensors whose product a node is; none if it is no product."""
    is_product = isinstance(node, torch.fx.Node) and layers.is_product(node) and len(node.args) == 2 and not node.kwargs
    if not is_product or not all(isinstance(factor, torch.fx.Node) for factor in node.args):
        return []
    a, b = node.args
    return [(a, b), (b, a)]


def _is_read_once(node):
    return isinstance(node, torch.fx.Node) and len(node.users) == 1


def _is_listened(node, modules):
    return node.op == "call_module" and layers.has_hooks(modules[node.target])


def _is_sigmoid(node, x, modules):
    """Whether a node, which has one reader, is the sigmoid of x, and leaves x as it is."""
    is_sigmoid = _is_read_once(node) and node.args[:1] == (x,) and layers.activation_of(node, modules) == ("sigmoid", 0.0)
    return is_sigmoid and not writes_over(node, x, modules) and not _is_listened(node, modules)


def _is_relu6_of_3_more(node, x, modules):
    """Whether a node is relu6(x + 3). It may write over that sum, which nobody else reads."""
    if not _is_read_once(node) or not node.args or not _is_read_once(node.args[0]):
        return False
    total = node.args[0]
    is_relu6 = layers.activation_of(node, modules) == ("relu6", 0.0) or (
        node.target is F.hardtanh and (node.kwargs.get("min_val"), node.kwargs.get("max_val")) == (0, 6))
    is_sum = _calls(total, _ADDITIONS, "add") and x in total.args
    return is_relu6 and is_sum and any(_is_number(part, 3) for part in total.args) and not _is_listened(node, modules)


def _divided_by_6(node):
    """What a node divides by 6, or None."""
    if not isinstance(node, torch.fx.Node) or not _calls(node, _DIVISIONS, "div"):
        return None
    total, divisor = node.args
    return total if _is_number(divisor, 6) and _is_read_once(total) else None


def _calls(node, functions, method):
    is_call = (node.op == "call_function" and node.target in functions) or (node.op == "call_method" and node.target == method)
    return is_call and len(node.args) == 2 and not node.kwargs


def _is_number(value, number):
    return isinstance(value, (int, float)) and value == number

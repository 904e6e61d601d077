"""Activations that a network computes in place, where backward makes their input again: they need not be in place."""
import torch

from palimpsest._convert import layers
from palimpsest._convert.aliases import writes_over

_FUNCTIONS = {name: layers.FUNCTIONS[name][0] for name in layers.HAVE_INPLACE}


def put(graph, modules, options):
    """Behind normalizations of samples, whose result nobody else reads. restore() undoes it where nothing came of it."""
    for node in list(graph.nodes):
        y = node.args[0] if node.args else None
        if not isinstance(y, torch.fx.Node) or not layers.takes_norm_of_samples(y, modules, options) or len(y.users) > 1 \
                or not writes_over(node, y, modules) or (node.op == "call_module" and layers.has_hooks(modules[node.target])):
            continue
        name, param = layers.activation_of(node, modules) or (None, None)
        if name in _FUNCTIONS:
            with graph.inserting_before(node):
                new = graph.call_function(_FUNCTIONS[name], (y, *layers.arguments_behind(name, param)))
            new.meta["was_in_place"] = True
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def restore(graph):
    """Writes in place again what the rewriting has left alone."""
    for node in graph.nodes:
        if node.meta.get("was_in_place") and node.target in _FUNCTIONS.values():
            node.kwargs = {"inplace": True}

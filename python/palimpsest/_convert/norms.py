"""The batch normalizations of a graph, each with the sum and the activation behind it."""
import collections

import torch
from torch import nn

from palimpsest import functional
from palimpsest._convert import layers
from palimpsest._convert.aliases import writes_over
from palimpsest._convert.options import strategy_names
from palimpsest._convert.report import Layer


class Norm:
    """A batch normalization in a graph, with the sum and the activation behind it."""

    def __init__(self, node, modules, aliases, is_shared):
        self.aliases, self.modules = aliases, modules
        self.is_shared = is_shared  #: others read its statistics: the calls must keep their order, so none is moved
        self.node = self.last = node
        self.module = modules[node.target]
        self.activation, self.param, self.addition = "identity", 0.0, None
        if layers.is_norm_with_act(self.module):
            if type(self.module.act) is not nn.Identity:
                self.activation, self.param = layers.activation_of_module(self.module.act) or (None, 0.0)
            return
        if not is_shared:
            self._take_addition(modules)
        self._take_activation(modules)

    def _only_reader(self):
        return next(iter(self.last.users)) if len(self.last.users) == 1 else None

    def _take_addition(self, modules):
        reader = self._only_reader()
        terms = layers.added(reader) if reader else None
        if not terms:
            return
        other = terms[1] if terms[0] is self.node else terms[0]
        if writes_over(reader, other, modules):
            if not self.aliases.ends_with(other, reader):
                return  # somebody sees the sum in other's memory
        elif self.aliases.is_changed(other):
            return  # backward reads it
        elif self.aliases.is_callers(other) and not layers.may_be_saved(other, modules, without=reader):
            return  # the caller may write over what the original does not save
        module = modules[other.target] if other.op == "call_module" else None
        if module and layers.is_norm(module) and not layers.has_hooks(module) and len(other.users) == 1:
            # Of two normalizations one takes the sum: that which it is written over, or the later one.
            is_written = [writes_over(reader, term, modules) for term in (self.node, other)]
            earlier = self.aliases.position(self.node) < self.aliases.position(other)
            if is_written[1] or (not is_written[0] and earlier):
                return
        self.addition, self.last = reader, reader

    def _take_activation(self, modules):
        reader = self._only_reader()
        known = layers.activation_of(reader, modules) if reader and reader.args[:1] == (self.last,) else None
        if known and not (reader.op == "call_module" and layers.has_hooks(modules[reader.target])):
            (self.activation, self.param), self.last = known, reader

    @property
    def residual(self):
        return next(term for term in self.addition.args if term is not self.node)

    @property
    def written(self):
        """Which term the sum is written over: "norm", "residual" or None."""
        terms = self.addition.args
        if not writes_over(self.addition, terms[0], self.modules):
            return None
        return "norm" if terms[0] is self.node else "residual"

    def what(self):
        words = [type(self.module).__name__] + (["+ residual"] if self.addition else [])
        return " ".join(words + ([f"+ {self.activation}"] if self.activation != "identity" else []))


def find(graph, modules, options, aliases, in_order):
    """(the normalizations that become fused layers, a Layer for each that is left alone)."""
    found, left, taken = [], [], set()
    for node in graph.nodes:
        if node.op != "call_module" or not layers.is_norm(modules[node.target]):
            continue
        norm = Norm(node, modules, aliases, is_shared(modules[node.target], in_order))
        reason = _reason_to_leave(norm, modules, options, taken)
        if reason:
            left.append(Layer(node.target, type(norm.module).__name__, False, reason))
            continue
        functional.resolve_strategy(options.strategy, norm.activation, offered=strategy_names())
        taken.update(n for n in (norm.addition, norm.last) if n is not None and n is not node)
        found.append(norm)
    return found, left


def takes(module, name, activation, options):
    """Whether a normalization may be one layer with an activation."""
    try:
        functional.resolve_strategy(options.strategy, activation, offered=strategy_names())
    except ValueError:
        return False
    return options.accepts(module, name) and not any(layers.has_hooks(m) for m in module.modules())


def _reason_to_leave(norm, modules, options, taken):
    if any(layers.has_hooks(m) for m in norm.module.modules()):
        return "hooks listen to its calls"
    x = norm.node.args[0] if norm.node.args else None
    if x is None or norm.node.kwargs:
        return "it is called with keywords"
    if norm.activation is None:
        return f"its activation, {type(norm.module.act).__name__}, has no fused form"
    if not options.accepts(norm.module, norm.node.target):
        return "not selected"
    if norm.addition in taken or (norm.last is not norm.node and norm.last in taken):
        return "its sum belongs to another normalization"
    if norm.activation == "identity" and norm.aliases.is_changed(norm.last):
        return "its result is changed in place"
    if norm.activation == "identity" and norm.aliases.is_returned(norm.last) \
            and not layers.may_be_saved(norm.last, modules):
        return "its result is returned, and may be changed in place"
    if norm.aliases.is_changed(x):
        return "its input is changed in place"
    return None


def read_in_order(graph, modules):
    """The storages of buffers that several nodes read or write: two calls of one normalization, or a call and a name."""
    readers = collections.Counter()
    for node in graph.nodes:
        if node.op == "call_module":
            readers.update(_storages(modules[node.target].buffers()))
        elif node.op == "get_attr":
            path, _, name = node.target.rpartition(".")
            readers.update(_storages([modules[path]._buffers.get(name)] if path in modules else []))
    return {storage for storage, count in readers.items() if count > 1}


def is_shared(module, in_order):
    """Whether a normalization has buffers of read_in_order()."""
    return not in_order.isdisjoint(_storages(module.buffers()))


def _storages(tensors):
    return {t.untyped_storage()._cdata for t in tensors if t is not None and t.layout is torch.strided}

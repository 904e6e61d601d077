"""Puts fused layers into the graph of a forward."""
import collections
import dataclasses
import operator

import torch
from torch import nn
from torch.nn import functional as F

from palimpsest import functional
from palimpsest._convert import custom_activations, layers, out_of_place, runtime
from palimpsest._convert.aliases import Aliases, writes_over
from palimpsest._convert.editor import Editor
from palimpsest._convert.formulas import fold_formulas
from palimpsest._convert.readers import Readers
from palimpsest._convert.report import Layer

_MAKES_NEW_TENSOR = (runtime.convolution, runtime.act_conv, runtime.norm_act_conv, runtime.norm_act_conv_of, F.conv1d, F.conv2d,
                     F.conv3d, F.linear)
THE_REST = "*"  # the name that a report gives to what is no layer
_MOST_PARTS = 100  # of a flat concatenation: dense blocks have fewer layers
_MOST_CHANNELS_OF_IMAGES = 4  # a convolution of as many channels takes a few hundredths of a step
# What a layer saves, by the operator's name for it, and the strategy that asks for it.
_IN_WORDS = {
    "input": "its input (checkpoint)",
    "normalized": "its normalized input (checkpoint_normalized)",
    "output_form1": "its output (inplace_1)",
    "output": "its output (inplace_2)",
    "output_bit": "its output and a bit per value (inplace_bit)",
    "pre_activation": "y, the value before the activation (store_y)",
}


def strategy_names() -> tuple[str, ...]:
    """The strategies of convert(): all but that of torch's own layers."""
    return ("auto", *(name for name in functional.strategy_names() if name != "standard"))


@dataclasses.dataclass
class Options:
    """What the caller of convert() asked for. accepts(module, name relative to the region): False leaves a layer alone."""
    strategy: str = "auto"
    accepts: object = lambda module, name: True
    activations: dict = dataclasses.field(default_factory=dict)  #: custom_activations.checked()

    @property
    def is_auto(self):
        """Whether a layer saves what is best for it and its readers: "store_y" is what "auto" means for most activations."""
        return self.strategy in ("auto", "store_y")


class _Norm:
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


def rewrite(graph, modules, options):
    """Changes the graph. modules: name to module of the region. Returns a Layer for each that it met."""
    _skip_identities(graph, modules)
    custom_activations.put_functions(graph, modules, options.activations)
    fold_formulas(graph, modules, lambda norm, activation: _takes(modules[norm.target], norm.target, activation, options))
    if options.is_auto:
        out_of_place.put(graph, modules, options)
    aliases = Aliases(graph, modules)
    if options.is_auto:
        _flatten_concatenations(graph, aliases)
    in_order = _read_in_order(graph, modules)
    report, norms, taken = [], [], set()
    for node in graph.nodes:
        if node.op == "call_module" and layers.is_norm(modules[node.target]):
            norm = _Norm(node, modules, aliases, not in_order.isdisjoint(_storages(modules[node.target].buffers())))
            reason = _reason_to_leave(norm, modules, options, taken)
            if reason:
                report.append(Layer(node.target, type(norm.module).__name__, False, reason))
            else:
                functional.resolve_strategy(options.strategy, norm.activation, offered=strategy_names())
                taken.update(n for n in (norm.addition, norm.last) if n is not None and n is not node)
                norms.append(norm)
    for node in list(graph.nodes):
        if node.op == "call_module" and layers.is_dense_block(modules[node.target]):
            report.append(_put_dense_block(graph, node, modules, options))
    report.extend(_put_pools(graph, modules, options))
    writer = _Writer(graph, modules, options, aliases)
    for norm in norms:
        report.append(Layer(norm.node.target, norm.what(), True, writer.put(norm)))
    report.extend(writer.readers.put())
    if writer.readers.saves_less and not any(layer.converted for layer in report):
        is_selected = options.accepts(None, THE_REST)
        if is_selected or not report:
            report.append(Layer(THE_REST, "activations, dropouts and the like", is_selected,
                                "save what they are made from, a byte per value or nothing" if is_selected else "not selected"))
    if options.strategy == "auto":
        _put_stems(graph, modules, aliases, in_order, report)
    return report


def _takes(module, name, activation, options):
    """Whether a normalization may be one layer with an activation."""
    try:
        functional.resolve_strategy(options.strategy, activation, offered=strategy_names())
    except ValueError:
        return False
    return options.accepts(module, name) and not any(layers.has_hooks(m) for m in module.modules())


def _storages(tensors):
    return {t.untyped_storage()._cdata for t in tensors if t is not None and t.layout is torch.strided}


def _read_in_order(graph, modules):
    """The storages of buffers that several nodes read or write: two calls of one normalization, or a call and a name."""
    readers = collections.Counter()
    for node in graph.nodes:
        if node.op == "call_module":
            readers.update(_storages(modules[node.target].buffers()))
        elif node.op == "get_attr":
            path, _, name = node.target.rpartition(".")
            readers.update(_storages([modules[path]._buffers.get(name)] if path in modules else []))
    return {storage for storage, count in readers.items() if count > 1}


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


def _skip_identities(graph, modules):
    for node in list(graph.nodes):
        module = modules[node.target] if node.op == "call_module" else None
        if type(module) is nn.Identity and not layers.has_hooks(module) and node.args:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _flatten_concatenations(graph, aliases):
    """cat(a, cat(b, c)) becomes cat(a, b, c): in a dense block each of them then has one reader, and is made again from features
    that are kept once. A result of the forward stays a part, for its gradient and its hooks."""
    for node in graph.nodes:
        tensors, dim = layers.concatenated(node) or ([], None)
        flat = []
        for tensor in tensors:
            inner, inner_dim = layers.concatenated(tensor) or ([], None)
            is_flat = inner_dim == dim and not aliases.is_returned(tensor) and len(inner) < _MOST_PARTS \
                and not any(aliases.is_changed(t) for t in (tensor, *inner))
            flat.extend(inner if is_flat else [tensor])
        if len(flat) > len(tensors):
            node.args = (flat, dim)
            node.kwargs = {}


def _put_dense_block(graph, node, modules, options):
    name = node.target
    if layers.has_hooks(modules[name]):
        return Layer(name, "_DenseBlock", False, "hooks listen to its calls")
    if not options.accepts(modules[name], name) or not options.is_auto:
        return Layer(name, "_DenseBlock", False, "not selected")
    with graph.inserting_before(node):
        node.replace_all_uses_with(new := graph.call_function(runtime.dense_block, (graph.get_attr(name), node.args[0])))
    new.meta["kept"] = True
    Aliases.replaces(new, node)
    graph.erase_node(node)
    return Layer(name, "_DenseBlock", True, "one operator, which saves the features once")


def _put_pools(graph, modules, options):
    report = []
    for node in list(graph.nodes):
        if node.op == "call_module" and layers.is_max_pool(modules[node.target]) and node.args:
            pool = modules[node.target]
            reason = "hooks listen to its calls" if layers.has_hooks(pool) else \
                None if options.accepts(pool, node.target) else "not selected"
            report.append(Layer(node.target, "MaxPool2d", reason is None, reason or "saves one byte per output"))
            if reason:
                continue
            with graph.inserting_before(node):
                new = graph.call_function(runtime.max_pool, (graph.get_attr(node.target), node.args[0]))
            new.meta["layer"], window = report[-1], pool.kernel_size
        elif node.op == "call_function" and node.target is F.max_pool2d and not node.kwargs.get("return_indices") \
                and len(node.args) <= 6:
            report.append(Layer(str(node), "max_pool2d", True, "saves one byte per output"))
            with graph.inserting_before(node):
                new = graph.call_function(functional.max_pool2d, node.args,
                                          {k: v for k, v in node.kwargs.items() if k != "return_indices"})
            window = node.args[1] if len(node.args) > 1 else node.kwargs.get("kernel_size")
        else:
            continue
        new.meta["saves_no_input"] = layers.is_small_window(window)
        Aliases.replaces(new, node)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    return report


def _only_read_here(node, function):
    """The tensor that a call of this function of runtime's reads, if nobody else does; else None."""
    if node is None or node.target is not function:
        return None
    x = node.args[1]
    return x if len(x.users) == 1 else None


def _put_stems(graph, modules, aliases, in_order, report):
    """Convolution of images, normalization, activation and max pooling: one convolution of a few channels, run again, costs
    little beside the largest tensor of the network."""
    for pool in list(graph.nodes):
        norm = _only_read_here(pool, runtime.max_pool)
        conv = _only_read_here(norm, runtime.norm_act)
        x = conv.args[1] if conv is not None and conv.target is runtime.convolution else None
        if x is None or x.op != "placeholder" or aliases.is_changed(x):
            continue
        conv_name, norm_name = conv.args[0].target, norm.args[0].target
        layers_of_norm = [layer for layer in report if layer.name == norm_name]
        if modules[conv_name].in_channels > _MOST_CHANNELS_OF_IMAGES or len(layers_of_norm) > 1 \
                or not in_order.isdisjoint(_storages(modules[norm_name].buffers())):
            continue
        with graph.inserting_before(pool):
            new = graph.call_function(runtime.stem, (conv.args[0], norm.args[0], pool.args[0], x, *norm.args[2:]))
        for layer in (*layers_of_norm, pool.meta["layer"]):
            layer.how, layer.runs_again = f"runs again in backward, with {conv_name}: saves the images alone", True
        pool.replace_all_uses_with(new)
        for node in (pool, norm, conv):
            graph.erase_node(node)


class _Writer(Editor):
    """Writes fused layers into a graph, in the order of the graph."""

    def __init__(self, graph, modules, options, aliases):
        super().__init__(graph, modules, options, aliases)
        self.readers = Readers(graph, modules, options, aliases)

    # ---- Questions about nodes

    def _is_new(self, x):
        """Whether nobody else holds the tensor, nor needs it for backward: the layer may write over it."""
        return len(x.users) == 1 and (self.readers.convolution(x) is not None or self.readers.is_weighted(x) or
                                      (x.op == "call_function" and x.target in _MAKES_NEW_TENSOR))

    def _is_kept(self, x, reader):
        """Whether x stays in memory for backward whatever the reader saves."""
        return x.meta.get("kept", False) or layers.may_be_saved(x, self.modules, without=reader)

    def _is_changed(self, value, activation="identity"):
        """Whether somebody writes over the result of an activation, or may do so outside of the graph, as autograd allows."""
        if self.aliases.is_changed(value):
            return True
        return self.aliases.is_returned(value) and activation not in layers.SAVED_BY_AUTOGRAD \
            and not layers.may_be_saved(value, self.modules)

    def _is_only_returned(self, value, reader):
        """Whether the caller gets a value, and may write over it, as the original does not save it for another reader."""
        return self.aliases.is_returned(value) and not layers.may_be_saved(value, self.modules, without=reader)

    # ---- Nodes

    def _erase(self, node):
        """Erases what nobody reads any more, from the last node of a layer to its first."""
        sources = [n for n in node.all_input_nodes if n.target not in _MAKES_NEW_TENSOR]
        self.graph.erase_node(node)
        for source in sources:
            is_of_layer = source.op == "call_module" and layers.is_norm(self.modules[source.target]) or layers.added(source)
            if is_of_layer and not source.users:
                self._erase(source)

    # ---- Layers

    def put(self, norm):
        """Writes one layer. Returns what it is now, in words."""
        if norm.addition is not None:
            return self._put_sum(norm)
        node, last, activation, param = norm.node, norm.last, norm.activation, norm.param
        x = node.args[0]
        strategy = functional.resolve_strategy(self.options.strategy, activation)
        saved = functional.saved_by(strategy, activation)
        is_auto = self.options.is_auto
        readers = list(last.users)
        if is_auto and self._is_kept(x, node) and not (saved == "output" and self._is_new(x)):
            saved = "input"
        is_changed = self._is_changed(last, activation)
        if is_changed and saved.startswith("output"):
            saved = "pre_activation"
        consume = self._is_new(x) and saved != "input"
        convolutions = [self.readers.convolution(reader) for reader in readers]
        before_activation = not saved.startswith("output")
        if len(readers) == 1 and convolutions[0] is not None and before_activation and not is_changed and not norm.is_shared:
            return self._put_with_convolution(norm, readers[0], convolutions[0], saved, consume, is_auto)
        reference = self._module(node, node.target)
        if is_auto and saved == "pre_activation" and not is_changed:
            if len(readers) == 1 and self._parts(readers[0]):
                y = self._call(node, runtime.norm_act, reference, x, "identity", 0.0, "output", consume)
                return self._put_before_split(norm, y, readers[0])
            if len(readers) > 1 and all(c is not None for c in convolutions):
                y = self._call(node, runtime.norm_act, reference, x, "identity", 0.0, "output", consume)
                self._replace(last, self._deferred(last, y, activation, param))
                return "saves y, which its convolutions activate"
            if any(map(self.readers.takes_source, readers)):
                self._replace(last, self._with_source(node, runtime.norm_act_shared, reference, x, activation, param, consume))
                return "saves y, for its readers too"
        z = self._call(node, runtime.norm_act, reference, x, activation, param, saved, consume)
        if saved.startswith("output"):
            z.meta["kept"] = True
        self._replace(last, z)
        return "saves its input, which is kept anyway" if saved == "input" and is_auto else f"saves {_IN_WORDS[saved]}"

    def _parts(self, node):
        """The parts into which a node splits its input; an empty list if it does not, or if somebody writes over a part."""
        parts = list(node.users)
        is_split = layers.is_split(node) and all(part.op == "call_function" and part.target is operator.getitem
                                                 and isinstance(part.args[1], int) for part in parts)
        return parts if is_split and not any(self.aliases.is_changed(part) for part in parts) else []

    def _put_before_split(self, norm, y, split):
        """y is split as well: convolutions activate their part of it, and what else reads a part saves the whole y."""
        parts = self._parts(split)
        z = self._call(norm.last, runtime.activated, y, norm.activation, norm.param)
        whole = self._call(norm.last, runtime.source_of, y, norm.activation, norm.param)
        self._replace(norm.last, z)
        with self.graph.inserting_before(split):
            split_y = self.graph.node_copy(split, lambda node: y if node is z else node)
        for node in (split, split_y):
            node.meta["is_view"] = True
        for part in parts:
            y_part = self._call(part, operator.getitem, split_y, part.args[1])
            part.meta["is_view"] = y_part.meta["is_view"] = True
            if not self.aliases.is_returned(part):
                part.meta["deferred"] = y_part, norm.activation, norm.param
            part.meta["source"] = self._call(part.next, runtime.part_of, whole, z, part)
        return "saves y, whose parts its readers activate"

    def _put_with_convolution(self, norm, reader, conv, saved, consume, is_auto):
        node, last = norm.node, norm.last
        x = node.args[0]
        references = self._module(reader, node.target), self._module(reader, reader.target)
        is_plain_2d = type(conv) is nn.Conv2d and conv.bias is None
        features, dim = layers.concatenated(x) or ([], None)
        if is_auto and is_plain_2d and dim == 1 and len(x.users) == 1 \
                and not any(self.aliases.is_changed(f) or self._is_only_returned(f, x) for f in features):
            new = self._call(reader, runtime.norm_act_conv_of, *references, features, norm.activation, norm.param)
            words = f"with {reader.target}, saves nothing of its own"
        elif is_auto and saved == "input" and is_plain_2d and self._is_halved(reader, conv):
            pool = next(iter(reader.users))
            new = self._call(reader, runtime.norm_act_conv_pool, *references, x, norm.activation, norm.param)
            self._replace(pool, reader)
            words = f"with {reader.target}, saves nothing of its own"
        else:
            new = self._call(reader, runtime.norm_act_conv, *references, x, norm.activation, norm.param, saved, consume)
            words = f"with {reader.target}, saves {'nothing of its own' if saved == 'input' and is_auto else _IN_WORDS[saved]}"
        Aliases.replaces(new, reader)
        reader.replace_all_uses_with(new)
        self.graph.erase_node(reader)
        if last is not node:
            self.graph.erase_node(last)
        self._erase(node)
        if not x.users and features:
            self.graph.erase_node(x)
        return words

    def _is_halved(self, node, conv):
        """Whether a 1x1 convolution goes to an average pooling over 2 x 2 pixels alone."""
        if (conv.kernel_size, conv.stride, conv.padding, conv.groups) != ((1, 1), (1, 1), (0, 0), 1) or len(node.users) != 1:
            return False
        reader = next(iter(node.users))
        if reader.op != "call_module" or type(self.modules[reader.target]) is not nn.AvgPool2d:
            return False
        pool = self.modules[reader.target]
        return (not layers.has_hooks(pool) and pool.kernel_size in (2, (2, 2)) and pool.stride in (2, (2, 2))
                and pool.padding in (0, (0, 0)) and not pool.ceil_mode and pool.divisor_override is None)

    def _put_sum(self, norm):
        addition, last, activation, param = norm.addition, norm.last, norm.activation, norm.param
        x, residual = norm.node.args[0], norm.residual
        deferred = residual.meta.get("deferred")
        relu_residual = deferred is not None and deferred[1] == "relu"
        if relu_residual:
            residual = deferred[0]
        inverse = functional.resolve_strategy("auto", activation) == "inplace_2"
        # The sum cannot be made from the activated sum: it is what is saved, and its readers activate it.
        fused, fused_param = (activation, param) if inverse else ("identity", 0.0)
        is_changed = self._is_changed(last, activation)
        saved = "pre_activation" if inverse and activation != "identity" and is_changed else "output"
        s = self._call(addition, runtime.norm_add, self._module(addition, norm.node.target), x, residual, fused, fused_param,
                       saved, self._is_new(x), relu_residual, norm.written)
        if inverse:
            if saved == "output":
                s.meta["kept"] = True
            self._replace(last, s)
            return "saves the sum" if activation == "identity" else "saves its output"
        z = self._deferred(last, s, activation, param, self.aliases.is_returned(last))
        if is_changed:
            z.meta.clear()
        self._replace(last, z)
        return "saves the sum, which its readers activate"

    def _deferred(self, before, y, activation, param, is_returned=False):
        """act(y), whose readers may read y in its place. If the caller gets it, they read it, for its gradient and its hooks,
        and save y."""
        z = self._call(before, runtime.activated, y, activation, param)
        if is_returned:
            z.meta["source"] = self._call(before, runtime.source_of, y, activation, param)
        else:
            z.meta["deferred"] = (y, activation, param)
        return z

"""Fused layers in place of the normalizations of a graph."""
import operator

from torch import nn
from torch.nn import functional as F

from palimpsest import functional
from palimpsest._convert import layers, runtime
from palimpsest._convert.aliases import Aliases
from palimpsest._convert.editor import Editor
from palimpsest._convert.readers import Readers
from palimpsest._convert.report import Layer

_MAKES_NEW_TENSOR = (runtime.convolution, runtime.act_conv, runtime.norm_act_conv, runtime.norm_act_conv_of, F.conv1d, F.conv2d,
                     F.conv3d, F.linear)
# What a layer saves, by the operator's name for it, and the strategy that asks for it.
_IN_WORDS = {
    "input": "its input (checkpoint)",
    "normalized": "its normalized input (checkpoint_normalized)",
    "output_form1": "its output (inplace_1)",
    "output": "its output (inplace_2)",
    "output_bit": "its output and a bit per value (inplace_bit)",
    "pre_activation": "y, the value before the activation (store_y)",
}


class Writer(Editor):
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

    def put_instance_norms(self):
        """InstanceNorms with an activation behind them. Returns a Layer for each that it wrote."""
        return [self._put_instance_norm(node, activation) for node in list(self.graph.nodes)
                if (activation := self._activation_of_instances(node)) is not None]

    def _activation_of_instances(self, node):
        """The activation behind an InstanceNorm that is one layer of ours with it, or None."""
        is_instance_norm = node.op == "call_module" and layers.is_instance_norm(self.modules[node.target])
        if not is_instance_norm or not self.readers.normalizes(node) or len(node.users) != 1:
            return None
        reader = next(iter(node.users))
        is_free = not any(map(self.aliases.is_changed, (node, reader))) and not self.aliases.is_returned(reader)
        return reader if is_free and self.readers.activation(reader) is not None else None

    def _put_instance_norm(self, norm, last):
        (activation, param), reference = self.readers.activation(last), self._module(norm, norm.target)
        arguments = reference, norm.args[0], activation, param
        if functional.resolve_strategy("auto", activation) == "inplace_2":
            z, how = self._call(last, runtime.instance_norm_act, *arguments), "saves its output"
            z.meta["kept"] = True
        else:
            z, how = self._with_source(last, runtime.instance_norm_act_shared, *arguments), "saves y, for its readers too"
        self._replace(last, z)
        self._erase(norm)
        return Layer(norm.target, f"{type(self.modules[norm.target]).__name__} + {activation}", True, how)

    def put(self, norm):
        """Writes a batch normalization. Returns a Layer."""
        return Layer(norm.node.target, norm.what(), True, self._put_norm(norm))

    def _put_norm(self, norm):
        """Returns what the layer saves now, in words."""
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

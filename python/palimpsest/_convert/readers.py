"""The nodes that read an activated value: they save what the value is made from, in place of the value."""
import operator

import torch
from torch import nn
from torch.nn import functional as F

from palimpsest._convert import again, layers, out_of_place, runtime, sources
from palimpsest._convert.aliases import writes_over
from palimpsest._convert.editor import Editor
from palimpsest._convert.report import Layer

_LIGHT_MODULES = (nn.Upsample, nn.UpsamplingBilinear2d, nn.UpsamplingNearest2d, nn.ZeroPad2d, *again.PADDINGS, nn.Flatten,
                  nn.PixelShuffle)
_WEIGHTED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)  # torch's layers that save their input
# Functions, and methods of a tensor, that show its values in another shape or order.
_METHODS = ("permute", "transpose", "swapaxes", "view", "reshape", "flatten", "unflatten", "contiguous", "roll", "squeeze",
            "unsqueeze")
_RESHAPING = {torch.permute: "permute", torch.transpose: "transpose", torch.swapaxes: "swapaxes", torch.reshape: "reshape",
              torch.flatten: "flatten", torch.roll: "roll", torch.squeeze: "squeeze", torch.unsqueeze: "unsqueeze"}
_RETURN_SOURCE = (runtime.norm_act_shared, runtime.instance_norm_act_shared, runtime.product_shared, again.concatenated,
                  again.activated, again.by_function, again.by_module, again.reshaped)
_WEIGHTED_FUNCTIONS = {F.conv1d: "conv1d", F.conv2d: "conv2d", F.conv3d: "conv3d", F.linear: "linear"}
# Functions and modules that save less by other means, and what takes their place.
_LEAN = {F.avg_pool2d: again.average_pool, F.adaptive_avg_pool2d: again.adaptive_average_pool, F.pad: again.padded,
         F.dropout: again.dropout}
_LEAN_MODULES = {**dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
                                  nn.AdaptiveAvgPool3d, *again.PADDINGS), sources.reading_sizes),
                 nn.Dropout: again.dropout_of}


class Readers(Editor):
    """What reads the values of a graph, and put(), which lets them save sources.

    A value of the graph has some of these in its `meta`: "source", the node that returns its source; "deferred", (y, activation,
    param) of which it is made; "kept", if it stays in memory for backward whoever reads it; "is_view", if nothing is lost with
    it when nobody reads it."""

    def __init__(self, graph, modules, options, aliases):
        super().__init__(graph, modules, options, aliases)
        self._made_again = {}  # node to the answer of is_made_again()
        self._lean = {}        # node to the answer of _has_lean_readers()
        self.saves_less = False  #: whether put() changed what is saved, beside the normalizations that it reports
        self._put_for = {}     # node to the one that _put_made_again() put in its place

    # ---- Questions about nodes

    def convolution(self, node):
        """The convolution that a node calls, if our operators may take its place."""
        module = self._called(node)
        return module if layers.is_convolution(module) and not layers.has_hooks(module) else None

    def _called(self, node):
        is_plain = node.op == "call_module" and len(node.args) == 1 and not node.kwargs
        return self.modules[node.target] if is_plain else None

    def is_weighted(self, node):
        """Whether a node calls a transposed convolution or a linear layer of torch's."""
        module = self._called(node)
        return type(module) in _WEIGHTED and not layers.has_hooks(module)

    def takes_source(self, node):
        """Whether a node can save the source of what it reads."""
        return self._reads_source(node) or layers.is_product(node)

    def is_made_again(self, node):
        """Whether backward may make the result of a node again: a concatenation, an upsampling, a padding, a dropout, a pooling
        of stride 1, a normalization of samples or an activation that convolutions or linear layers read, alone or behind others
        of the kind, and nobody else saves."""
        if node not in self._made_again:
            self._made_again[node] = False  # a graph has no cycle
            self._made_again[node] = bool(self._parts(node)) and self._has_lean_readers(node) \
                and (not self._saves_result(node) or self.is_made_again(node.args[0]))
        return self._made_again[node]

    def _has_lean_readers(self, node):
        if node not in self._lean:
            self._lean[node] = self.options.takes_rest and not self.aliases.is_changed(node) \
                and not any(self._saves(reader, node) for reader in node.users) \
                and any(self._reads_source(reader) for reader in node.users)
        return self._lean[node]

    def _reads_source(self, node):
        return self.convolution(node) is not None or self.is_weighted(node) or _is_weighted_function(node) \
            or self._activates_source(node) or self.normalizes(node) or self.is_made_again(node)

    def activation(self, node):
        """(name, parameter) of an activation that a node applies, and not in place, or None."""
        known = layers.activation_of(node, self.modules)
        if known is None or not node.args or not isinstance(node.args[0], torch.fx.Node) \
                or writes_over(node, node.args[0], self.modules):
            return None
        return None if node.op == "call_module" and layers.has_hooks(self.modules[node.target]) else known

    def normalizes(self, node):
        """Whether a node is a normalization of samples that may save the source of its input."""
        return self.options.is_auto and layers.takes_norm_of_samples(node, self.modules, self.options)

    def _saves_result(self, node):
        """Whether a node is an activation of which autograd saves the result."""
        known = self.activation(node)
        return known is not None and known[0] in layers.SAVED_BY_AUTOGRAD

    def _saves_what_it_activates(self, node):
        """Whether a node is an activation of which autograd saves the input."""
        return self.activation(node) is not None and not self._saves_result(node)

    def _activates_source(self, node):
        """Whether a node is an activation that can save the source of its input, or that of its result."""
        return self.options.takes_rest and (self._saves_what_it_activates(node)
                                         or (self._saves_result(node) and self._has_lean_readers(node)))

    def _saves(self, reader, value):
        is_weight = (_is_weighted_function(reader) or self.normalizes(reader)) and reader.args[0] is not value
        return (is_weight or not self._reads_source(reader)) and layers.saves_input(reader, self.modules)

    def _parts(self, node):
        """The tensors of which a node makes another one that backward can make again; an empty list for any other node."""
        if (concatenation := layers.concatenated(node)) is not None:
            return concatenation[0]
        if layers.normalizes_samples(node, self.modules):
            return [node.args[0]] if self.normalizes(node) else []
        if node.op == "call_function" and node.target in again.NAMES:
            is_known = node.args and isinstance(node.args[0], torch.fx.Node) and _is_light(node)
            return [node.args[0]] if is_known else []
        if node.op == "call_function" and node.target is runtime.max_pool:
            return [node.args[1]] if _is_one(self.modules[node.args[0].target].stride) else []
        if self.activation(node) is not None or _reshapes(node):
            return [node.args[0]]
        module = self._called(node)
        is_light = type(module) in _LIGHT_MODULES or (type(module) is nn.AvgPool2d and _is_one(module.stride)) \
            or (type(module) in layers.DROPOUTS and not module.inplace)
        return [node.args[0]] if is_light and not layers.has_hooks(module) else []

    def _is_kept_anyway(self, part, reader):
        """Whether a part stays in memory for backward for certain, or what it is made from, also without this reader."""
        is_saved = any(self._surely_saves(user) for user in part.users if user is not reader)
        known = layers.activation_of(part, self.modules)
        return self._has_source(part) or part.meta.get("kept", False) or self._is_in_place_layer(part) or is_saved \
            or (known is not None and known[0] in layers.SAVED_BY_AUTOGRAD)

    def _surely_saves(self, node):
        """Whether a node saves what it reads. layers.saves_input() says whether it may."""
        module = self._called(node)
        is_function = node.op == "call_function" and (node.target is runtime.convolution or node.target in _WEIGHTED_FUNCTIONS)
        return layers.is_torchs_convolution(module) or self.is_weighted(node) or layers.is_norm(module) or is_function \
            or self.normalizes(node) or self._saves_what_it_activates(node) or node.meta.get("keeps_part", False)

    def _may_be_kept(self, part):
        """Whether a part may be held for backward: nobody writes over it, and it is no view of something larger."""
        if self._has_source(part):
            return True
        is_ours = part.meta.get("kept", False) or self._is_in_place_layer(part)
        return not self.aliases.is_changed(part) and not self.aliases.is_callers(part) \
            and (is_ours or self.aliases.has_own_memory(part))

    def _is_in_place_layer(self, node):
        return node.op == "call_module" and layers.keeps_output(self.modules[node.target])

    def _keeps_part(self, node):
        """Whether a node that is made again keeps what it is made from itself."""
        return self.normalizes(node) or self._saves_what_it_activates(node) \
            or (self._saves_result(node) and self._has_source(node.args[0]))

    # ---- Nodes

    def put(self):
        """Convolutions, products, concatenations, upsamplings and their like save what their input is made from. Returns a
        Layer for each normalization of samples."""
        self._made_again.clear()  # the graph has changed since others asked
        self._lean.clear()
        norms = []
        for node in list(self.graph.nodes):
            if (layer := self._described(node)) is not None:
                norms.append((layer, node))
            if self.convolution(node) is not None and self.options.accepts(self.convolution(node), node.target):
                self._put_convolution(node)
            elif self.is_weighted(node) or _is_weighted_function(node):
                if self._has_source(node.args[0]):
                    self._put_weighted(node)
            elif layers.is_product(node):
                z = next((a for a in node.all_input_nodes if self._has_source(a)), None)
                if z is not None and all(isinstance(a, torch.fx.Node) for a in node.args) and not node.kwargs:
                    self._put_product(node, z)
            elif self.is_made_again(node):
                parts = self._parts(node)
                if self._keeps_part(node) or \
                        (any(self._is_kept_anyway(p, node) for p in parts) and all(map(self._may_be_kept, parts))):
                    self._put_made_again(node, parts)
            elif (self._activates_source(node) or self.normalizes(node)) and self._has_source(node.args[0]):
                self._put_made_again(node, self._parts(node))
        if self.options.takes_rest:
            self._put_lean()
        self._erase_unread()
        out_of_place.restore(self.graph)
        read = {node for node, new in self._put_for.items() if "source" in new.meta and new.meta["source"].users}
        self.saves_less = self.saves_less or bool(read)
        for layer, node in norms:
            if layer.converted and node not in read:
                layer.how, layer.converted = "its result is saved all the same", False
        return [layer for layer, _ in norms]

    def _described(self, node):
        """The line of the report about a normalization of samples; None for other nodes."""
        if not layers.normalizes_samples(node, self.modules):
            called = self.modules[node.target] if node.op == "call_module" else None
            is_listened = layers.is_norm_of_samples(called)
            return Layer(node.target, type(called).__name__, False, "hooks listen to its calls") if is_listened else None
        path, module = layers.module_of_norm(node, self.modules)
        name, kind = (str(node), node.target.__name__) if module is None else (path, type(module).__name__)
        if self.is_made_again(node):
            return Layer(name, kind, True, "saves its input: its result is made again")
        why = "another strategy than 'auto' and 'store_y' is for batch normalizations" if not self.options.is_auto else \
            "its result goes to others than convolutions and linear layers" if self.normalizes(node) else "not selected"
        return Layer(name, kind, False, why)

    @staticmethod
    def _has_source(value):
        return "source" in value.meta or "deferred" in value.meta

    def _erase_unread(self):
        for node in reversed(list(self.graph.nodes)):
            is_source = node.target in (runtime.activated, runtime.source_of, runtime.part_of, again.kept) or \
                (node.target is operator.getitem and node.args[0].target in _RETURN_SOURCE)
            is_ours = (node.op == "call_function" and is_source) or node.op == "get_attr" or node.meta.get("is_view", False)
            if is_ours and not node.users:
                self.graph.erase_node(node)

    def _source(self, reader, z):
        """The node, in front of z's reader, that returns z's source."""
        if "source" in z.meta:
            return z.meta["source"]
        if "deferred" in z.meta:
            return self._call(reader, runtime.source_of, *z.meta["deferred"])
        return self._call(reader, again.kept, z, self._is_kept_anyway(z, reader) or self._keeps_part(reader))

    def _put_product(self, node, z):
        arguments = self._source(node, z), z, *node.args
        is_shared = any(self._reads_source(reader) for reader in node.users) and not self.aliases.is_changed(node)
        self._replace(node, self._with_source(node, runtime.product_shared, *arguments) if is_shared
                      else self._call(node, runtime.product_of, *arguments))

    def _put_convolution(self, node):
        z, reference = node.args[0], self._module(node, node.target)
        if "deferred" in z.meta:
            new = self._call(node, runtime.act_conv, reference, *z.meta["deferred"])
        elif "source" in z.meta:
            new = self._call(node, runtime.convolution_of, self._source(node, z), reference, z)
        else:
            new = self._call(node, runtime.convolution, reference, z)
        self._replace(node, new)

    def _put_weighted(self, node):
        z = node.args[0]
        source = self._source(node, z)
        if node.op == "call_module":
            new = self._call(node, runtime.module_of, source, self._module(node, node.target), z)
        else:
            new = self._call(node, runtime.function_of, source, _WEIGHTED_FUNCTIONS[node.target], *node.args, **node.kwargs)
        self._replace(node, new)

    def _put_made_again(self, node, parts):
        made_from, keeps_part = [self._source(node, part) for part in parts], self._keeps_part(node)
        if (known := self.activation(node)) is not None:
            in_place = node.meta.get("was_in_place", False)
            new = self._with_source(node, again.activated, *made_from, *parts, *known, in_place)
        elif node.target is runtime.max_pool:
            new = self._with_source(node, again.by_module, *made_from, *node.args)
        elif node.op == "call_module":
            new = self._with_source(node, again.by_module, *made_from, self._module(node, node.target), *parts)
        elif (method := _reshapes(node)) is not None:
            new = self._with_source(node, again.reshaped, *made_from, method, *node.args, **node.kwargs)
        elif node.target in again.NAMES:
            new = self._with_source(node, again.by_function, *made_from, again.NAMES[node.target], *node.args, **node.kwargs)
        else:
            new = self._with_source(node, again.concatenated, *layers.concatenated(node), made_from)
        new.args[0].meta["keeps_part"] = keeps_part
        self._put_for[node] = new
        self._replace(node, new)
        if self.aliases.is_changed(new):  # what reads it later must not read it as it was
            del new.meta["source"]

    def _put_lean(self):
        """Average poolings and paddings keep no values, and dropouts a byte for each."""
        for node in list(self.graph.nodes):
            module = self._called(node)
            if node.op == "call_function" and node.target in _LEAN and node.args:
                self.saves_less |= node.target in (F.avg_pool2d, F.dropout) or _repeats(node)
                self._replace(node, self._call(node, _LEAN[node.target], *node.args, **node.kwargs))
            elif type(module) in _LEAN_MODULES and not layers.has_hooks(module):
                function = _LEAN_MODULES[type(module)]
                self.saves_less |= "Adaptive" not in type(module).__name__
                self._replace(node, self._call(node, function, self._module(node, node.target), *node.args))


def _is_weighted_function(node):
    """Whether a node is torch's convolution or linear layer as a function, of a value of the graph and other weights."""
    return node.op == "call_function" and node.target in _WEIGHTED_FUNCTIONS and bool(node.args) \
        and isinstance(node.args[0], torch.fx.Node) and node.args[0] not in (*node.args[1:], *node.kwargs.values())


def _reshapes(node):
    """The method of a tensor by which a node shows the values of its first argument in another shape or order, or None."""
    method = node.target if node.op == "call_method" and node.target in _METHODS else \
        _RESHAPING.get(node.target) if node.op == "call_function" else None
    return method if node.args and isinstance(node.args[0], torch.fx.Node) else None


def _mode_of_padding(node):
    return node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")


def _repeats(node):
    """Whether a node is a padding that reflects or repeats values."""
    return node.target is F.pad and _mode_of_padding(node) in again.REPEATING_MODES


def _is_one(stride):
    return stride in (1, (1, 1), [1, 1])


def _is_light(node):
    """Whether a call of a function takes little time and makes a tensor that is worth it."""
    if node.target is F.pad:
        return _mode_of_padding(node) == "constant" or _repeats(node)
    if again.NAMES[node.target].startswith("dropout"):
        return not (node.args[3] if len(node.args) > 3 else node.kwargs.get("inplace", False))
    stride = node.args[2] if len(node.args) > 2 else node.kwargs.get("stride")
    return node.target in (F.interpolate, F.pixel_shuffle) or _is_one(stride)

"""The nodes that read an activated value: they save what the value is made from, in place of the value."""
import operator

import torch
from torch import nn
from torch.nn import functional as F

from palimpsest import functional
from palimpsest._convert import layers, runtime
from palimpsest._convert.editor import Editor

_LIGHT_MODULES = (nn.Upsample, nn.UpsamplingBilinear2d, nn.UpsamplingNearest2d, nn.ZeroPad2d)
_TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# Functions that backward can run again at little cost, and those that return what they made and its source.
_AGAIN = {F.interpolate: runtime.interpolated, F.pad: runtime.padded, functional.max_pool2d: runtime.max_pooled,
          F.avg_pool2d: runtime.average_pooled}
_RETURN_SOURCE = (runtime.norm_act_shared, runtime.product_shared, runtime.concatenated, *_AGAIN.values(), runtime.by_module)
_CONVOLUTION_FUNCTIONS = {F.conv1d: runtime.conv1d_of, F.conv2d: runtime.conv2d_of, F.conv3d: runtime.conv3d_of}
_AVERAGES = {F.avg_pool2d: runtime.average_pool, F.adaptive_avg_pool2d: runtime.adaptive_average_pool}
_AVERAGE_MODULES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)


class Readers(Editor):
    """What reads the values of a graph, and put(), which lets them save sources.

    A value of the graph has some of these in its `meta`: "source", the node that returns its source; "deferred", (y, activation,
    param) of which it is made; "kept", if it stays in memory for backward whoever reads it; "is_view", if nothing is lost with
    it when nobody reads it."""

    def __init__(self, graph, modules, options, aliases):
        super().__init__(graph, modules, options, aliases)
        self._made_again = {}  # node to the answer of is_made_again()

    # ---- Questions about nodes

    def convolution(self, node):
        """The convolution that a node calls, if our operators may take its place."""
        module = self._called(node)
        return module if layers.is_convolution(module) and not layers.has_hooks(module) else None

    def _called(self, node):
        is_plain = node.op == "call_module" and len(node.args) == 1 and not node.kwargs
        return self.modules[node.target] if is_plain else None

    def _is_transposed(self, node):
        module = self._called(node)
        return type(module) in _TRANSPOSED_CONVOLUTIONS and not layers.has_hooks(module)

    def takes_source(self, node):
        """Whether a node can save the source of what it reads."""
        return self._reads_source(node) or layers.is_product(node)

    def is_made_again(self, node):
        """Whether backward may make the result of a node again: a concatenation, an upsampling, a padding or a pooling of
        stride 1 that convolutions read, alone or behind others of the kind, and nobody else saves."""
        if node not in self._made_again:
            self._made_again[node] = False  # a graph has no cycle
            self._made_again[node] = self.options.is_auto and bool(self._parts(node)) and not self.aliases.is_changed(node) \
                and not any(self._saves(reader, node) for reader in node.users) \
                and any(self._reads_source(reader) for reader in node.users)
        return self._made_again[node]

    def _reads_source(self, node):
        return self.convolution(node) is not None or self._is_transposed(node) or _is_convolution_function(node) or self.is_made_again(node)

    def _saves(self, reader, value):
        return not self._reads_source(reader) and layers.saves_input(reader, value, self.modules)

    def _parts(self, node):
        """The tensors of which a node makes another one that backward can make again; an empty list for any other node."""
        if (concatenation := layers.concatenated(node)) is not None:
            return concatenation[0]
        if node.op == "call_function" and node.target in _AGAIN:
            is_known = node.args and isinstance(node.args[0], torch.fx.Node) and _is_light(node)
            return [node.args[0]] if is_known else []
        if node.op == "call_function" and node.target is runtime.max_pool:
            return [node.args[1]] if _is_one(self.modules[node.args[0].target].stride) else []
        module = self._called(node)
        is_light = type(module) in _LIGHT_MODULES or (type(module) is nn.AvgPool2d and _is_one(module.stride))
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
        return layers.is_torchs_convolution(module) or self._is_transposed(node) or layers.is_norm(module) or \
            (node.op == "call_function" and (node.target is runtime.convolution or node.target in _CONVOLUTION_FUNCTIONS))

    def _may_be_kept(self, part):
        """Whether a part may be held for backward: nobody writes over it, and it is no view of something larger."""
        if self._has_source(part):
            return True
        is_ours = part.meta.get("kept", False) or self._is_in_place_layer(part)
        return not self.aliases.is_changed(part) and not self.aliases.is_callers(part) \
            and (is_ours or self.aliases.has_own_memory(part))

    def _is_in_place_layer(self, node):
        return node.op == "call_module" and layers.keeps_output(self.modules[node.target])

    # ---- Nodes

    def put(self):
        """Convolutions, products, concatenations and upsamplings save what their input is made from."""
        self._made_again.clear()  # the graph has changed since others asked
        for node in list(self.graph.nodes):
            if self.convolution(node) is not None and self.options.accepts(self.convolution(node), node.target):
                self._put_convolution(node)
            elif self._is_transposed(node) or _is_convolution_function(node):
                if self._has_source(node.args[0]):
                    self._put_torchs_convolution(node)
            elif layers.is_product(node):
                z = next((a for a in node.all_input_nodes if self._has_source(a)), None)
                if z is not None and all(isinstance(a, torch.fx.Node) for a in node.args) and not node.kwargs:
                    self._put_product(node, z)
            elif self.is_made_again(node):
                parts = self._parts(node)
                if any(self._is_kept_anyway(p, node) for p in parts) and all(map(self._may_be_kept, parts)):
                    self._put_made_again(node, parts)
        if self.options.is_auto:
            self._put_averages()
        self._erase_unread()

    @staticmethod
    def _has_source(value):
        return "source" in value.meta or "deferred" in value.meta

    def _erase_unread(self):
        for node in reversed(list(self.graph.nodes)):
            is_source = node.target in (runtime.activated, runtime.source_of, runtime.part_of, runtime.kept) or \
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
        return self._call(reader, runtime.kept, z, self._is_kept_anyway(z, reader))

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

    def _put_torchs_convolution(self, node):
        z = node.args[0]
        source = self._source(node, z)
        self._replace(node, self._call(node, runtime.module_of, source, self._module(node, node.target), z) if node.op == "call_module"
                      else self._call(node, _CONVOLUTION_FUNCTIONS[node.target], source, *node.args, **node.kwargs))

    def _put_made_again(self, node, parts):
        sources = [self._source(node, part) for part in parts]
        if node.target is runtime.max_pool:
            new = self._with_source(node, runtime.by_module, *sources, *node.args)
        elif node.op == "call_module":
            new = self._with_source(node, runtime.by_module, *sources, self._module(node, node.target), *parts)
        elif node.target in _AGAIN:
            new = self._with_source(node, _AGAIN[node.target], *sources, *node.args, **node.kwargs)
        else:
            new = self._with_source(node, runtime.concatenated, *layers.concatenated(node), sources)
        self._replace(node, new)

    def _put_averages(self):
        """Average poolings keep no values."""
        for node in list(self.graph.nodes):
            module = self._called(node)
            if node.op == "call_function" and node.target in _AVERAGES and node.args:
                self._replace(node, self._call(node, _AVERAGES[node.target], *node.args, **node.kwargs))
            elif type(module) in _AVERAGE_MODULES and not layers.has_hooks(module):
                self._replace(node, self._call(node, runtime.average_pool_of, self._module(node, node.target), *node.args))


def _is_convolution_function(node):
    """Whether a node is torch's convolution as a function, of a value of the graph and other weights."""
    return node.op == "call_function" and node.target in _CONVOLUTION_FUNCTIONS and bool(node.args) \
        and isinstance(node.args[0], torch.fx.Node) and node.args[0] not in (*node.args[1:], *node.kwargs.values())


def _is_one(stride):
    return stride in (1, (1, 1), [1, 1])


def _is_light(node):
    """Whether a call of a function takes little time and makes a tensor that is worth it."""
    if node.target is F.pad:
        return (node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")) == "constant"
    return node.target is F.interpolate or _is_one(node.args[2] if len(node.args) > 2 else node.kwargs.get("stride"))

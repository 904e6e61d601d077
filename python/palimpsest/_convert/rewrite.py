"""Puts fused layers into the graph of a forward."""
from torch import nn
from torch.nn import functional as F

from palimpsest import functional
from palimpsest._convert import custom_activations, layers, norms, out_of_place, runtime
from palimpsest._convert.aliases import Aliases
from palimpsest._convert.formulas import fold_formulas
from palimpsest._convert.options import THE_REST
from palimpsest._convert.report import Layer
from palimpsest._convert.writer import Writer

_MOST_PARTS = 100  # of a flat concatenation: dense blocks have fewer layers
_MOST_CHANNELS_OF_IMAGES = 4  # a convolution of as many channels takes a few hundredths of a step


def rewrite(graph, modules, options):
    """Changes the graph. modules: name to module of the region. Returns a Layer for each that it met."""
    _skip_identities(graph, modules)
    custom_activations.put_functions(graph, modules, options.activations)
    fold_formulas(graph, modules, lambda norm, activation: norms.takes(modules[norm.target], norm.target, activation, options))
    if options.is_auto:
        out_of_place.put(graph, modules, options)
    aliases = Aliases(graph, modules)
    if options.is_auto:
        _flatten_concatenations(graph, aliases)
    in_order = norms.read_in_order(graph, modules)
    found, report = norms.find(graph, modules, options, aliases, in_order)
    for node in list(graph.nodes):
        if node.op == "call_module" and layers.is_dense_block(modules[node.target]):
            report.append(_put_dense_block(graph, node, modules, options))
    report.extend(_put_pools(graph, modules, options))
    writer = Writer(graph, modules, options, aliases)
    report.extend(writer.put_instance_norms())
    report.extend(map(writer.put, found))
    report.extend(writer.readers.put())
    if writer.readers.saves_less and not any(layer.converted for layer in report):
        is_selected = options.accepts(None, THE_REST)
        if is_selected or not report:
            report.append(Layer(THE_REST, "activations, dropouts and the like", is_selected,
                                "save what they are made from, a byte per value or nothing" if is_selected else "not selected"))
    if options.strategy == "auto":
        _put_stems(graph, modules, aliases, in_order, report)
    return report


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
            is_selected = options.accepts(None, str(node))
            how = "saves one byte per output" if is_selected else "not selected"
            report.append(Layer(str(node), "max_pool2d", is_selected, how))
            if not is_selected:
                continue
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
                or norms.is_shared(modules[norm_name], in_order):
            continue
        with graph.inserting_before(pool):
            new = graph.call_function(runtime.stem, (conv.args[0], norm.args[0], pool.args[0], x, *norm.args[2:]))
        for layer in (*layers_of_norm, pool.meta["layer"]):
            layer.how, layer.runs_again = f"runs again in backward, with {conv_name}: saves the images alone", True
        pool.replace_all_uses_with(new)
        for node in (pool, norm, conv):
            graph.erase_node(node)

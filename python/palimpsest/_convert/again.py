"""What a rewritten graph calls for values that backward makes again. Most functions return a value and its source, or None for
a source where the value is saved as before."""
import torch
from torch import nn
from torch.nn import functional as F

from palimpsest import functional
from palimpsest._convert import layers, runtime, sources

_LEAST_SAVED = 0.25  # the share of a concatenation that must be kept anyway, so that the rest is worth a copy in backward
_MOST_COPIED = 0.05  # the share of a normalization's input that its weight or bias may have, so that a copy of it is kept
REPEATING_MODES = ("reflect", "replicate")  #: of paddings that repeat values of their input


def average_pool(x, *arguments, **keywords):
    return sources.reading_sizes(F.avg_pool2d, x, *arguments, **keywords)


def adaptive_average_pool(x, *arguments, **keywords):
    return sources.reading_sizes(F.adaptive_avg_pool2d, x, *arguments, **keywords)


def padded(x, pad, mode="constant", value=None):
    """F.pad. Backward reads the size alone of an input that is reflected or repeated."""
    if mode in REPEATING_MODES:
        return sources.reading_sizes(F.pad, x, pad, mode, value)
    return F.pad(x, pad, mode, value)


def dropout(x, p=0.5, *arguments, **keywords):
    return sources.keeping_mask(F.dropout, p, x, p, *arguments, **keywords)[0]


def dropout_of(module, x):
    return sources.keeping_mask(module, module.p, x)[0]


def kept(x, anyway):
    """The source of a tensor that is kept as it is. anyway: others keep it, too."""
    return sources.Kept(x, anyway and x.requires_grad) if sources.hooks_are_free() and not x.is_inference() else None


def concatenated(tensors, dim, sources_of_tensors):
    """(cat(tensors, dim), its source)."""
    z = torch.cat(tensors, dim)
    if not _can_be_made_again(z, sources_of_tensors) or any(t.dim() != z.dim() for t in tensors):
        return z, None
    saved = sum(t.numel() for t, source in zip(tensors, sources_of_tensors) if source.anyway)
    if saved < _LEAST_SAVED * z.numel():
        return z, None
    return z, sources.of_concatenation(z, sources_of_tensors, dim)


def _made_again(function, source, x, *arguments, **keywords):
    """(function(x, ...), its source), for a function of which backward needs sizes alone."""
    z = function(x, *arguments, **keywords)
    # A tensor that only this node keeps must not be larger than what it stands for.
    is_larger = isinstance(source, sources.Kept) and x.numel() > z.numel()
    if not _can_be_made_again(z, [source]) or z.dtype != x.dtype or is_larger:
        return z, None
    return z, sources.Source([source], lambda parts: function(parts[0](), *arguments, **keywords))


def _normalized(function, source, x, *arguments, module=None, **keywords):
    """(function(x, ...), its source), for a normalization of samples, which saves x's source. module: computes the same, and
    checks x."""
    call = (module, x) if module else (function, x, *arguments)
    z = sources.read(source, x, *call, may_widen=True, **({} if module else keywords))
    if not _can_be_made_again(z, [source]):
        return z, None
    weights = [(key, a) for key, a in (*enumerate(arguments), *keywords.items()) if isinstance(a, torch.Tensor)]
    # torch saves no bias of a GroupNorm, so that it may change before backward: one number per channel is copied anyway.
    held = {key: sources.Copied(a) if a.numel() <= _MOST_COPIED * x.numel() or function is F.group_norm else sources.Kept(a)
            for key, a in weights}
    dtype = z.dtype  # autocast on a GPU normalizes 16 bits in f32

    def make(parts):
        now = [held[i]() if i in held else a for i, a in enumerate(arguments)]
        return function(parts[0]().to(dtype), *now, **{key: held[key]() if key in held else a for key, a in keywords.items()})

    return z, sources.Source([source], make)


def _instance_normalized(source, x, running_mean=None, running_var=None, *arguments, **keywords):
    if running_mean is not None or running_var is not None:  # which another run would move again
        return F.instance_norm(x, running_mean, running_var, *arguments, **keywords), None
    return _normalized(F.instance_norm, *_contiguous(source, x), None, None, *arguments, **keywords)


def _group_normalized(source, x, *arguments, **keywords):
    layout = _format_of(x) if x.device.type == "cpu" else torch.contiguous_format  # a GPU's kernels take no other
    return _normalized(F.group_norm, *_contiguous(source, x, layout), *arguments, **keywords)


def _format_of(x):
    """The memory format in which torch copies a tensor that has gaps."""
    inner = (1, *range(x.dim() - 1, 1, -1), 0)  # channels, then the last dimension, as channels-last orders them
    is_last = x.dim() in (4, 5) and x.stride(1) == 1 \
        and all(x.stride(outer) >= x.stride(i) * x.shape[i] for i, outer in zip(inner, inner[1:]))
    return {4: torch.channels_last, 5: torch.channels_last_3d}[x.dim()] if is_last else torch.contiguous_format


def _contiguous(source, x, layout=torch.contiguous_format):
    """x and its source; if it has gaps those of the copy that torch would make, and keep."""
    if source is None or x.is_contiguous(memory_format=layout):
        return source, x
    x = x.contiguous(memory_format=layout)
    return sources.Kept(x), x


def _layer_normalized(source, x, *arguments, **keywords):
    return _normalized(F.layer_norm, source, x, *arguments, **keywords)


_NORMALIZATIONS = {"group_norm": _group_normalized, "layer_norm": _layer_normalized, "instance_norm": _instance_normalized}


def activated(source, y, activation, param, in_place=False):
    """(act(y), its source), which saves y's source or that of the result, in place of either. in_place: the original writes
    over y, which nobody else reads."""
    if source is None or not sources.hooks_are_free() or not y.requires_grad:
        if in_place:
            return layers.FUNCTIONS[activation][0](y, *layers.arguments_behind(activation, param), inplace=True), None
        return functional.activate(y, activation, param), None
    of_z = sources.Source([source], lambda parts: functional.activate(parts[0](), activation, param))
    of_result = of_z if activation in layers.SAVED_BY_AUTOGRAD else None
    z = sources.read(source, y, functional.activate, y, activation, param, source_of_result=of_result)
    return z, of_z if z.dtype == y.dtype else None  # softplus under autocast on a GPU is f32


def reshaped(source, method, x, *arguments, **keywords):
    """(x.method(...), its source), of a method that shows the values of x in another shape or order."""
    return _made_again(lambda x: getattr(x, method)(*arguments, **keywords), source, x)


def _dropped(function, source, x, p=0.5, *arguments, **keywords):
    """(function(x, p, ...), its source), for a dropout."""
    z, again = sources.keeping_mask(function, p, x, p, *arguments, **keywords)
    if not _can_be_made_again(z, [source]):
        return z, None
    if again is None:
        return z, source if z is x else None
    return z, sources.Source([source], lambda parts: again(parts[0]()))


_FUNCTIONS = {"interpolate": F.interpolate, "pad": padded, "pixel_shuffle": F.pixel_shuffle, "max_pool2d": functional.max_pool2d,
              "avg_pool2d": average_pool}


def by_function(source, name, x, *arguments, **keywords):
    """(F.name(x, ...), its source), for a function of NAMES."""
    if name in _NORMALIZATIONS:
        return _NORMALIZATIONS[name](source, x, *arguments, **keywords)
    if name.startswith("dropout"):
        return _dropped(getattr(F, name), source, x, *arguments, **keywords)
    return _made_again(_FUNCTIONS[name], source, x, *arguments, **keywords)


#: modules of these paddings
PADDINGS = (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d, nn.ReplicationPad1d, nn.ReplicationPad2d,
            nn.ReplicationPad3d)
#: functions that backward can run again at little cost, and the names for by_function()
NAMES = {F.interpolate: "interpolate", F.pad: "pad", F.pixel_shuffle: "pixel_shuffle", functional.max_pool2d: "max_pool2d",
         F.avg_pool2d: "avg_pool2d", **{getattr(F, name): name for name in ("dropout", "dropout1d", "dropout2d", "dropout3d",
                                                                            *_NORMALIZATIONS)}}


def by_module(source, module, x):
    """(module(x), its source), of a module that computes such a function."""
    if isinstance(module, nn.GroupNorm):
        return _group_normalized(source, x, module.num_groups, module.weight, module.bias, module.eps)
    if isinstance(module, nn.LayerNorm):
        return _layer_normalized(source, x, module.normalized_shape, module.weight, module.bias, module.eps)
    if layers.is_instance_norm(module):
        if module.running_mean is not None or x.dim() == module._get_no_batch_dim():
            return module(x), None
        return _instance_normalized(source, x, None, None, module.weight, module.bias, True, 0.0, module.eps, module=module)
    if isinstance(module, layers.DROPOUTS):
        return _dropped(lambda x, _: module(x), source, x, module.p)
    if isinstance(module, nn.ZeroPad2d):
        return _made_again(padded, source, x, module.padding, "constant", module.value)
    if isinstance(module, PADDINGS):
        return _made_again(padded, source, x, module.padding, "reflect" if "Reflection" in type(module).__name__ else "replicate")
    if isinstance(module, nn.Flatten):
        return reshaped(source, "flatten", x, module.start_dim, module.end_dim)
    if isinstance(module, nn.PixelShuffle):
        return _made_again(F.pixel_shuffle, source, x, module.upscale_factor)
    if isinstance(module, nn.MaxPool2d):
        return _made_again(functional.max_pool2d, source, x, *runtime.pool_geometry(module))
    if isinstance(module, nn.AvgPool2d):
        return _made_again(average_pool, source, x, module.kernel_size, module.stride, module.padding, module.ceil_mode,
                           module.count_include_pad, module.divisor_override)
    return _made_again(F.interpolate, source, x, module.size, module.scale_factor, module.mode, module.align_corners,
                       recompute_scale_factor=module.recompute_scale_factor)


def _can_be_made_again(z, sources_of_parts):
    return sources.hooks_are_free() and z.requires_grad and z.numel() > 0 and all(s is not None for s in sources_of_parts)

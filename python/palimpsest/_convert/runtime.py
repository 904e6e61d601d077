"""What a rewritten graph calls. Every function reads parameters, buffers and settings of the network's modules when it runs."""
import torch
import torch.distributed as dist
from torch.nn import functional as F

from palimpsest import functional, nn
from palimpsest._convert import layers, sources

_ops = torch.ops.palimpsest


def _settings(norm, x):
    norm._check_input_dim(x)  # torch's error
    return nn.settings_of(norm)


def _group(norm):
    """The name of the process group whose statistics a SyncBatchNorm takes now, or ""."""
    if not isinstance(norm, torch.nn.SyncBatchNorm) or not norm.training or not dist.is_available() or not dist.is_initialized():
        return ""
    group = norm.process_group or dist.group.WORLD
    return functional.group_name(group) if dist.get_world_size(group) > 1 else ""


def _geometry(conv):
    padding = conv.padding
    return conv.stride, layers.padding_of(conv) if isinstance(padding, str) else padding, conv.dilation, conv.groups


def _is_empty(x, group):
    """Whether there is nothing to normalize. In a group other processes may have images, and wait for this one."""
    return x.numel() == 0 and not group


def _plain(norm, x):
    """torch's normalization alone, also of a module that holds its activation."""
    weight, bias, mean, var, training, momentum, eps = settings = _settings(norm, x)
    if group := _group(norm):
        return _ops.abn(x, *settings, "identity", 0.0, None, group, saved="output")
    return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)


def _is_one_image(conv, x):
    """Whether a convolution takes x for one image without a batch."""
    return x.dim() != nn.weight_and_bias(conv)[0].dim()


def convolution(conv, x):
    weight, bias = nn.weight_and_bias(conv)
    if _is_one_image(conv, x):
        return conv._conv_forward(x, weight, bias)
    return _ops.convolution(x, weight, bias, *_geometry(conv))


def norm_act(norm, x, activation, param, saved, consume):
    """act(norm(x)). consume: x may be written over."""
    group = _group(norm)
    if _is_empty(x, group):
        return functional.activate(_plain(norm, x), activation, param)
    return _norm_act(x, _settings(norm, x), activation, param, saved, consume, group)


def _norm_act(x, settings, activation, param, saved, consume, group=""):
    if consume and saved == "pre_activation":
        return _ops.abn_recomputable_(x, *settings, activation, param, group)[0]  # y over x
    op = _ops.abn_ if consume and saved.startswith("output") else _ops.abn
    return op(x, *settings, activation, param, None, group, saved=saved)


def norm_act_conv(norm, conv, x, activation, param, saved, consume):
    """conv(act(norm(x))), with one tensor saved."""
    group = _group(norm)
    if _is_empty(x, group) or _is_one_image(conv, x):
        return convolution(conv, functional.activate(_plain(norm, x), activation, param))
    op = _ops.abn_conv_ if consume else _ops.abn_conv
    weight, bias, mean, var, training, momentum, eps = _settings(norm, x)
    return op(x, weight, bias, mean, var, *nn.weight_and_bias(conv), *_geometry(conv), training, momentum, eps, activation,
              param, saved, group)


def norm_act_conv_of(norm, conv, features, activation, param):
    """conv(act(norm(cat(features)))), with nothing saved but the features."""
    first = features[0]
    kernel, kernel_bias = nn.weight_and_bias(conv)
    if torch.compiler.is_compiling() or kernel_bias is not None or first.numel() == 0 or first.dim() != 4 \
            or any(f.dtype != first.dtype for f in features) or functional.is_narrowed(first):
        x = features[0] if len(features) == 1 else torch.cat(features, 1)
        return norm_act_conv(norm, conv, x, activation, param, "input", False)
    weight, bias, mean, var, training, momentum, eps = _settings(norm, first)
    return _ops.concat_abn_conv(features, weight, bias, mean, var, kernel, *_geometry(conv), training, momentum, eps,
                                activation, param, group=_group(norm))


def norm_act_conv_pool(norm, conv, x, activation, param):
    """avg_pool(conv(act(norm(x))), 2): pools first, which is the same for a 1x1 convolution, and saves nothing but x."""
    kernel, kernel_bias = nn.weight_and_bias(conv)
    if torch.compiler.is_compiling() or kernel_bias is not None or x.dim() != 4 or min(x.shape) == 0 \
            or min(x.shape[2:]) < 2 or functional.is_narrowed(x):
        return F.avg_pool2d(norm_act_conv(norm, conv, x, activation, param, "input", False), 2, 2)
    weight, bias, mean, var, training, momentum, eps = _settings(norm, x)
    return _ops.concat_abn_conv([x], weight, bias, mean, var, kernel, *_geometry(conv), training, momentum, eps, activation,
                                param, True, _group(norm))


def norm_add(norm, x, residual, activation, param, saved, consume, relu_residual, written=None):
    """act(norm(x) + residual). relu_residual: the residual is what its ReLU is still to be applied to.

    written: "norm" or "residual", the term of an in-place sum that the sum is written over, whose dtype holds."""
    is_tensor = isinstance(residual, torch.Tensor)
    group = _group(norm)
    if not is_tensor or _is_empty(x, group) or x.shape != residual.shape or x.dtype != residual.dtype:
        r = F.relu(residual) if relu_residual else residual
        y = _plain(norm, x)
        total = y + r
        if written is not None:
            total = total.to((y if written == "norm" else r).dtype)
        return functional.activate(total, activation, param)
    op = _ops.abn_ if consume and saved.startswith("output") else _ops.abn
    return op(x, *_settings(norm, x), activation, param, residual, group, saved=saved, relu_residual=relu_residual)


def activated(y, activation, param):
    """act(y), which saves y and not the result."""
    # threshold, because the gradient of clamp_min at 0 is 1.
    return F.threshold(y, 0.0, 0.0) if activation == "relu" else functional.activate(y, activation, param)


def act_conv(conv, y, activation, param):
    """conv(act(y)), with y saved."""
    if _is_one_image(conv, y):
        return convolution(conv, activated(y, activation, param))
    return _ops.activate_conv(y, *nn.weight_and_bias(conv), *_geometry(conv), activation, param)


def max_pool(pool, x):
    return functional.max_pool2d(x, *pool_geometry(pool))


def pool_geometry(pool):
    return pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode


def stem(conv, norm, pool, x, activation, param, saved, consume):
    """max_pool(norm_act(norm, convolution(conv, x), ...)), of which backward keeps nothing but x, and runs it again."""
    kernel, kernel_bias = nn.weight_and_bias(conv)
    # The original, too, keeps images for the gradient of the kernel alone.
    if not sources.hooks_are_free() or not kernel.requires_grad or x.requires_grad or x.is_meta or x.numel() == 0 \
            or _is_one_image(conv, x) or _group(norm):
        return max_pool(pool, norm_act(norm, convolution(conv, x), activation, param, saved, consume))
    if functional.is_narrowed(x):
        x = x.to(torch.get_autocast_dtype(x.device.type))  # as the convolution would read, and save it
    return _Stem.apply(x, kernel, kernel_bias, *nn.weight_and_bias(norm), norm, _geometry(conv),
                       (activation, param, saved, consume), pool_geometry(pool))


class _Stem(torch.autograd.Function):
    """stem(). Backward has the parameters, statistics and settings of forward, whatever became of the modules: they are small,
    so that copies of them are kept."""

    @staticmethod
    def forward(ctx, x, kernel, kernel_bias, weight, bias, norm, *how):
        y = _ops.convolution(x, kernel, kernel_bias, *how[0])
        _, _, mean, var, training, *rest = settings = _settings(norm, y)
        ctx.save_for_backward(x)
        ctx.parameters = [None if t is None else t.detach().clone() for t in (kernel, kernel_bias, weight, bias)]
        # In training backward neither reads the running statistics nor moves them again.
        ctx.statistics = None if training else mean.clone(), None if training else var.clone(), training, *rest
        ctx.how = how
        device = x.device.type
        ctx.autocast = {"device_type": device, "enabled": torch.is_autocast_enabled(device),
                        "dtype": torch.get_autocast_dtype(device), "cache_enabled": torch.is_autocast_cache_enabled()}
        return _norm_act_pool(y, settings, *how[1:])

    @staticmethod
    def backward(ctx, gradient):
        if torch.is_grad_enabled():
            raise RuntimeError("[stem] the operator has no double backward, got a backward pass with create_graph; use torch's "
                               "own layers where one is needed")
        x, = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:5]
        with torch.enable_grad(), torch.autocast(**ctx.autocast):
            leaves = [t if t is None else t.detach().requires_grad_(n) for t, n in zip(ctx.parameters, needed)]
            # Views: on a GPU a weight that is a new leaf would cost a wait, as what its channels need is not known yet.
            kernel, kernel_bias, weight, bias = (t if t is None else t.view_as(t) for t in leaves)
            y = _ops.convolution(x, kernel, kernel_bias, *ctx.how[0])
            z = _norm_act_pool(y, (weight, bias, *ctx.statistics), *ctx.how[1:])
        gradients = iter(torch.autograd.grad(z, [t for t, n in zip(leaves, needed) if n], gradient))
        return None, *(next(gradients) if n else None for n in needed), *(None,) * (1 + len(ctx.how))


def _norm_act_pool(x, settings, how, pool_geometry):
    return functional.max_pool2d(_norm_act(x, settings, *how), *pool_geometry)


def dense_block(block, x):
    """torchvision's dense block in one operator, or by its own forward where the operator computes something else."""
    layers = list(block._modules.values())
    rates = {float(layer.drop_rate) if layer.training else 0.0 for layer in layers}
    if len(rates) > 1 or torch.compiler.is_compiling() or x.numel() == 0 or x.dim() != 4 or functional.is_narrowed(x) \
            or not nn.dense_block_fits(layers):
        return type(block).forward(block, x)
    return nn.dense_block(x, layers, "relu", 0.0, rates.pop())


def norm_act_shared(norm, x, activation, param, consume):
    """(z, source): act(norm(x)), and what it is made from, for readers that would save z."""
    group = _group(norm)
    if not sources.hooks_are_free() or _is_empty(x, group):
        return norm_act(norm, x, activation, param, "pre_activation", consume), None
    op = _ops.abn_recomputable_ if consume else _ops.abn_recomputable
    return _recomputable(op, x, _settings(norm, x), activation, param, group)


def _recomputable(op, x, settings, activation, param, group):
    """(z, source) by an operator that returns z, what it saved, and the statistics."""
    z, saved, mean, inv_std = op(x, *settings, activation, param, group)
    if saved.numel() == 0:
        return z, None
    weight, bias = (t.detach() if t is not None else None for t in settings[:2])

    def make(parts):
        return _ops.abn_recompute_output(parts[0](), None, weight, bias, activation, param, "pre_activation", False, mean,
                                         inv_std)

    return z, sources.Source([sources.Kept(saved)], make)


def _is_plain_instance_norm(norm, x):
    """Whether our layer may compute it: each channel of each image is then a channel of one image. torch's has the errors."""
    return sources.hooks_are_free() and norm.running_mean is None and x.dim() != norm._get_no_batch_dim() \
        and x.dim() > 2 and x.shape[1] == norm.num_features and x.numel() > x.shape[0] * x.shape[1]


def _as_one_image(norm, x):
    """(x, settings) for an operator."""
    norm._check_input_dim(x)
    weight, bias = (t if t is None else t.repeat(x.shape[0]) for t in (norm.weight, norm.bias))
    return x.contiguous().view(1, -1, *x.shape[2:]), (weight, bias, None, None, True, 0.0, norm.eps)


def instance_norm_act(norm, x, activation, param):
    """act(norm(x)) of an InstanceNorm and an activation that can be inverted: saves the result."""
    if not _is_plain_instance_norm(norm, x):
        return functional.activate(norm(x), activation, param)
    flat, settings = _as_one_image(norm, x)
    return _norm_act(flat, settings, activation, param, "output", False).view(x.shape)


def instance_norm_act_shared(norm, x, activation, param):
    """(z, source) of an InstanceNorm and another activation, as norm_act_shared()."""
    if not _is_plain_instance_norm(norm, x):
        return functional.activate(norm(x), activation, param), None
    flat, settings = _as_one_image(norm, x)
    z, source = _recomputable(_ops.abn_recomputable, flat, settings, activation, param, "")
    return z.view(x.shape), source and sources.of_shape(source, x.shape)


def source_of(y, activation, param):
    """The source of activated(y)."""
    if not sources.hooks_are_free() or not y.requires_grad:
        return None
    return sources.Source([sources.Kept(y)], lambda parts: activated(parts[0](), activation, param))


def part_of(source, z, part):
    """The source of a part of z, a view."""
    if source is None:
        return None
    size, stride, offset = part.shape, part.stride(), part.storage_offset() - z.storage_offset()

    def make(parts):
        whole = parts[0]()
        return whole.as_strided(size, stride, whole.storage_offset() + offset)

    return sources.Source([source], make)


def _in_bits_of_autocast(source, z):
    """z as a convolution or a linear layer reads it, in 16 bits under autocast, and the source of that."""
    if source is None or not functional.is_narrowed(z) or not z.is_floating_point():
        return source, z
    dtype = torch.get_autocast_dtype(z.device.type)
    return sources.Source([source], lambda parts: parts[0]().to(dtype)), z.to(dtype)


def convolution_of(source, conv, z):
    """convolution(conv, z), which saves z's source."""
    source, z = _in_bits_of_autocast(source, z)
    return sources.read(source, z, convolution, conv, z)


def product_of(source, z, a, b):
    """a * b, of which one is z: saves z's source."""
    return sources.read(source, z, torch.mul, a, b)


def product_shared(source, z, a, b):
    """(a * b, its source): saves z's source, for convolutions that would save the product."""
    product = product_of(source, z, a, b)
    z_is_first = a is z
    other = b if z_is_first else a
    if source is None or not sources.hooks_are_free() or not isinstance(other, torch.Tensor) or not z.requires_grad:
        return product, None

    def make(parts):  # holds neither z nor the product
        made, factor = (part() for part in parts)
        return torch.mul(made, factor) if z_is_first else torch.mul(factor, made)

    return product, sources.Source([source, sources.Kept(other)], make)


def module_of(source, module, z):
    """module(z), a layer of torch's that would save z: saves its source."""
    source, z = _in_bits_of_autocast(source, z)
    return sources.read(source, z, module, z)


def function_of(source, name, z, *arguments, **keywords):
    """F.name(z, ...), a convolution or linear layer of torch's as a function: saves z's source."""
    source, z = _in_bits_of_autocast(source, z)
    return sources.read(source, z, getattr(F, name), z, *arguments, **keywords)

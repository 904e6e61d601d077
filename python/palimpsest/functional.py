"""The layers as functions: batch normalization with activation, max pooling, activations, the loss of a segmentation network."""
import math
import operator
import warnings
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from palimpsest._checkpoint import statistics_to_move

# What the operator saves for backward under each strategy (docs/memory.md). Empty: torch's own two layers.
_SAVED = {
    "standard": "",
    "checkpoint": "input",
    "checkpoint_normalized": "normalized",
    "inplace_1": "output_form1",
    "inplace_2": "output",
    "inplace": "output",
    "inplace_bit": "output_bit",
    "store_y": "pre_activation",
}
_WITHOUT_BRANCHES = ("identity", "leaky_relu", "elu", "sigmoid", "tanh", "softplus")

_ACTIVATIONS = {
    "identity": lambda x, param: x,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "relu": lambda x, param: F.relu(x),
    "relu6": lambda x, param: F.relu6(x),
    "gelu": lambda x, param: F.gelu(x),
    "gelu_tanh": lambda x, param: F.gelu(x, approximate="tanh"),
    "silu": lambda x, param: F.silu(x),
    "hardswish": lambda x, param: F.hardswish(x),
    "mish": lambda x, param: F.mish(x),
    "sigmoid": lambda x, param: torch.sigmoid(x),
    "tanh": lambda x, param: torch.tanh(x),
    "softplus": lambda x, param: F.softplus(x),
}


def strategy_names() -> tuple[str, ...]:
    """The names that `strategy` may have, beside "auto"."""
    return tuple(_SAVED)


def activation_names() -> tuple[str, ...]:
    """The names that `activation` may have."""
    return tuple(_ACTIVATIONS)


def _one_of(what, name, names):
    if name not in names:
        raise ValueError(f"unknown {what} '{name}': take one of {', '.join(names)}")


_resolved: dict[tuple[str, str], str] = {}  # (strategy, activation) to strategy: a table, which torch.compile reads without a break


def resolve_strategy(strategy: str, activation: str, offered: Sequence[str] = ("auto", *_SAVED)) -> str:
    """The strategy itself, or for "auto" the one that saves least: inplace_2 if the activation can be inverted, else store_y.

    offered: the names among which an error names those that fit.
    Raises ValueError for unknown names and for a strategy whose backward cannot handle the activation."""
    if (strategy, activation) not in _resolved:
        _resolved[strategy, activation] = _resolve(strategy, activation, offered)
    return _resolved[strategy, activation]


def _resolve(strategy, activation, offered):
    _one_of("activation", activation, activation_names())
    if strategy == "auto":
        return "inplace_2" if activation in _WITHOUT_BRANCHES else "store_y"
    _one_of("strategy", strategy, ("auto", *strategy_names()))
    if not _fits(strategy, activation):
        names = ", ".join(name for name in offered if name == "auto" or _fits(name, activation))
        raise ValueError(f"strategy '{strategy}' does not fit the activation '{activation}', which its backward cannot invert: "
                         f"take one of {names}")
    return strategy


def _fits(strategy, activation):
    if not _SAVED[strategy] or activation == "identity":
        return True
    try:  # the operator knows what it can invert
        values = [torch.empty(1, device="meta") for _ in range(2)]
        torch.ops.palimpsest.abn(torch.empty(2, 1, device="meta"), *values, None, None, activation=activation,
                                 saved=saved_by(strategy, activation))
    except RuntimeError:
        return False
    return True


def saved_by(strategy: str, activation: str) -> str:
    """The operator's `saved` under a strategy that resolve_strategy() returned."""
    if activation == "identity":
        return "output"  # z is y: another tensor gains nothing
    if strategy == "inplace_bit" and activation in _WITHOUT_BRANCHES:
        return "output"
    return _SAVED[strategy]


def activate(x: torch.Tensor, activation: str, activation_param: float = 0.01) -> torch.Tensor:
    """The activation alone, by torch's function. `activation_param`: leaky ReLU's slope or ELU's alpha."""
    _one_of("activation", activation, activation_names())
    return _ACTIVATIONS[activation](x, activation_param)


def is_exporting() -> bool:
    """Whether an exported program or an ONNX file is made, which must not need our operators.

    The flag itself: torch.compiler.is_exporting() is also True while torch.compile traces."""
    return torch.compiler._is_exporting_flag or torch.onnx.is_in_onnx_export()


def is_narrowed(x: torch.Tensor) -> bool:
    """Whether a fused operator under autocast would round x before the normalization, which torch runs in the dtype of x."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) \
        and x.dtype not in (torch.get_autocast_dtype(device), torch.float64)


def group_name(group: "torch.distributed.ProcessGroup | str | None") -> str:
    """The name under which operators find a process group; "" for None. Raises ValueError for what is no group."""
    if group is None or isinstance(group, str):
        return group or ""
    name = getattr(group, "group_name", None)
    if not isinstance(name, str):
        raise ValueError("group must be a torch.distributed.ProcessGroup that this process belongs to, its name or None, got "
                         f"{type(group).__name__}")
    return name


def batch_norm_act(x: torch.Tensor, running_mean: torch.Tensor | None, running_var: torch.Tensor | None,
                   weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, training: bool = False,
                   momentum: float = 0.1, eps: float = 1e-5, *, activation: str = "leaky_relu", activation_param: float = 0.01,
                   strategy: str = "auto", residual: torch.Tensor | None = None, in_place: bool = False,
                   group: "torch.distributed.ProcessGroup | str | None" = None) -> torch.Tensor:
    """act(batch_norm(x) + residual), with one tensor saved for backward.

    x: (N, C, ...), f32, f64, f16 or bf16. The first eight arguments are those of torch.nn.functional.batch_norm. `residual`: of
    x's shape, or None. `in_place`: writes the result over x, whose producer must not need it (a convolution, a sum), under the
    strategies that save the result.
    group: the processes that share the statistics of a batch in training, as a group of torch.distributed or its name
    (group_name). On a CPU, too; their batches may differ in size and be empty. All processes of the group make the call.
    Returns a tensor of x's shape. Raises ValueError for a wrong name or pair, RuntimeError for tensors that do not fit."""
    strategy = resolve_strategy(strategy, activation)
    shared = group_name(group) if training else ""
    if training:
        running_mean, running_var = statistics_to_move(running_mean, running_var)
    if shared and strategy == "standard":
        y = torch.ops.palimpsest.abn(x, weight, bias, running_mean, running_var, training, momentum, eps, "identity", 0.0, None,
                                     shared, saved="input")
        return activate(y if residual is None else y + residual, activation, activation_param)
    if strategy == "standard" or (x.numel() == 0 and not shared) or (not training and is_exporting()):
        y = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        return activate(y if residual is None else y + residual, activation, activation_param)
    saved = saved_by(strategy, activation)
    op = torch.ops.palimpsest.abn_ if in_place and saved.startswith("output") else torch.ops.palimpsest.abn
    return op(x, weight, bias, running_mean, running_var, training, momentum, eps, activation, activation_param, residual,
              shared, saved=saved)


def _pair(size):
    if not hasattr(size, "__len__") or getattr(size, "ndim", 1) == 0:
        return [operator.index(size)] * 2
    return list(size) * 2 if len(size) == 1 else list(size)


def is_small_window(kernel_size: int | Sequence[int]) -> bool:
    """Whether one byte tells the positions of a max pooling's window apart."""
    window = _pair(kernel_size)
    return window[0] * window[-1] <= 255


def max_pool2d(x: torch.Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None,
               padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False) -> torch.Tensor:
    """torch.nn.functional.max_pool2d with one byte saved per output, and neither x nor 64-bit indices.

    x: (N, C, H, W). Sizes are numbers or pairs. A window of more than 255 positions, which one byte cannot tell apart, is
    torch's, and so are integers."""
    window = _pair(kernel_size)
    is_torchs = not is_small_window(window) or not x.is_floating_point() or is_exporting()
    pool = F.max_pool2d if is_torchs else torch.ops.palimpsest.max_pool2d
    return pool(x, window, [] if stride is None else _pair(stride), _pair(padding), _pair(dilation), ceil_mode)


def conv2d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: int | Sequence[int] = 1,
           padding: int | Sequence[int] | str = 0, dilation: int | Sequence[int] = 1, groups: int = 1) -> torch.Tensor:
    """torch.nn.functional.conv2d, with kernels of ours for the passes in which they take less time: f32, channels-last, on a
    CPU; groups of 2 to 16 channels, and the weight gradient of depthwise, 1x1, strided and small convolutions.

    x: (N, C, H, W); weight: (C_out, C / groups, h, w); bias: (C_out) or None. Sizes are numbers or pairs; padding may be
    "same" or "valid". The same tensors are saved, and results differ in rounding only. A second derivative is an error where a
    kernel of ours runs. Raises RuntimeError for tensors that do not fit."""
    if is_exporting() or isinstance(padding, str) or x.dim() != 4:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return torch.ops.palimpsest.convolution(x, weight, bias, *(_pair(size) for size in (stride, padding, dilation)), groups)


def upsampled_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, *, weight: torch.Tensor | None = None,
                            ignore_index: int = -100, label_smoothing: float = 0.0, align_corners: bool = False,
                            bootstrap_share: float = 1.0, bootstrap_probability: float = 1.0) -> torch.Tensor:
    """The mean cross-entropy of bilinearly upsampled logits, without the upsampled logits and their gradient:
    F.cross_entropy(F.interpolate(logits, targets.shape[1:], mode="bilinear"), targets).

    logits: (N, C, h, w); targets: (N, H, W), int64 or uint8. What is kept for backward is the gradient of the small logits.
    weight: one number >= 0 per class. bootstrap_share: per image, the share of its pixels that counts, the hardest ones;
    bootstrap_probability: of these only pixels whose class has a lower probability. 0 if no pixel counts, where torch gives NaN.
    A second derivative is an error. On a device that is neither a CPU nor a CUDA GPU torch's operators compute the same, with
    their memory, and a warning says so once. Raises RuntimeError for tensors that do not fit, IndexError for a target that is no class."""
    if (logits.is_cpu or logits.is_cuda) and not is_exporting():
        return torch.ops.palimpsest.upsampled_cross_entropy(logits, targets, weight, ignore_index, label_smoothing, align_corners,
                                                            bootstrap_share, bootstrap_probability)[0]
    if not is_exporting():
        _warn_of_full_size("upsampled_cross_entropy")
    return _torchs_upsampled_cross_entropy(logits, targets, weight, ignore_index, label_smoothing, align_corners, bootstrap_share,
                                           bootstrap_probability)


def upsampled_argmax(logits: torch.Tensor, size: Sequence[int], align_corners: bool = False) -> torch.Tensor:
    """F.interpolate(logits, size, mode="bilinear").argmax(1) without the upsampled logits: the predicted class of each pixel.

    logits: (N, C, h, w). Returns (N, *size) of int64. Of equal logits the first class counts. Devices as of
    upsampled_cross_entropy."""
    if (logits.is_cpu or logits.is_cuda) and not is_exporting():
        return torch.ops.palimpsest.upsampled_argmax(logits, list(size), align_corners)
    if not is_exporting():
        _warn_of_full_size("upsampled_argmax")
    return F.interpolate(logits, list(size), mode="bilinear", align_corners=align_corners).argmax(1)


_warned: set[str] = set()


def _warn_of_full_size(name):
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"palimpsest: {name} has no kernel for this device yet: torch's operators make tensors of the images' size",
                      RuntimeWarning, stacklevel=3)


def _torchs_upsampled_cross_entropy(logits, targets, weight, ignore_index, label_smoothing, align_corners, share, probability):
    z = F.interpolate(logits.float() if logits.element_size() == 2 else logits, list(targets.shape[1:]), mode="bilinear",
                      align_corners=align_corners)
    ids = targets.long()
    valid = ids != ignore_index
    weight = None if weight is None else weight.to(z.dtype)
    losses = F.cross_entropy(z, ids, weight, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none")
    if share < 1 or probability < 1:
        with torch.no_grad():
            hardness = F.cross_entropy(z.double(), ids, ignore_index=ignore_index, reduction="none").flatten(1)
            hardness = hardness.nan_to_num(nan=torch.inf, posinf=torch.inf)
            places = hardness.masked_fill(~valid.flatten(1), -torch.inf).sort(dim=1, descending=True, stable=True).indices
            ranks = torch.empty_like(places).scatter_(1, places, torch.arange(places.shape[1], device=z.device).expand_as(places))
            most = (valid.flatten(1).sum(1, keepdim=True) * share).ceil()
            chosen = (ranks < most) & ((hardness > -math.log(probability)) if probability < 1 else True)
            valid = valid & chosen.view_as(valid)
    weights = valid.to(losses.dtype) if weight is None else weight.to(losses)[ids.masked_fill(~valid, 0)] * valid
    total = weights.sum()
    return torch.where(total > 0, torch.where(valid, losses, 0).sum() / torch.where(total > 0, total, 1), 0)

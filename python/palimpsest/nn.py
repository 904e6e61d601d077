"""Modules that take the place of torch's: the same parameters, buffers, gradients and state dicts, with less saved."""
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from palimpsest import functional
from palimpsest._checkpoint import must_stay, statistics_to_move

__all__ = ["BatchNormAct", "Conv2d", "DenseBlock", "InPlaceABN", "MaxPool2d", "update_bn"]


def weight_and_bias(module: torch.nn.Module) -> tuple[Any, Any]:
    """The tensors, also where they are plain attributes in place of parameters, as in a replica of DataParallel."""
    parameters = module._parameters  # getattr(module, "weight") takes 10 times as long
    try:
        return parameters["weight"], parameters["bias"]
    except KeyError:
        return module.weight, module.bias


def settings_of(norm: _NormBase) -> tuple[Any, Any, Any, Any, bool, float, float]:
    """(weight, bias, running_mean, running_var, training, momentum, eps) of a batch normalization that runs now.

    Counts the batch, as torch's forward does."""
    weight, bias = weight_and_bias(norm)
    buffers = norm._buffers
    mean, var = buffers["running_mean"], buffers["running_var"]
    momentum, training = norm.momentum, norm.training
    if training:
        if not norm.track_running_stats:
            mean = var = None
        else:
            batches = buffers["num_batches_tracked"]
            if must_stay(mean):
                mean, var = statistics_to_move(mean, var)
            elif batches is not None:
                batches.add_(1)
                if momentum is None:
                    momentum = 1.0 / float(batches)
    return weight, bias, mean, var, training or mean is None, 0.0 if momentum is None else momentum, norm.eps


class BatchNormAct(_NormBase):
    """Batch normalization and activation: y = weight * (x - mean) / sqrt(var + eps) + bias, z = act(y).

    x: (N, C, ...) of rank 2 to 5. Parameters, buffers and their names are those of torch.nn.BatchNorm2d, so that state dicts
    fit both ways. It is no subclass of it: torch's SyncBatchNorm.convert_sync_batchnorm would drop the activation.

    strategy: which tensor is saved for backward; "auto" saves the output if the activation can be inverted, else y.
    functional.strategy_names() lists them, docs/memory.md explains them. in_place: writes the result over x, whose
    producer must not need it, under the strategies that save the result. group: the processes that share the statistics of
    a batch (functional.batch_norm_act); the module keeps the group's name. Raises ValueError for a strategy whose backward
    cannot handle the activation."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, activation: str = "leaky_relu", activation_param: float = 0.01,
                 strategy: str = "auto", in_place: bool = False,
                 group: "torch.distributed.ProcessGroup | str | None" = None, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        functional.resolve_strategy(strategy, activation)
        self.activation = activation
        self.activation_param = activation_param
        self.strategy = strategy
        self.in_place = in_place
        self.group = functional.group_name(group)

    def _check_input_dim(self, x):
        if isinstance(x, torch.fx.Proxy):
            raise TypeError("BatchNormAct cannot be traced into: make it a leaf of the tracer, as torch's normalizations are "
                            "(torchvision: tracer_kwargs={'leaf_modules': [palimpsest.nn.BatchNormAct]})")
        if x.dim() < 2 or x.size(1) != self.num_features:
            raise ValueError(f"BatchNormAct needs (N, {self.num_features}, ...), got shape {tuple(x.shape)}")

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """act(bn(x) + residual), of x's shape. `residual`: of x's shape, or None."""
        self._check_input_dim(x)
        weight, bias, mean, var, uses_batch, momentum, eps = settings_of(self)
        return functional.batch_norm_act(
            x, mean, var, weight, bias, uses_batch, momentum, eps, activation=self.activation, activation_param=self.activation_param,
            strategy=self.strategy, residual=residual, in_place=self.in_place,
            group=self._statistics_group() if self.training else None)

    def _statistics_group(self):
        return self.group

    def extra_repr(self) -> str:
        """What repr() shows: torch's line, the activation and the strategy."""
        group = f", group={self.group!r}" if self.group else ""
        return f"{super().extra_repr()}, activation={self.activation}, strategy={self.strategy}{group}"


@torch.no_grad()
def update_bn(loader: Iterable[Any], model: torch.nn.Module, device: torch.device | str | None = None) -> None:
    """Gives the normalizations of `model` the statistics of one pass over `loader`, for averages of weights.

    It is torch.optim.swa_utils.update_bn, which passes over BatchNormAct and InPlaceABN. loader: of batches, or of tuples that
    begin with one. device: where the batches go."""
    norms = [m for m in model.modules() if isinstance(m, (_BatchNorm, BatchNormAct)) and m.track_running_stats]
    before, training = [m.momentum for m in norms], model.training
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
    model.train()
    try:
        for batch in loader if norms else ():
            batch = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(batch if device is None else batch.to(device))
    finally:
        for norm, momentum in zip(norms, before):
            norm.momentum = momentum
        model.train(training)


class InPlaceABN(BatchNormAct):
    """BatchNormAct that writes its output over its input: the layer of Rota Bulo, Porzi, Kontschieder (CVPR 2018)."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, activation: str = "leaky_relu", activation_param: float = 0.01,
                 strategy: str = "auto", group: "torch.distributed.ProcessGroup | str | None" = None,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, activation=activation,
                         activation_param=activation_param, strategy=strategy, in_place=True, group=group, device=device,
                         dtype=dtype)


class Conv2d(torch.nn.Conv2d):
    """torch.nn.Conv2d on functional.conv2d: less time where a kernel of ours runs, and the same tensors saved.

    x: (N, C, H, W). Padding other than zeros is torch's."""

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.padding_mode != "zeros":
            return super()._conv_forward(input, weight, bias)
        return functional.conv2d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


class MaxPool2d(torch.nn.MaxPool2d):
    """torch.nn.MaxPool2d with one byte saved per output."""

    def __init__(self, kernel_size: int | tuple[int, ...], stride: int | tuple[int, ...] | None = None,
                 padding: int | tuple[int, ...] = 0, dilation: int | tuple[int, ...] = 1, return_indices: bool = False,
                 ceil_mode: bool = False) -> None:
        if return_indices:
            raise ValueError("palimpsest.nn.MaxPool2d saves one byte per output and no indices: use torch.nn.MaxPool2d")
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The largest value of each window. x: (N, C, H, W)."""
        return functional.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class _SharedBatchNorm2d(torch.nn.BatchNorm2d):
    """BatchNorm2d with the statistics of a group."""

    def __init__(self, channels, group):
        super().__init__(channels)
        self.group = group

    def forward(self, x):
        if not self.training and self.track_running_stats:
            return super().forward(x)
        weight, bias, mean, var, uses_batch, momentum, eps = settings_of(self)
        return functional.batch_norm_act(x, mean, var, weight, bias, uses_batch, momentum, eps, activation="identity",
                                         strategy="standard", group=self.group if self.training else None)


class _DenseLayer(torch.nn.Module):
    """Holds the parameters of a layer, for which DenseBlock computes. forward is for what its operator cannot do."""

    def __init__(self, channels, growth, bottleneck, group):
        super().__init__()

        def norm(features):
            return _SharedBatchNorm2d(features, group) if group else torch.nn.BatchNorm2d(features)

        self.norm1 = norm(channels)
        self.conv1 = torch.nn.Conv2d(channels, bottleneck * growth, 1, bias=False)
        self.norm2 = norm(bottleneck * growth)
        self.conv2 = torch.nn.Conv2d(bottleneck * growth, growth, 3, padding=1, bias=False)

    def forward(self, x, activation, param, drop_rate):
        x = self.conv1(functional.activate(self.norm1(x), activation, param))
        x = self.conv2(functional.activate(self.norm2(x), activation, param))
        return F.dropout(x, drop_rate, self.training)


_NORMS_OF_A_BLOCK = (torch.nn.BatchNorm2d, _SharedBatchNorm2d)
_norm_state = operator.attrgetter("training", "momentum", "eps", "track_running_stats")
_conv_state = operator.attrgetter("stride", "dilation", "groups", "padding_mode")


def dense_block_fits(layers: Sequence[Any], group: str = "") -> bool:
    """Whether dense_block computes what the layers' modules say now: these can be replaced, frozen, given a bias."""
    first = layers[0]._modules["norm1"]
    if type(first) not in _NORMS_OF_A_BLOCK:
        return False
    state = _norm_state(first)
    if state[1] is None or not state[3]:
        return False
    for layer in layers:
        parts = layer._modules
        norm1, conv1, norm2, conv2 = parts["norm1"], parts["conv1"], parts["norm2"], parts["conv2"]
        for norm in (norm1, norm2):
            weight, bias = weight_and_bias(norm)
            if type(norm) not in _NORMS_OF_A_BLOCK or _norm_state(norm) != state or weight is None or bias is None \
                    or norm._buffers["running_mean"] is None or getattr(norm, "group", "") != group:
                return False
        for conv in (conv1, conv2):
            if type(conv) is not torch.nn.Conv2d or _conv_state(conv) != ((1, 1), (1, 1), 1, "zeros") \
                    or weight_and_bias(conv)[1] is not None:
                return False
        height, width = conv2.kernel_size
        if conv1.kernel_size != (1, 1) or conv1.padding != (0, 0) or conv2.padding != (height // 2, width // 2):
            return False
    return True


def dense_block(x: torch.Tensor, layers: Sequence[Any], activation: str, activation_param: float,
                dropout: float, group: str = "") -> torch.Tensor:
    """x and the features of each layer, by one operator. dense_block_fits(layers, group) must hold."""
    norm1, norm2 = (list(zip(*(settings_of(layer._modules[name]) for layer in layers))) for name in ("norm1", "norm2"))
    conv1, conv2 = ([weight_and_bias(layer._modules[name])[0] for layer in layers] for name in ("conv1", "conv2"))
    training, momentum, eps = (column[0] for column in norm1[4:])
    saved = functional.saved_by(functional.resolve_strategy("auto", activation), activation)
    return torch.ops.palimpsest.dense_block(x, *norm1[:4], conv1, *norm2[:4], conv2, training, momentum, eps, activation,
                                            activation_param, saved=saved, dropout=dropout, group=group if training else "")


def _is_listened(module):
    d = module.__dict__
    return bool(d["_forward_hooks"] or d["_forward_pre_hooks"] or d["_backward_hooks"] or d["_backward_pre_hooks"])


class DenseBlock(torch.nn.Module):
    """A dense block with bottlenecks (norm, ReLU, 1x1 convolution, norm, ReLU, 3x3 convolution), in linear memory.

    x: (N, in_channels, H, W) to (N, in_channels + num_layers * growth_rate, H, W). The features are written once, in one
    tensor; nothing else of their size is saved. Parameters have the names of torchvision's (denselayer1.norm1.weight, ...).
    group: the processes that share the statistics of a batch (functional.batch_norm_act).
    The layers run one by one, and save more tensors, under torch.compile, with hooks on them, for an x of f32 under autocast,
    where the normalizations differ in training, momentum or eps, and where a module was replaced
    (SyncBatchNorm.convert_sync_batchnorm).
    Source: Pleiss, Chen, Huang, Li, van der Maaten, Weinberger, "Memory-Efficient Implementation of DenseNets", 2017."""

    def __init__(self, num_layers: int, in_channels: int, growth_rate: int, bn_size: int = 4, drop_rate: float = 0.0, *,
                 activation: str = "relu", activation_param: float = 0.01,
                 group: "torch.distributed.ProcessGroup | str | None" = None) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"DenseBlock needs num_layers >= 1, got {num_layers}")
        functional.resolve_strategy("auto", activation)
        self.drop_rate, self.activation, self.activation_param = drop_rate, activation, activation_param
        self.group = functional.group_name(group)
        for i in range(num_layers):
            self.add_module(f"denselayer{i + 1}", _DenseLayer(in_channels + i * growth_rate, growth_rate, bn_size, self.group))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x and the features of each layer, along the channels."""
        layers = list(self.children())
        rates = {self.drop_rate if layer.training else 0.0 for layer in layers}
        is_plain = len(rates) > 1 or torch.compiler.is_compiling() or functional.is_exporting() \
            or any(type(layer) is not _DenseLayer for layer in layers) \
            or any(_is_listened(module) for layer in layers for module in layer.modules())
        if not is_plain and not functional.is_narrowed(x) and dense_block_fits(layers, self.group):
            return dense_block(x, layers, self.activation, self.activation_param, rates.pop(), self.group)
        features = [x]
        for layer in layers:
            features.append(layer(torch.cat(features, 1), self.activation, self.activation_param, self.drop_rate))
        return torch.cat(features, 1)

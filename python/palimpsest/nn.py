"""Modules that take the place of torch's: the same parameters, buffers, gradients and state dicts, with less saved."""
from collections.abc import Sequence

import torch
from torch.nn.modules.batchnorm import _NormBase

from palimpsest import functional


class BatchNormAct(_NormBase):
    """Batch normalization and activation: y = weight * (x - mean) / sqrt(var + eps) + bias, z = act(y).

    x: (N, C, ...) of rank 2 to 5. Parameters, buffers and their names are those of torch.nn.BatchNorm2d, so that state dicts
    fit both ways. It is no subclass of it: torch's SyncBatchNorm.convert_sync_batchnorm would drop the activation.

    strategy: which tensor is saved for backward; "auto" saves the output if the activation can be inverted, else y.
    functional.strategy_names() lists them, docs/memory.md explains them. in_place: writes the result over x, whose
    producer must not need it, under the strategies that save the result. Raises ValueError for a strategy whose backward
    cannot handle the activation."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, activation: str = "leaky_relu", activation_param: float = 0.01,
                 strategy: str = "auto", in_place: bool = False, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        functional.resolve_strategy(strategy, activation)
        self.activation = activation
        self.activation_param = activation_param
        self.strategy = strategy
        self.in_place = in_place

    def _check_input_dim(self, x):
        if x.dim() < 2 or x.size(1) != self.num_features:
            raise ValueError(f"BatchNormAct needs (N, {self.num_features}, ...), got shape {tuple(x.shape)}")

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """act(bn(x) + residual), of x's shape. `residual`: of x's shape, or None."""
        self._check_input_dim(x)
        uses_batch = self.training or self.running_mean is None
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        return functional.batch_norm_act(
            x, self.running_mean, self.running_var, self.weight, self.bias, uses_batch, momentum, self.eps,
            activation=self.activation, activation_param=self.activation_param, strategy=self.strategy, residual=residual,
            in_place=self.in_place)

    def extra_repr(self) -> str:
        """What repr() shows: torch's line, the activation and the strategy."""
        return f"{super().extra_repr()}, activation={self.activation}, strategy={self.strategy}"


class InPlaceABN(BatchNormAct):
    """BatchNormAct that writes its output over its input: the layer of Rota Bulo, Porzi, Kontschieder (CVPR 2018)."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, activation: str = "leaky_relu", activation_param: float = 0.01,
                 strategy: str = "auto", device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, activation=activation,
                         activation_param=activation_param, strategy=strategy, in_place=True, device=device, dtype=dtype)


class Conv2d(torch.nn.Conv2d):
    """torch.nn.Conv2d on functional.conv2d: less time where a kernel of ours runs, and the same tensors saved.

    x: (N, C, H, W). Padding other than zeros is torch's."""

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.padding_mode != "zeros":
            return super()._conv_forward(input, weight, bias)
        return functional.conv2d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


class MaxPool2d(torch.nn.MaxPool2d):
    """torch.nn.MaxPool2d with one byte saved per output."""

    def __init__(self, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None,
                 padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, return_indices: bool = False,
                 ceil_mode: bool = False) -> None:
        if return_indices:
            raise ValueError("palimpsest.nn.MaxPool2d saves one byte per output and no indices: use torch.nn.MaxPool2d")
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The largest value of each window. x: (N, C, H, W)."""
        return functional.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class _DenseLayer(torch.nn.Module):
    """Holds the parameters of a layer; DenseBlock computes."""

    def __init__(self, channels, growth, bottleneck):
        super().__init__()
        self.norm1 = torch.nn.BatchNorm2d(channels)
        self.conv1 = torch.nn.Conv2d(channels, bottleneck * growth, 1, bias=False)
        self.norm2 = torch.nn.BatchNorm2d(bottleneck * growth)
        self.conv2 = torch.nn.Conv2d(bottleneck * growth, growth, 3, padding=1, bias=False)


class DenseBlock(torch.nn.Module):
    """A dense block with bottlenecks (norm, ReLU, 1x1 convolution, norm, ReLU, 3x3 convolution), in linear memory.

    x: (N, in_channels, H, W) to (N, in_channels + num_layers * growth_rate, H, W). The features are written once, in one
    tensor; nothing else of their size is saved. Parameters have the names of torchvision's (denselayer1.norm1.weight, ...).
    Source: Pleiss, Chen, Huang, Li, van der Maaten, Weinberger, "Memory-Efficient Implementation of DenseNets", 2017."""

    def __init__(self, num_layers: int, in_channels: int, growth_rate: int, bn_size: int = 4, drop_rate: float = 0.0, *,
                 activation: str = "relu", activation_param: float = 0.01) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"DenseBlock needs num_layers >= 1, got {num_layers}")
        functional.resolve_strategy("auto", activation)
        self.drop_rate, self.activation, self.activation_param = drop_rate, activation, activation_param
        for i in range(num_layers):
            self.add_module(f"denselayer{i + 1}", _DenseLayer(in_channels + i * growth_rate, growth_rate, bn_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x and the features of each layer, along the channels."""
        layers = list(self.children())
        first = layers[0].norm1
        if self.training:
            for layer in layers:
                layer.norm1.num_batches_tracked.add_(1)
                layer.norm2.num_batches_tracked.add_(1)

        def all_of(norm, name):
            return [getattr(getattr(layer, norm), name) for layer in layers]

        names = ("weight", "bias", "running_mean", "running_var")
        norm1, norm2 = ([all_of(norm, name) for name in names] for norm in ("norm1", "norm2"))
        saved = functional.saved_by(functional.resolve_strategy("auto", self.activation), self.activation)
        return torch.ops.palimpsest.dense_block(
            x, *norm1, all_of("conv1", "weight"), *norm2, all_of("conv2", "weight"), self.training, first.momentum, first.eps,
            self.activation, self.activation_param, saved=saved, dropout=self.drop_rate if self.training else 0.0)

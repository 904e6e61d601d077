"""The layer as a function, in the argument order of the original."""
import warnings

import torch

from palimpsest import functional

_NAMES = {"none": "identity"}  # an old name


def activation_of(name: str) -> str:
    """Our name of the activation. Raises RuntimeError for one that the original does not have, as the original does."""
    name = _NAMES.get(name, name)
    if name not in ("relu", "leaky_relu", "elu", "identity"):
        raise RuntimeError(f"Unknown activation function {name}: take leaky_relu, elu, relu or identity (none)")
    return name


def _parameter(activation_param, slope):
    """The activation's parameter, under its name or the name before 1.0."""
    if slope is None:
        return 0.01 if activation_param is None else activation_param
    if activation_param is not None:
        raise TypeError("inplace_abn got 'activation_param' and 'slope', two names of one argument: pass activation_param "
                        "alone")
    return slope


def _layer(x, weight, bias, running_mean, running_var, training, momentum, eps, activation, activation_param, group=None):
    return functional.batch_norm_act(x, running_mean, running_var, weight, bias, training, momentum, eps,
                                     activation=activation_of(activation), activation_param=activation_param, in_place=True,
                                     group=group)


def is_distributed():
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def group_or_all(group):
    """The group whose processes share the statistics: `group`, by default all processes of torch.distributed."""
    return torch.distributed.group.WORLD if group is None and is_distributed() else group


def inplace_abn(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, running_mean: torch.Tensor | None,
                running_var: torch.Tensor | None, training: bool = True, momentum: float = 0.1, eps: float = 1e-05,
                activation: str = "leaky_relu", activation_param: float | None = None, *,
                slope: float | None = None) -> torch.Tensor:
    """act(weight * (x - mean) / sqrt(var + eps) + bias), written over x, of any shape (N, C, ...).

    activation_param: 0.01 by default; `slope` is its name before 1.0. Raises TypeError if both are given."""
    return _layer(x, weight, bias, running_mean, running_var, training, momentum, eps, activation,
                  _parameter(activation_param, slope))


def inplace_abn_sync(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, running_mean: torch.Tensor | None,
                     running_var: torch.Tensor | None, training: bool = True, momentum: float = 0.1, eps: float = 1e-05,
                     activation: str = "leaky_relu", activation_param: float | None = None,
                     group: "torch.distributed.ProcessGroup | None" = None, *, slope: float | None = None) -> torch.Tensor:
    """inplace_abn with the statistics of all processes of the group in training. Every process of it makes the call.

    group: by default all processes of torch.distributed; without it, this process alone, with a warning. On a CPU, too, and
    with batches that differ in size or are empty."""
    if not is_distributed():
        warnings.warn("inplace_abn_sync without torch.distributed initialized: the statistics are those of this process alone",
                      RuntimeWarning, stacklevel=2)
        group = None
    return _layer(x, weight, bias, running_mean, running_var, training, momentum, eps, activation,
                  _parameter(activation_param, slope), group_or_all(group))

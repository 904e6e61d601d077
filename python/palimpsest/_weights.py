"""Weights of other programs."""
import collections
from collections.abc import Iterable, Mapping

import torch

from palimpsest import nn


def load_original(state_dict: Mapping[str, torch.Tensor], eps: float = 1e-5, *,
                  layers: torch.nn.Module | Iterable[str] | None = None) -> dict[str, torch.Tensor]:
    """The state dict of a network that the package inplace_abn trained, for our layers, which use the weight as it is.

    The original's in-place layers compute |weight| + eps. Returns a new dict in which that is stored. `eps`: that of the
    layers. `layers`: those that were in place, by a model whose InPlaceABN layers have these names, or by the names; by default
    all that have a running_mean. The original's ABN and torch's layers use the weight as it is: a network that has them too
    must name its in-place layers. Raises ValueError for a layer that has no weight in state_dict, and for a model without
    InPlaceABN."""
    if layers is None:
        names = [key.removesuffix("running_mean") for key in state_dict if key.endswith("running_mean")]
        names = [name for name in names if state_dict.get(name + "weight") is not None]
    else:
        names = [f"{name}." if name else "" for name in _in_place_layers(layers)]
        for name in names:
            if state_dict.get(name + "weight") is None:
                raise ValueError(f"load_original: state_dict has no '{name}weight', the weight of the layer "
                                 f"'{name.removesuffix('.')}'; a prefix, as DataParallel's 'module.', must be the same in both")
    converted = collections.OrderedDict(state_dict)
    if hasattr(state_dict, "_metadata"):  # the versions of the modules, which some of torch's read
        converted._metadata = state_dict._metadata
    for name in names:
        converted[name + "weight"] = state_dict[name + "weight"].abs() + eps
    return converted


def _in_place_layers(layers):
    """The names; of a model, those of its layers that write in place and have a weight."""
    if isinstance(layers, str):
        raise ValueError(f"load_original: layers takes a model or several names, got the one string '{layers}'; write "
                         f"['{layers}']")
    if not isinstance(layers, torch.nn.Module):
        return list(layers)
    names = [name for name, module in layers.named_modules(remove_duplicate=False)
             if isinstance(module, nn.BatchNormAct) and module.strategy != "standard" and module.weight is not None]
    if not names:
        raise ValueError(f"load_original: the model, a {type(layers).__name__}, has no InPlaceABN layer with a weight; pass a "
                         "model of InPlaceABN layers, or their names")
    return names

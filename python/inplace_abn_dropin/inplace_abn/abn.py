"""The modules of the original."""
from typing import Any

import torch

from palimpsest import nn

from inplace_abn.functions import activation_of, group_or_all, inplace_abn, inplace_abn_sync

_NEW_ORDER = ("eps", "momentum", "affine", "track_running_stats", "activation", "activation_param")
_OLD_ORDER = ("eps", "momentum", "affine", "activation", "activation_param")  # before 1.1


def _order(arguments):
    """The names of arguments by position: behind affine stands track_running_stats, or the activation's name."""
    return _OLD_ORDER if len(arguments) > 3 and isinstance(arguments[3], str) else _NEW_ORDER


def _named(kind, arguments, keywords):
    """The arguments by name, from either order."""
    order = _order(arguments)
    if len(arguments) > len(order):
        raise TypeError(f"{kind} takes num_features and at most {len(order)} more positional arguments, got {len(arguments)}")
    named = dict(zip(order, arguments))
    if "slope" in keywords:  # the name before 1.0
        if "activation_param" in keywords:
            raise TypeError(f"{kind} got 'activation_param' and 'slope', two names of one argument: pass activation_param alone")
        keywords["activation_param"] = keywords.pop("slope")
    for name, value in keywords.items():
        if name not in _NEW_ORDER:
            raise TypeError(f"{kind} has no argument '{name}': it takes num_features, {', '.join(_NEW_ORDER)}")
        if name in named:
            raise TypeError(f"{kind} got '{name}' twice")
        named[name] = value
    return named


class ABN(nn.BatchNormAct):
    """Batch normalization and activation by torch's own layers: ABN(num_features, eps=1e-5, momentum=0.1, affine=True,
    track_running_stats=True, activation="leaky_relu", activation_param=0.01)."""

    _strategy = "standard"

    def __init__(self, num_features: int, *arguments: Any, **keywords: Any) -> None:
        named = _named(type(self).__name__, arguments, keywords)
        named["activation"] = activation_of(named.get("activation", "leaky_relu"))
        super().__init__(num_features, in_place=True, strategy=self._strategy, **named)


class InPlaceABN(ABN):
    """ABN that writes its output over its input and saves that alone."""

    _strategy = "auto"


class InPlaceABNSync(ABN):
    """InPlaceABN with the statistics of all processes of a group: by default of torch.distributed's, if it is initialized."""

    _strategy = "auto"

    def __init__(self, num_features: int, *arguments: Any, group: "torch.distributed.ProcessGroup | None" = None,
                 **keywords: Any) -> None:
        if "devices" in keywords or (arguments and (arguments[0] is None or isinstance(arguments[0], (list, tuple)))):
            raise TypeError("InPlaceABNSync has no argument 'devices', which it had before 1.0: leave it out, run one process "
                            "per device under torch.distributed, and pass the process group as group=")
        if len(arguments) == len(_order(arguments)) + 1 and group is None:  # the group by position, as in the original
            arguments, group = arguments[:-1], arguments[-1]
        super().__init__(num_features, *arguments, **keywords)
        self.set_group(group)

    def set_group(self, group: "torch.distributed.ProcessGroup | None") -> None:
        """Called by set_active_group. The layer keeps the group's name: a group can be neither copied nor pickled."""
        self.group = getattr(group, "group_name", group)

    def _statistics_group(self):
        return group_or_all(self.group)


__all__ = ["ABN", "InPlaceABN", "InPlaceABNSync", "inplace_abn", "inplace_abn_sync"]

"""Groups of the processes that take part in a step."""
from typing import Any

import torch

_groups: dict[tuple[int, ...], Any] = {}


def active_group(active: bool) -> "torch.distributed.ProcessGroup | None":
    """The group of all processes that passed active=True, or None if there is none. Every process calls it."""
    distributed = torch.distributed
    flags = [None] * distributed.get_world_size()
    distributed.all_gather_object(flags, bool(active))
    ranks = tuple(rank for rank, flag in enumerate(flags) if flag)
    if not ranks:
        return None
    if len(ranks) == len(flags):
        return distributed.group.WORLD
    if ranks not in _groups:
        _groups[ranks] = distributed.new_group(list(ranks))
    return _groups[ranks]


def set_active_group(module: torch.nn.Module, group: "torch.distributed.ProcessGroup | None") -> None:
    """Hands the group to every module within `module` that has a method set_group."""
    for part in module.modules():
        set_group: Any = getattr(part, "set_group", None)
        if set_group is not None:
            set_group(group)

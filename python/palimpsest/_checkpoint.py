"""Runs a part of a network again in backward, in place of saving its tensors."""
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint as _torch_checkpoint


_this_thread = threading.local()


def running_again():
    """Whether this thread runs a segment again, in which running statistics must not move."""
    return getattr(_this_thread, "depth", 0) > 0


def statistics_to_move(*buffers):
    """The running statistics that a forward in training moves: in a second run copies, which nobody reads."""
    return tuple(b if b is None else b.clone() for b in buffers) if running_again() else buffers


class _StatisticsOnce:
    """In the second run, gives every module of this thread that trains its own buffers back when its forward ends: the batch
    has moved them in the first. Any module, because it need not be a normalization of torch to have statistics. But torch's
    observers and fake quantizers move those of their parts, too, and their state must fit: it moves twice.

    log: the statistics over process groups of the first run, or None."""

    def __init__(self, log):
        self._log = log

    def __enter__(self):
        if self._log is not None:
            self._log.begin_replay()
        _this_thread.depth = getattr(_this_thread, "depth", 0) + 1
        self._thread = threading.get_ident()
        self._before = []
        self._hooks = (torch.nn.modules.module.register_module_forward_pre_hook(self._keep),
                       torch.nn.modules.module.register_module_forward_hook(self._restore, always_call=True))

    def __exit__(self, *_):
        if self._log is not None:
            self._log.end()
        _this_thread.depth -= 1
        for hook in self._hooks:
            hook.remove()

    def _is_ours(self, module):
        return module.training and bool(module._buffers) and threading.get_ident() == self._thread \
            and not type(module).__module__.startswith("torch.ao.")

    def _keep(self, module, _):
        if self._is_ours(module):
            self._before.append((module, [(k, b, b.clone()) for k, b in module.named_buffers(recurse=False)]))

    def _restore(self, module, _inputs, _output):
        if self._before and self._before[-1][0] is module and threading.get_ident() == self._thread:
            with torch.no_grad():
                for name, buffer, value in self._before.pop()[1]:
                    if module._buffers.get(name) is not buffer:  # a forward may bind the name anew
                        module._buffers[name] = buffer
                    # By data: autograd of the second run saved the buffers, and would see a change of their version.
                    buffer.data.copy_(value)


class _Recorded:
    """In the first run, keeps what process groups agree on."""

    def __init__(self, log):
        self._log = log

    def __enter__(self):
        self._log.begin_recording()

    def __exit__(self, *_):
        self._log.end()


def _contexts():
    """The contexts of the two runs."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return contextlib.nullcontext(), _StatisticsOnce(None)
    log = torch.classes.palimpsest.SegmentLog()
    return _Recorded(log), _StatisticsOnce(log)


def checkpoint(fn: Callable[..., Any], *inputs: Any, preserve_rng_state: bool = True, **keywords: Any) -> Any:
    """fn(*inputs, **keywords), of which only the inputs are saved; backward runs fn again.

    fn: a function or module. Running statistics of batch normalizations move once: those that are buffers of a module that
    trains and is called, and those of palimpsest's functions, but not those of compiled functions within fn. Dropout draws the
    numbers of the first run again (preserve_rng_state=False: fn draws none). Statistics over a process group are gathered once.
    Segments nest. Hooks, torch.autograd.grad and distributed data parallelism work as without it. Everything else is
    torch.utils.checkpoint with use_reentrant=False."""
    return _torch_checkpoint(fn, *inputs, use_reentrant=False, preserve_rng_state=preserve_rng_state,
                             context_fn=_contexts, **keywords)

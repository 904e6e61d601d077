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
    """In the second run, gives every module of this thread that trains copies of its statistics to move: the batch has moved
    them in the first run.

    All buffers of floating types are statistics, and all counters (one number), of any module: it need not be a
    normalization of torch. The module has the copies until the run ends, because others may read what it wrote, and autograd
    may save them. (A TorchFunctionMode would see every F.batch_norm. But under it compiled functions save other tensors
    than in the first run: wrong gradients.)

    log: the statistics over process groups of the first run, or None."""

    def __init__(self, log):
        self._log = log

    def __enter__(self):
        if self._log is not None:
            self._log.begin_replay()
        _this_thread.depth = getattr(_this_thread, "depth", 0) + 1
        self._thread = threading.get_ident()
        self._copies = {}  # id of a buffer -> the buffer and its copy: modules may share a buffer
        self._replaced = []
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._replace)

    def __exit__(self, *_):
        if self._log is not None:
            self._log.end()
        _this_thread.depth -= 1
        self._hook.remove()
        for module, name, buffer, copy in self._replaced:
            if module._buffers.get(name) is copy:
                module._buffers[name] = buffer
        self._copies, self._replaced = {}, []

    def _replace(self, module, _):
        if torch.compiler.is_compiling() or not module.training or threading.get_ident() != self._thread:
            return
        if isinstance(module, torch.jit.ScriptModule):
            return
        for name, buffer in module._buffers.items():
            if buffer is None or not (buffer.is_floating_point() or buffer.dim() == 0):
                continue
            if id(buffer) in self._copies:
                copy = self._copies[id(buffer)][1]
            else:
                copy = buffer.clone()
                self._copies[id(buffer)] = buffer, copy
                self._copies[id(copy)] = copy, copy  # the module may run more than once
            if copy is not buffer:
                module._buffers[name] = copy
                self._replaced.append((module, name, buffer, copy))


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

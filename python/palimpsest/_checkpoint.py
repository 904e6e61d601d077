"""Runs a part of a network again in backward, in place of saving its tensors."""
import collections
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint as _torch_checkpoint


_this_thread = threading.local()


# A buffer of so many elements, at most, is kept even if its version says that the forward left it: batch normalizations move
# their statistics without a word to autograd.
_KEPT_ANYWAY = 1 << 16


def must_stay(buffer):
    """Whether a forward in training must not move this running statistic: its thread runs a segment again, and the buffer is
    none that stands for the real one meanwhile."""
    return getattr(_this_thread, "depth", 0) > 0 and id(buffer) not in _this_thread.stand_ins


def statistics_to_move(*buffers):
    """The running statistics that a forward in training moves: copies, which nobody reads, of those that must stay."""
    return tuple(b.clone() if b is not None and must_stay(b) else b for b in buffers)


def before_forward(module, _inputs):
    """The hook before the forward of every module while a segment runs."""
    if not torch.compiler.is_compiling():
        for run in getattr(_this_thread, "runs", ()):
            if run.hears(module):
                run.before(module)


def behind_forward(module, _inputs, _output):
    """The hook behind it."""
    if not torch.compiler.is_compiling():
        for run in getattr(_this_thread, "runs", ()):
            if run.hears(module):
                run.behind(module)


class _Hooks:
    """Registers the two hooks while a segment runs on any thread. They always have the same numbers: torch.compile would
    compile a network within a segment again for others."""

    def __init__(self):
        self._lock, self._runs = threading.Lock(), 0
        self._number = torch.utils.hooks.RemovableHandle(collections.OrderedDict()).id
        torchs = torch.nn.modules.module
        self._entries = ((torchs._global_forward_pre_hooks, before_forward), (torchs._global_forward_hooks, behind_forward),
                         (torchs._global_forward_hooks_always_called, True))

    def add(self):
        with self._lock:
            self._runs += 1
            for entries, value in self._entries:
                entries[self._number] = value

    def remove(self):
        with self._lock:
            self._runs -= 1
            if self._runs == 0:
                for entries, _ in self._entries:
                    del entries[self._number]


_hooks = _Hooks()


class _Run:
    """A run of a segment, which sees every module that this thread calls meanwhile, but those of torch.ao: its observers and
    fake quantizers move the buffers of their parts, too, and their state must fit.

    log: the statistics over process groups, or None. buffers: what the first run found in the modules."""

    def __init__(self, log, buffers):
        self._log, self._buffers = log, buffers

    def __enter__(self):
        _this_thread.runs = [*getattr(_this_thread, "runs", ()), self]
        _hooks.add()

    def __exit__(self, *_):
        _hooks.remove()
        _this_thread.runs = _this_thread.runs[:-1]
        if self._log is not None:
            self._log.end()

    def hears(self, module):
        return (bool(module._buffers) or isinstance(module, torch.jit.ScriptModule)) \
            and not type(module).__module__.startswith("torch.ao.")


class _Recorded(_Run):
    """In the first run, keeps what process groups agree on, and the buffers of every module that trains as its forward found
    them.

    buffers: a list by module of a dictionary by name per call: a copy, None, or the buffer itself, which stayed as it was."""

    def __enter__(self):
        if self._log is not None:
            self._log.begin_recording()
        self._running = []
        super().__enter__()

    @torch.no_grad()
    def before(self, module):
        if module.training and not isinstance(module, torch.jit.ScriptModule):
            found = {name: b if b is None else (b, None if b.is_inference() else b._version, b.clone())
                     for name, b in module._buffers.items()}
            self._running.append((module, found))

    def behind(self, module):
        if not self._running or self._running[-1][0] is not module:
            return
        kept = {}
        for name, found in self._running.pop()[1].items():
            if found is not None:
                buffer, version, copy = found
                stayed = module._buffers.get(name) is buffer and version is not None and buffer._version == version
                found = buffer if stayed and copy.numel() > _KEPT_ANYWAY else copy
            kept[name] = found
        self._buffers.setdefault(module, []).append(kept)


class _RunsAgain(_Run):
    """In the second run, each forward finds the buffers that it found in the first, and moves those: a normalization, an
    observer or a cache of a module of anybody's own. Behind the run the modules have their real buffers again, which the first
    run has moved. So a batch moves them once, and what reads them reads what it read in the first run."""

    def __enter__(self):
        if self._log is not None:
            self._log.begin_replay()
        _this_thread.depth = getattr(_this_thread, "depth", 0) + 1
        if _this_thread.depth == 1:
            _this_thread.stand_ins = set()
        self._calls, self._real, self._scripted = {}, {}, []
        super().__enter__()

    def __exit__(self, *_):
        for module, buffers in self._real.items():
            module._buffers.clear()
            module._buffers.update(buffers)
        for buffer, value in self._scripted:
            buffer.data.copy_(value)
        _this_thread.depth -= 1
        super().__exit__()

    @torch.no_grad()
    def before(self, module):
        if isinstance(module, torch.jit.ScriptModule):
            if module.training:  # its dictionary of buffers cannot be written
                self._scripted.extend((b, b.clone()) for b in module.buffers())
            return
        calls = self._buffers.get(module, [])
        call = self._calls[module] = self._calls.get(module, -1) + 1
        if call >= len(calls):
            return
        self._real.setdefault(module, dict(module._buffers))
        found = {name: b if b is None or b is module._buffers.get(name) else b.clone() for name, b in calls[call].items()}
        _this_thread.stand_ins.update(id(b) for name, b in found.items() if b is not None and b is not module._buffers.get(name))
        module._buffers.clear()
        module._buffers.update(found)

    def behind(self, module):
        pass


def _contexts():
    """The contexts of the two runs."""
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    log = torch.classes.palimpsest.SegmentLog() if grouped else None
    buffers = {}
    return _Recorded(log, buffers), _RunsAgain(log, buffers)


def checkpoint(fn: Callable[..., Any], *inputs: Any, preserve_rng_state: bool = True, **keywords: Any) -> Any:
    """fn(*inputs, **keywords), of which only the inputs are saved; backward runs fn again.

    fn: a function or module. Running statistics of batch normalizations move once: those that are buffers of a module that
    trains and is called, and those of palimpsest's functions, but not those of compiled functions within fn. Dropout draws the
    numbers of the first run again (preserve_rng_state=False: fn draws none). Statistics over a process group are gathered once.
    Segments nest. Hooks, torch.autograd.grad and distributed data parallelism work as without it. Everything else is
    torch.utils.checkpoint with use_reentrant=False."""
    contexts = {} if torch.compiler.is_compiling() else {"context_fn": _contexts}  # a compiled segment moves its statistics once
    return _torch_checkpoint(fn, *inputs, use_reentrant=False, preserve_rng_state=preserve_rng_state, **contexts, **keywords)

"""Runs a part of a network again in backward, in place of saving its tensors."""
import collections
import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint as _torch_checkpoint


_this_thread = threading.local()

# In elements. The first run copies no larger buffer, but those of normalizations: the second run finds today's value there.
_MOST_COPIED = 1 << 16
# In elements. A larger copy is dropped if the forward left the buffer as it was.
_MOST_KEPT = 1 << 12


def must_stay(buffer):
    """Whether a forward in training must not move this running statistic: its thread runs a segment again, and the buffer is
    none that gets its value back behind the run."""
    return getattr(_this_thread, "depth", 0) > 0 and buffer is not None and _borrowed.lacks(buffer)


def statistics_to_move(*buffers):
    """The running statistics that a forward in training moves: copies, which nobody reads, of those that must stay."""
    return tuple(b.clone() if must_stay(b) else b for b in buffers)


class _Borrowed:
    """The buffers that second runs move meanwhile, with the values that they get back."""

    def __init__(self):
        self._lock = threading.Lock()
        self._entries = {}  # by id: the buffer, the value before any run borrowed it, and the runs that have it, by thread
        self._storages = collections.Counter()

    def add(self, buffer, mine):
        """mine: what the calling run has borrowed: by id, the buffer and its value before."""
        if id(buffer) in mine:
            return
        value = buffer.detach().clone()
        mine[id(buffer)] = buffer, value
        with self._lock:
            if id(buffer) not in self._entries:
                self._entries[id(buffer)] = buffer, value, collections.Counter()
                self._storages[buffer.untyped_storage()._cdata] += 1
            self._entries[id(buffer)][2][threading.get_ident()] += 1

    def give_back(self, mine):
        """A run within another one of its thread leaves the value that it found, and the last run of all threads the first."""
        this = threading.get_ident()
        with self._lock:
            for key, (buffer, value) in reversed(mine.items()):
                _, first, runs = self._entries[key]
                runs[this] -= 1
                if runs[this] == 0:
                    del runs[this]
                if not runs or set(runs) == {this}:
                    # By data: autograd of the second run saved the buffers, and would see a change of their version.
                    buffer.data.copy_(value if runs else first)
                if not runs:
                    del self._entries[key]
                    storage = buffer.untyped_storage()._cdata
                    self._storages[storage] -= 1
                    if self._storages[storage] == 0:
                        del self._storages[storage]

    def lacks(self, buffer):
        return buffer.untyped_storage()._cdata not in self._storages


_borrowed = _Borrowed()


def before_forward(module, _inputs):
    """The hook before the forward of every module while a segment runs."""
    if not torch.compiler.is_compiling():
        for run in getattr(_this_thread, "runs", ()):
            if _is_heard(type(module)):
                run.before(module)


def behind_forward(module, _inputs, _output):
    """The hook behind it."""
    if not torch.compiler.is_compiling():
        for run in getattr(_this_thread, "runs", ()):
            if _is_heard(type(module)):
                run.behind(module)


@functools.lru_cache(maxsize=None)
def _is_heard(kind):
    """torch's observers and fake quantizers move the buffers of their parts, too, and their state must fit."""
    return not kind.__module__.startswith("torch.ao.")


_NOTHING: dict[str, Any] = {}


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
                    entries.pop(self._number, None)


_hooks = _Hooks()


def _buffers_of(module):
    """The buffers that a forward of the module may move, by name: in training, those that have memory."""
    if not module.training:
        return _NOTHING
    # The parts of a scripted module are not called one by one.
    buffers = dict(module.named_buffers()) if isinstance(module, torch.jit.ScriptModule) else module._buffers
    if not buffers:
        return _NOTHING
    return {name: b for name, b in buffers.items()
            if b is not None and not torch.nn.parameter.is_lazy(b) and b.layout == torch.strided}


def _pop(running, module):
    """What stands beside the module in the list of those whose forward runs; those in it have ended, too."""
    while running:
        other, beside = running.pop()
        if other is module:
            return beside
    return None


class _Run:
    """A run of a segment, which sees every module that this thread calls meanwhile.

    log: the statistics over process groups, or None. found: by module, per call, what the first run found in its buffers: by
    name the buffer, and a copy of its value or None."""

    def __init__(self, log, found):
        self._log, self._found = log, found

    def __enter__(self):
        _this_thread.runs = [*getattr(_this_thread, "runs", ()), self]
        _hooks.add()

    def __exit__(self, *_):
        _hooks.remove()
        _this_thread.runs = _this_thread.runs[:-1]
        if self._log is not None:
            self._log.end()


class _Recorded(_Run):
    """In the first run, keeps what process groups agree on, and the buffers of every module that trains as its forward found
    them."""

    def __enter__(self):
        if self._log is not None:
            self._log.begin_recording()
        self._running = []
        super().__enter__()

    @torch.no_grad()
    def before(self, module):
        buffers = _buffers_of(module)
        if buffers:
            most = math.inf if isinstance(module, _NormBase) else _MOST_COPIED
            # One that needs a gradient is written by binding its name anew.
            buffers = {name: (b, None if b.is_inference() else b._version,
                              b.clone() if b.numel() <= most and not b.requires_grad else None) for name, b in buffers.items()}
        self._running.append((module, buffers))

    @torch.no_grad()
    def behind(self, module):
        found = _pop(self._running, module)
        if found is None:
            return
        kept = {} if found else _NOTHING
        for name, (buffer, version, copy) in found.items():
            if copy is not None and copy.numel() > _MOST_KEPT and version is not None and buffer._version == version \
                    and (torch.equal(buffer, copy) if buffer.is_cpu else not isinstance(module, _NormBase)):
                copy = None
            kept[name] = (buffer, copy)
        self._found.setdefault(module, []).append(kept)


class _RunsAgain(_Run):
    """In the second run, each forward finds the buffers that it found in the first, and moves those: a normalization, an
    observer or a cache of a module of anybody's own. Behind the run they have the values of before it, which the first run has
    moved. So a batch moves them once, and what reads them behind the forward reads what it read in the first run."""

    def __enter__(self):
        if self._log is not None:
            self._log.begin_replay()
        _this_thread.depth = getattr(_this_thread, "depth", 0) + 1
        self._calls, self._mine, self._bound, self._running = collections.Counter(), {}, {}, []
        super().__enter__()

    @torch.no_grad()
    def __exit__(self, *_):
        for (module, name), (before, last) in self._bound.items():
            if module._buffers.get(name) is not last:
                continue  # somebody else has bound the name since
            if before is None:
                module._buffers.pop(name, None)
            else:
                module._buffers[name] = before
        _borrowed.give_back(self._mine)
        _this_thread.depth -= 1
        super().__exit__()

    @torch.no_grad()
    def before(self, module):
        calls = self._found.get(module, ())
        found = calls[self._calls[module]] if self._calls[module] < len(calls) else _NOTHING
        self._calls[module] += 1
        scripted = isinstance(module, torch.jit.ScriptModule)  # its dictionary of buffers cannot be written
        self._running.append((module, _NOTHING if scripted or not module._buffers else dict(module._buffers)))
        for buffer in _buffers_of(module).values():
            _borrowed.add(buffer, self._mine)
        for name, (buffer, copy) in found.items():
            _borrowed.add(buffer, self._mine)
            if not scripted and module._buffers.get(name) is not buffer:  # a forward has bound the name anew
                module._buffers[name] = buffer
            if copy is not None:
                buffer.data.copy_(copy)

    def behind(self, module):
        before = _pop(self._running, module)
        if before is None or isinstance(module, torch.jit.ScriptModule) or not (before or module._buffers):
            return
        for name in {**before, **module._buffers}:
            now = module._buffers.get(name)
            if now is not before.get(name):
                first, _ = self._bound.get((module, name), (before.get(name), None))
                self._bound[module, name] = first, now


def _contexts():
    """The contexts of the two runs."""
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    log = torch.classes.palimpsest.SegmentLog() if grouped else None
    found = {}
    return _Recorded(log, found), _RunsAgain(log, found)


def checkpoint(fn: Callable[..., Any], *inputs: Any, preserve_rng_state: bool = True, **keywords: Any) -> Any:
    """fn(*inputs, **keywords), of which only the inputs are saved; backward runs fn again.

    fn: a function or module. Running statistics of batch normalizations move once: those that are buffers of a module that
    trains and is called, and those of palimpsest's functions, but not those of compiled functions within fn. Dropout draws the
    numbers of the first run again (preserve_rng_state=False: fn draws none). Statistics over a process group are gathered once.
    Segments nest. Hooks, torch.autograd.grad and distributed data parallelism work as without it. Everything else is
    torch.utils.checkpoint with use_reentrant=False."""
    contexts = {} if torch.compiler.is_compiling() else {"context_fn": _contexts}  # a compiled segment moves its statistics once
    return _torch_checkpoint(fn, *inputs, use_reentrant=False, preserve_rng_state=preserve_rng_state, **contexts, **keywords)

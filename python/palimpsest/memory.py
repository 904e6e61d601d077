"""What a training step keeps for backward and needs at its peak, on the CPU, without another allocator."""
import contextlib
import dataclasses
import gc
import warnings
from collections.abc import Iterator

import torch
from torch.autograd.profiler import profile
from torch.multiprocessing.reductions import StorageWeakRef


_MARK = "palimpsest.forward_done"


@dataclasses.dataclass
class Measurement:
    """Bytes beyond those at the begin of measure(), filled when it ends."""
    peak_bytes: int = 0   #: the most bytes of tensors at a time
    end_bytes: int = 0    #: at the end
    kept_bytes: int = 0   #: at forward_done(): what the graph keeps for backward, with the output; 0 if it was not called
    #: (seconds since the begin, bytes) at each change
    timeline: list[tuple[float, int]] = dataclasses.field(default_factory=list)

    def forward_done(self) -> None:
        """Marks the end of the forward pass, for kept_bytes."""
        with torch.profiler.record_function(_MARK):
            pass


_seen: set[StorageWeakRef] = set()  # allocated in a measurement: the profiler sees when that memory is freed in a later one


def _storages():
    """The bytes of the storages of all tensors on the CPU that Python holds."""
    found = {}
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    with torch._C.DisableTorchFunctionSubclass():
        tensors = [o for o in gc.get_objects() if type(o) in plain and not torch.nn.parameter.is_lazy(o)]
        for t in [*tensors, *(t.grad for t in tensors if t.is_leaf and t.grad is not None)]:
            if t.is_cpu and t.layout == torch.strided and torch._C._has_storage(t):
                storage = t.untyped_storage()
                found[StorageWeakRef(storage)] = storage.nbytes()
    return found


def _warn_of_freed(before):
    """Says how much of `before` was freed without the profiler's knowledge."""
    freed = sum(nbytes for storage, nbytes in before.items() if storage.expired() and storage not in _seen)
    if freed:
        warnings.warn(f"palimpsest: {freed:,} bytes of tensors from before were freed in measure(), and count as if they were still "
                      "there: free them before it (zero_grad(), del loss), or measure the next step", RuntimeWarning, stacklevel=4)


def _remember_what_is_new(before):
    _seen.difference_update([storage for storage in _seen if storage.expired()])
    _seen.update(_storages().keys() - before.keys())


@contextlib.contextmanager
def measure() -> Iterator[Measurement]:
    """Counts the bytes of tensors that are allocated and freed on the CPU, on this thread and on those of autograd.

        with palimpsest.memory.measure() as m:
            loss = model(x).sum()
            m.forward_done()
            loss.backward()
        print(m.kept_bytes, m.peak_bytes)

    It reads the events of torch's profiler, which slows the step; take the time of another one. The profiler does not see
    that memory is freed which was allocated before the first measurement: a warning says how much of it there was. Raises
    RuntimeError within another measurement or profile."""
    if torch.autograd._profiler_enabled():
        raise RuntimeError("measure() reads the events of torch's profiler, which runs already: end the measurement or the profile "
                           "around it first")
    result = Measurement()
    gc.collect()  # garbage from before
    before = _storages()
    with profile(profile_memory=True, use_kineto=True) as profiled:
        yield result
    _warn_of_freed(before)
    _remember_what_is_new(before)
    events = profiled.kineto_results.events()
    done_at = max((e.start_ns() for e in events if e.name() == _MARK), default=None)
    allocations = (e for e in events if e.name() == "[memory]" and e.device_type() == torch.autograd.DeviceType.CPU)
    begin = profiled.kineto_results.trace_start_ns()
    live = 0
    for at, change in sorted(((e.start_ns(), e.nbytes()) for e in allocations), key=lambda event: event[0]):
        live += change
        result.peak_bytes = max(result.peak_bytes, live)
        result.timeline.append(((at - begin) * 1e-9, live))
        if done_at is not None and at <= done_at:
            result.kept_bytes = live
    result.end_bytes = live

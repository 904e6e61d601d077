"""What a training step keeps for backward and needs at its peak, on the CPU, without another allocator."""
import contextlib
import dataclasses
import gc
from collections.abc import Iterator

import torch
from torch.autograd.profiler import profile


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


@contextlib.contextmanager
def measure() -> Iterator[Measurement]:
    """Counts the bytes of tensors that are allocated and freed on the CPU, on every thread of the step.

        with palimpsest.memory.measure() as m:
            loss = model(x).sum()
            m.forward_done()
            loss.backward()
        print(m.kept_bytes, m.peak_bytes)

    It reads the events of torch's profiler, which slows the step; take the time of another one. Measurements do not nest."""
    result = Measurement()
    gc.collect()  # garbage from before, freed in between, would count as negative bytes
    with profile(profile_memory=True, use_kineto=True) as profiled:
        yield result
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

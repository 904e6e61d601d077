"""Time of the device, of the host, and of single kernels."""
import math
import re
import statistics
import time

import torch

DEVICE = "cuda"
LEAST_SLEEP = 1.0  # milliseconds


class Clock:
    """Times work on the device. The device sleeps while the host queues the work, so that the host's time does not count:
    1.5 times as long as the host took to queue the same work before. (A queue holds about 1,024 launches. Of a step with
    more of them, the host must queue the rest while the device works.)"""

    def __init__(self):
        cycles = 10_000_000
        # The first call loads the kernel, and an idle device raises its clock: the fastest of some calls.
        self.cycles_per_ms = cycles / min(self.between_events(lambda: torch.cuda._sleep(cycles), sleep_ms=0) for _ in range(5))

    def between_events(self, work, sleep_ms):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        if sleep_ms:
            torch.cuda._sleep(int(sleep_ms * self.cycles_per_ms))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def timed(self, work, prepare=lambda: None):
        """A function that prepares and times `work` once, in milliseconds of the device. Its first two calls also measure how
        long the host takes to queue `work`: the shorter time, because the first one may load kernels. `run.queued`: this
        time, in milliseconds."""
        def run():
            prepare()
            if run.calls < 2:
                run.calls += 1
                run.queued = min(run.queued, queue_milliseconds(work))
                prepare()
            return self.between_events(work, max(LEAST_SLEEP, 1.5 * run.queued))

        run.calls, run.queued = 0, math.inf
        return run


def queue_milliseconds(work):
    """The host's time to queue `work` for a device that has nothing else to do."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def kernel_milliseconds(work, repeats, activity=None):
    """{short name of a kernel of ours: median milliseconds of one launch}; empty if the driver shows no kernels."""
    from torch.profiler import ProfilerActivity, profile

    work()
    torch.cuda.synchronize()
    with profile(activities=[activity or ProfilerActivity.CUDA]) as profiled:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    return medians_of_kernels((event.name, event.time_range.elapsed_us()) for event in profiled.events())


def medians_of_kernels(events):
    """`events`: pairs of a kernel's name and microseconds. Kernels of others do not count."""
    times = {}
    for name, microseconds in events:
        if "palimpsest" in name and (short := re.search(r"\w+_kernel\b", name)):
            times.setdefault(short[0], []).append(microseconds)
    return {name: statistics.median(values) / 1e3 for name, values in times.items()}

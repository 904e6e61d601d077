"""The measurements of a GPU on a machine that has none: what the device would do, the CPU does. Nothing is timed for its
own sake."""
import pathlib
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
from gpu import device_time, measuring, row_log  # noqa: E402
from support import milliseconds_of  # noqa: E402


class HostClock:
    """A clock with the functions of device_time.Clock."""

    def timed(self, work, prepare=lambda: None):
        def run():
            prepare()
            return milliseconds_of(work)

        run.queued = 1.0
        return run


def context_on_the_cpu(monkeypatch, package="no package"):
    monkeypatch.setattr(device_time, "DEVICE", "cpu")
    monkeypatch.setattr(device_time, "Clock", HostClock)
    monkeypatch.setattr(device_time, "queue_milliseconds", milliseconds_of)
    context = measuring.Context(2, row_log.Budget(), lambda: package)
    context.found_bandwidth = 1e9
    return context


def work(kind, name, arguments=None, **limits):
    return types.SimpleNamespace(piece="layers", kind=kind, name=name, seconds=0, arguments=arguments or {}, limits=limits)

"""Does units of the plan: writes their rows, and says of each unit that was not done why."""
import contextlib
import gc

import torch

from gpu import device_time, estimates, row_log
from gpu.row_log import FAILED, MEASURED, NOT_RUN, PASSED, DeviceLost
from support import Row, Spread, exactly, interleave


class Wrong(Exception):
    """A result differs from what it is compared with."""


def plain_row(name, outcome, reason=""):
    return {"row": name, "outcome": outcome, **({"reason": reason} if reason else {})}


def timed_row(name, opponent_name, opponent, measured, limit, unit="ms"):
    row = Row(name, opponent_name, unit, opponent, measured, limit)
    outcome = {None: MEASURED, True: PASSED, False: FAILED}[row.holds]
    return {"row": name, "outcome": outcome, **row.json(), **estimated(name, measured.median, unit, row.ratio)}


def figure_row(name, value, unit):
    """A figure without an opponent; `value`: a number or a Spread."""
    spread = value if isinstance(value, Spread) else exactly(value)
    return {"row": name, "outcome": MEASURED, "unit": unit, "measured": vars(spread),
            **estimated(name, spread.median, unit, None)}


def estimated(name, value, unit, ratio):
    found = estimates.compared(name, value, unit, ratio)
    return {"estimates": found} if found else {}


class Context:
    """What the units share: repeats, clock, the bandwidth of a copy, the opponent package."""

    def __init__(self, repeats, budget, find_package=lambda: "no package is named"):
        self.repeats, self.budget, self.find_package = repeats, budget, find_package
        self.clock = device_time.Clock()
        self.found_bandwidth = self.found_package = None

    def bandwidth(self):
        """Bytes per second, read and written, of a copy of one GiB within the device's memory."""
        if self.found_bandwidth is None:
            size = 1 << 30 if device_time.DEVICE == "cuda" else 1 << 20
            source, target = (torch.empty(size, dtype=torch.uint8, device=device_time.DEVICE) for _ in range(2))
            spread, = interleave([self.clock.timed(lambda: target.copy_(source))], self.repeats)
            self.found_bandwidth = 2 * size / (spread.median * 1e-3)
        return self.found_bandwidth

    def package(self):
        """The layer of the package, or a text that says why there is none."""
        if self.found_package is None:
            self.found_package = self.find_package()
        return self.found_package


def device_is_lost(error):
    """Whether an error of CUDA has spoiled the device for this process: every later call fails as well."""
    lost = getattr(torch, "AcceleratorError", None)
    return (lost and isinstance(error, lost)) or "CUDA error" in str(error)


def rows_of(work, kinds, context):
    """Does one unit of the plan and returns its rows, whatever happens. Raises DeviceLost with them if no other unit can
    follow in this process."""
    try:
        return kinds[work.kind](context, work, **work.arguments)
    except torch.OutOfMemoryError:
        return [plain_row(work.name, NOT_RUN, "the device has too little memory for it")]
    except Wrong as error:
        return [plain_row(work.name, FAILED, str(error))]
    except Exception as error:  # whatever a broken kernel or compiler raises is a row, and the next unit follows
        text = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['it says nothing'])[0]}"
        rows = [plain_row(work.name, FAILED, text)]
        if device_is_lost(error):
            raise DeviceLost(rows) from error
        return rows
    finally:
        gc.collect()
        if device_time.DEVICE == "cuda" and torch.cuda.is_available():
            with contextlib.suppress(RuntimeError):  # a lost device has no cache to empty
                torch.cuda.empty_cache()


def measure(works, kinds, context, log, say=print):
    """Does the units of the plan; `kinds`: {kind: function}. Returns the exit status."""
    return row_log.carry_out(works, lambda work: rows_of(work, kinds, context), log, context.budget, say)

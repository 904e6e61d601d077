"""What a reader of the CUDA sources computed, before any GPU ran them, for an H200 (132 multiprocessors, a copy of 4.3 TB/s):
the first run on a GPU tells which of these numbers were wrong. They are predictions and no limits."""
import dataclasses

HEADLINE = "[64, 256, 56, 56] channels-last bf16"
SMALLEST = "[64, 2048, 7, 7] channels-last bf16"
POOL = "max pooling 3x3/2 [128, 64, 112, 112] NCHW bf16"
TOLERANCE = 1.25  # a figure beyond this factor of the estimated range is a wrong estimate


@dataclasses.dataclass(frozen=True)
class Estimate:
    of: str  # which state of the code, or which way to get there
    low: float
    high: float
    unit: str


def ms(of, low, high=None):
    return Estimate(of, low, low if high is None else high, "ms")


READ = "as the code was read"
MENDED = "with the proposed changes"

# {name of a row: estimates of its `measured`}
ESTIMATES = {
    "a copy on the device": [Estimate(READ, 4300, 4300, "GB/s")],
    f"{HEADLINE}: a copy of 8 passes": [ms(READ, 0.250), ms(MENDED, 0.205, 0.210)],
    f"{SMALLEST}: a copy of 5 passes": [ms(READ, 0.035)],
    f"{HEADLINE}: statistics_kernel": [ms(READ, 0.026)],
    f"{HEADLINE}: apply_kernel": [ms(READ, 0.050)],
    f"{HEADLINE}: backward_reduce_kernel": [ms(READ, 0.065, 0.080), ms(MENDED, 0.050)],
    f"{HEADLINE}: backward_apply_kernel": [ms(READ, 0.085, 0.095), ms(MENDED, 0.075)],
    f"{SMALLEST}: resident_backward_kernel": [ms(READ, 0.015, 0.020)],
    f"{POOL}, forward": [ms(READ, 0.3)],
    f"{POOL}, backward": [ms(READ, 1.8)],
    "host time of a layer": [ms(READ, 0.075, 0.090)],
    "a channel that z does not tell": [ms(READ, 0.1)],
    "ResNeXt-101, batch 128, bf16": [ms(READ, 130)],
    "ResNet-50, batch 64, bf16 autocast": [ms(READ, 22)],
    "ResNet-50, batch 64, bf16 autocast: host": [ms(READ, 15, 18)],
}
# V = 1: 15 to 25 % of the bandwidth of a copy, so 4 to 6.7 times its time; narrow channels: 1.5 to 3 times.
RATIOS = {
    **{f"[64, {c}, 224, {w}] channels-last bf16: a copy of 8 passes": [Estimate(READ, 4, 6.7, "times a copy")]
       for c, w in ((19, 188), (3, 1194))},
    **{f"[64, {c}, 224, {w}] channels-last bf16: a copy of 8 passes": [Estimate(READ, 1.5, 3, "times a copy")]
       for c, w in ((32, 112), (16, 224), (8, 448))},
    f"{HEADLINE}: eager": [Estimate(READ, 0.60, 0.70, "times eager")],
}


def compared(name, measured, unit, ratio):
    """The estimates of a row beside its figures: `ratio` = measured / estimate (the nearest end of its range), `wrong` if
    the figure is beyond TOLERANCE of the range."""
    pairs = [(estimate, measured) for estimate in ESTIMATES.get(name, ())] + [(each, ratio) for each in RATIOS.get(name, ())]
    result = []
    for estimate, value in pairs:
        if value is None or estimate in ESTIMATES.get(name, ()) and estimate.unit != unit:
            raise ValueError(f"the row '{name}' has {value} {unit}, its estimate is in {estimate.unit}")
        nearest = min(max(value, estimate.low), estimate.high)
        share = value / nearest
        result.append({**dataclasses.asdict(estimate), "ratio": share, "wrong": not 1 / TOLERANCE <= share <= TOLERANCE})
    return result

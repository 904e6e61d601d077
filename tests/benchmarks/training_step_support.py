"""The parts that the tests of the benchmarks of whole training steps share."""
import os
import pathlib
import sys

from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))

sys.path.insert(0, str(ROOT / "benchmarks"))
import support  # noqa: E402


def tiny():
    """One residual block of torchvision between a stem and a classifier."""
    from torchvision.models.resnet import BasicBlock
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), BasicBlock(8, 8),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def run(benchmark, monkeypatch, capsys, *arguments):
    """Runs a benchmark with the tiny network in this process: (exit status, stdout, stderr)."""
    for name, value in support.RETAINING_MALLOC.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PALIMPSEST_LIBRARY", "")  # set by the benchmark, and restored
    monkeypatch.setattr(benchmark, "NETWORKS", {"tiny": tiny})
    monkeypatch.setattr(sys, "argv", [benchmark.__file__, "--build", str(BUILD), "--batch", "4", "--size", "16", "--repeats", "1",
                                      *map(str, arguments)])
    try:
        status = benchmark.main()
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()

"""The benchmark of the upsampled loss on a small case: what it prints, and that it finds a wrong gradient."""
import os
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
SCRIPT = ROOT / "benchmarks/upsampled_loss_time.py"

sys.path.insert(0, str(SCRIPT.parent))
import support  # noqa: E402
import upsampled_loss_time as benchmark  # noqa: E402

torch.set_num_threads(1)


def run(monkeypatch, capsys):
    for name, value in support.RETAINING_MALLOC.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(benchmark, "CASES", [((2, 5, 4, 6), (32, 48))])
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--build", str(BUILD), "--repeats", "1"])
    return benchmark.main(), *capsys.readouterr()


def test_each_case_has_a_row_per_layout_for_the_time_and_one_for_the_memory(monkeypatch, capsys):
    status, printed, _ = run(monkeypatch, capsys)
    assert status == 0
    for claim in ("NCHW", "NCHW, kept + peak", "NCHW, bootstrapped", "channels-last, bootstrapped"):
        assert f"[2, 5, 4, 6] to 32x48 {claim} " in printed


def test_another_choice_of_pixels_is_a_wrong_gradient(monkeypatch, capsys):
    ours = benchmark.ours
    monkeypatch.setattr(benchmark, "ours", lambda logits, targets, share: ours(logits, targets, min(1, share * 1.02)))
    status, _, errors = run(monkeypatch, capsys)
    assert status == 1 and "the gradient differs" in errors

"""The loss and the predictions of upsampled logits against torch's interpolate, cross_entropy and argmax."""
import pytest
import torch
from torch.nn import functional as F

import palimpsest
from palimpsest import functional


def inputs(dtype=torch.float64, classes=6, ignore_index=-100):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, classes, 5, 7, generator=generator, dtype=torch.float64).mul(2).to(dtype).requires_grad_()
    targets = torch.randint(classes, (2, 20, 33), generator=generator)
    targets[torch.rand(targets.shape, generator=generator) < 0.2] = ignore_index
    return logits, targets


def gradients(loss, logits):
    loss.backward()
    gradient, logits.grad = logits.grad, None
    return gradient


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("options", [{}, {"weight": torch.rand(6, dtype=torch.float64)}, {"label_smoothing": 0.3}])
def test_it_is_torchs_loss_of_the_interpolated_logits(align_corners, options):
    logits, targets = inputs()
    ours = functional.upsampled_cross_entropy(logits, targets, align_corners=align_corners, **options)
    wide = F.interpolate(logits, targets.shape[1:], mode="bilinear", align_corners=align_corners)
    theirs = F.cross_entropy(wide, targets, **options)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(ours, logits), gradients(theirs, logits), rtol=0, atol=1e-14)


@pytest.mark.parametrize("options", [{"bootstrap_share": 0.25}, {"bootstrap_probability": 0.3},
                                     {"bootstrap_share": 0.5, "bootstrap_probability": 0.2, "label_smoothing": 0.1,
                                      "weight": torch.rand(6, dtype=torch.float64)}])
def test_what_other_devices_compute_is_the_same(options):
    logits, targets = inputs(ignore_index=255)
    arguments = {"weight": None, "ignore_index": 255, "label_smoothing": 0.0, "align_corners": False, "share": 1.0,
                 "probability": 1.0}
    arguments |= {name.removeprefix("bootstrap_"): value for name, value in options.items()}
    ours = functional.upsampled_cross_entropy(logits, targets, ignore_index=255, **options)
    theirs = functional._torchs_upsampled_cross_entropy(logits, targets, **arguments)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(ours, logits), gradients(theirs, logits), rtol=0, atol=1e-14)


@pytest.mark.parametrize("change", [{"weight": torch.ones(6, dtype=torch.int64)}, {"weight": torch.zeros(6)},
                                    {"nan": True, "probability": 0.9}])
def test_what_other_devices_compute_is_the_same_at_the_edges(change):
    logits, targets = inputs(torch.float32, ignore_index=255)
    if change.pop("nan", False):
        logits = torch.full_like(logits, torch.nan)
    arguments = {"weight": None, "ignore_index": 255, "label_smoothing": 0.1, "align_corners": False, "share": 1.0,
                 "probability": 1.0} | change
    ours = functional.upsampled_cross_entropy(logits, targets, weight=arguments["weight"], ignore_index=255, label_smoothing=0.1,
                                              bootstrap_probability=arguments["probability"])
    torch.testing.assert_close(functional._torchs_upsampled_cross_entropy(logits, targets, **arguments), ours, equal_nan=True)


@pytest.mark.parametrize("change", [{"targets": -100}, {"weight": torch.zeros(6)}])
def test_nothing_counts(change):
    logits, targets = inputs(torch.float32)
    targets = torch.full_like(targets, change["targets"]) if "targets" in change else targets
    weight = change.get("weight")
    for loss in (functional.upsampled_cross_entropy(logits, targets, weight=weight),
                 functional._torchs_upsampled_cross_entropy(logits, targets, weight, -100, 0.0, False, 1.0, 1.0)):
        assert loss == 0 and gradients(loss, logits).count_nonzero() == 0


def test_predictions_are_those_of_the_interpolated_logits():
    logits, targets = inputs()
    wide = F.interpolate(logits, targets.shape[1:], mode="bilinear")
    assert functional.upsampled_argmax(logits.detach(), targets.shape[1:]).equal(wide.argmax(1))


def test_it_works_under_autocast_and_export():
    logits, targets = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = functional.upsampled_cross_entropy(F.conv2d(logits, torch.ones(6, 6, 1, 1)), targets)
    assert loss.dtype == torch.float32 and gradients(loss, logits).isfinite().all()

    class Head(torch.nn.Module):
        def forward(self, x):
            return functional.upsampled_argmax(x, (20, 33))

    program = torch.export.export(Head(), (logits.detach(),))
    assert "palimpsest" not in program.graph_module.code
    assert program.module()(logits.detach()).equal(Head()(logits.detach()))


def test_no_tensor_of_the_images_size_is_made():
    logits, targets = torch.randn(2, 20, 32, 32).requires_grad_(), torch.randint(20, (2, 256, 256))
    with palimpsest.memory.measure() as m:
        loss = functional.upsampled_cross_entropy(logits, targets)
        m.forward_done()
        loss.backward()
    small = logits.nbytes
    assert m.kept_bytes <= small + 1024 and m.peak_bytes <= 2 * small + 4096


def test_bad_input_is_refused():
    logits, targets = inputs(torch.float32)
    with pytest.raises(IndexError, match=r"a class in \[0, 6\) or ignore_index -100, got 9"):
        functional.upsampled_cross_entropy(logits, targets.masked_fill(targets == 1, 9))
    for bad, says in (({"label_smoothing": -1.0}, "label_smoothing"), ({"bootstrap_share": 0.0}, "bootstrap_share"),
                      ({"weight": torch.ones(5)}, "one number per class, 6")):
        with pytest.raises(RuntimeError, match=says):
            functional.upsampled_cross_entropy(logits, targets, **bad)
    with pytest.raises(RuntimeError, match=r"\(N, H, W\)"):
        functional.upsampled_cross_entropy(logits, targets[0])

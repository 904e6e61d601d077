"""Max pooling on a GPU beyond what test_operators_gpu.py runs: every kind of window, and tensors whose indices need 64 bits.
Needs a GPU; tests/kernels/cuda/max_pool_test.cpp has the emulated device."""
import pathlib
import sys

import pytest
import torch
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_operators_gpu import DEVICE, LAYOUTS, LIMITS, REASON, max_pool2d  # noqa: E402

pytestmark = pytest.mark.skipif(bool(REASON) or DEVICE == "cpu", reason=REASON or "needs a GPU")


@pytest.mark.parametrize("window", [(3, 2, 1, 1), (3, 2, 0, 1), (2, 2, 0, 1), (2, 2, 1, 1), (3, 1, 1, 1), (5, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows_of_every_kind_are_libtorchs(layout, window):
    kernel, stride, padding, dilation = window
    for dtype, limit in LIMITS.items():
        for channels in (5, 16):
            for ceil_mode in (False, True):
                x = torch.randn(3, channels, 30, 33, device=DEVICE).to(dtype).contiguous(memory_format=LAYOUTS[layout])
                x[0, 0, 3, 4] = float("nan")
                x[1] = x[1].round()  # equal values
                x.requires_grad_()
                want = functional.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)
                got = max_pool2d(x, [kernel] * 2, [stride] * 2, [padding] * 2, [dilation] * 2, ceil_mode)
                assert torch.equal(got.nan_to_num(77), want.nan_to_num(77))
                dz = torch.randn(want.shape, device=DEVICE).to(dtype)
                g, w = (torch.autograd.grad(z, x, dz)[0].double() for z in (got, want))
                assert (g - w).norm() <= limit * w.norm()


@pytest.mark.skipif(not REASON and DEVICE == "cuda" and torch.cuda.get_device_properties(0).total_memory < 40e9,
                    reason="needs 40 GB of GPU memory")
def test_a_tensor_of_more_than_two_to_the_31_values_is_pooled_as_its_images_are():
    x = torch.empty(33, 64, 1024, 1024, dtype=torch.float16, device=DEVICE).uniform_(-1, 1).requires_grad_()
    assert x.numel() > 2**31
    z = max_pool2d(x, [3, 3], [2, 2], [1, 1])
    dz = torch.rand_like(z)
    (dx,) = torch.autograd.grad(z, x, dz)
    for image in (0, 16, 31, 32):
        own = x[image:image + 1].detach().requires_grad_()
        z_own = max_pool2d(own, [3, 3], [2, 2], [1, 1])
        assert torch.equal(z_own, z[image:image + 1])
        assert torch.equal(torch.autograd.grad(z_own, own, dz[image:image + 1])[0], dx[image:image + 1])

"""ResNet-50 with pre-activation, in f32 and under autocast, with libtorch's layers and with ours: a step on a GPU."""
import contextlib

import torch
from torch.nn import functional

import preact_resnext

RESNET50 = dict(blocks=(3, 4, 6, 3), width=64, groups=1, expansion=4)
SCALE_OF_F16 = 1024


class Side(preact_resnext.Side):
    """Weights and optimizer in f32; the network computes in `precision`, with a constant loss scale in f16."""

    def __init__(self, kind, images, targets, device, precision, **shape):
        super().__init__(kind, images, targets, device, **(shape or RESNET50))
        self.precision, self.scale = precision, SCALE_OF_F16 if precision == torch.float16 else 1

    def loss(self):
        reduced = self.precision != torch.float32
        with torch.autocast(self.images.device.type, self.precision if reduced else torch.bfloat16, enabled=reduced,
                            cache_enabled=False):
            logits = self.network(self.images)
        return functional.cross_entropy(logits.float(), self.targets)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss()
        (loss * self.scale).backward()
        if self.scale != 1:  # no check of the gradients: nothing may wait for the device
            torch._foreach_mul_([p.grad for p in self.network.parameters()], 1 / self.scale)
        self.optimizer.step()
        return loss.detach()


@contextlib.contextmanager
def exact_f32():
    """No TF32: products of f32 values are computed in f32."""
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [each.allow_tf32 for each in backends]
    try:
        for each in backends:
            each.allow_tf32 = False
        yield
    finally:
        for each, allowed in zip(backends, before):
            each.allow_tf32 = allowed

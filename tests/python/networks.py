"""The networks that convert() is shown on. Those of packages that are not installed are skipped by name."""
import importlib

import pytest
import torch
from torch import nn


def from_package(package, make):
    """make(module) of an installed package; a test that asks for another one is skipped, and says so."""
    def build():
        return make(pytest.importorskip(package, reason=f"{package} is not installed: scripts/install_networks installs it"))
    return build


def _torchvision(name, **keywords):
    return from_package("torchvision.models", lambda models: getattr(models, name)(**keywords))


def _timm(name):
    return from_package("timm", lambda timm: timm.create_model(name))


def _unet(**keywords):
    def make(smp):
        if keywords:
            importlib.import_module("inplace_abn")  # the drop-in
        return smp.Unet("resnet18", encoder_weights=None, **keywords)
    return from_package("segmentation_models_pytorch", make)


class _Activated(nn.Sequential):
    def __init__(self, c_in, c_out, kernel, act, stride=1, norm=nn.BatchNorm2d):
        super().__init__(nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False), norm(c_out), act)


class _SplitStage(nn.Module):
    """YOLO's cross-stage block: half of the channels go through bottlenecks, and everything is concatenated."""

    def __init__(self, c, n):
        super().__init__()
        self.cv1 = _Activated(c, c, 1, nn.SiLU(inplace=True))
        self.m = nn.ModuleList(nn.Sequential(_Activated(c // 2, c // 2, 3, nn.SiLU(inplace=True)),
                                             _Activated(c // 2, c // 2, 3, nn.SiLU(inplace=True))) for _ in range(n))
        self.cv2 = _Activated(c + n * c // 2, c, 1, nn.SiLU(inplace=True))

    def forward(self, x):
        parts = list(self.cv1(x).chunk(2, 1))
        for block in self.m:
            parts.append(parts[-1] + block(parts[-1]))
        return self.cv2(torch.cat(parts, 1))


class YoloLike(nn.Module):
    """Stages of strided convolutions and split blocks, SiLU, a head per scale."""

    def __init__(self, width=16, classes=5):
        super().__init__()
        stages, c = [], 3
        for i in range(3):
            c_out = width * 2 ** i
            stages.append(nn.Sequential(_Activated(c, c_out, 3, nn.SiLU(inplace=True), stride=2), _SplitStage(c_out, 2)))
            c = c_out
        self.stages = nn.ModuleList(stages)
        self.heads = nn.ModuleList(nn.Sequential(_Activated(width * 2 ** i, width, 3, nn.SiLU()), nn.Conv2d(width, classes, 1))
                                   for i in range(3))

    def forward(self, x):
        out = []
        for stage, head in zip(self.stages, self.heads):
            x = stage(x)
            out.append(head(x))
        return out


class NnUnetLike(nn.Module):
    """A U-Net with leaky ReLU, strided convolutions down and transposed ones up, and an output per resolution."""

    def __init__(self, width=8, depth=3, norm=nn.BatchNorm2d):
        super().__init__()
        act = nn.LeakyReLU(0.01, inplace=True)

        def stage(c_in, c_out, stride):
            return nn.Sequential(_Activated(c_in, c_out, 3, act, stride, norm), _Activated(c_out, c_out, 3, act, norm=norm))

        c = [width * 2 ** i for i in range(depth)]
        self.down = nn.ModuleList(stage(3 if i == 0 else c[i - 1], c[i], 1 if i == 0 else 2) for i in range(depth))
        self.up = nn.ModuleList(nn.ConvTranspose2d(c[i + 1], c[i], 2, 2) for i in reversed(range(depth - 1)))
        self.merge = nn.ModuleList(stage(2 * c[i], c[i], 1) for i in reversed(range(depth - 1)))
        self.outputs = nn.ModuleList(nn.Conv2d(c[i], 4, 1) for i in reversed(range(depth - 1)))

    def forward(self, x):
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
        out = []
        for up, merge, output, skip in zip(self.up, self.merge, self.outputs, reversed(skips[:-1])):
            x = merge(torch.cat([up(x), skip], 1))
            out.append(output(x))
        return out[::-1]


# name: (how to make it, size of the images, the most that it may keep of eager's bytes, or None)
NETWORKS = {
    "resnet50": (_torchvision("resnet50"), 64, 0.56),
    "resnext50": (_torchvision("resnext50_32x4d"), 64, 0.56),
    "densenet121": (_torchvision("densenet121"), 64, 0.35),
    # Networks with few layers, for the tests that take long.
    "resnext_small": (from_package("torchvision.models.resnet", lambda m: m.ResNet(
        m.Bottleneck, [1, 1, 1, 1], groups=32, width_per_group=4, replace_stride_with_dilation=[False, True, True])), 64, 0.60),
    "efficientnet_small": (from_package("torchvision.models.efficientnet", lambda m: m.EfficientNet(
        [m.MBConvConfig(1, 3, 1, 16, 16, 1, 1, 1), m.MBConvConfig(6, 3, 2, 16, 24, 2, 1, 1)], 0.2)), 64, 0.40),
    "mobilenet_v2_small": (_torchvision("mobilenet_v2", inverted_residual_setting=[[1, 16, 1, 1], [6, 24, 2, 2]]), 64, 0.45),
    "densenet_small": (_torchvision("DenseNet", growth_rate=8, block_config=(2, 2), num_init_features=16), 64, 0.40),
    "efficientnet_b0": (_torchvision("efficientnet_b0"), 64, 0.36),
    "mobilenet_v3_large": (_torchvision("mobilenet_v3_large"), 64, 0.56),
    "mobilenet_v3_small": (_torchvision("mobilenet_v3_small"), 64, 0.56),
    "mobilenet_v2": (_torchvision("mobilenet_v2"), 64, 0.56),
    "deeplabv3_resnet50": (from_package("torchvision.models.segmentation",
                                        lambda m: m.deeplabv3_resnet50(weights_backbone=None)), 64, 0.58),
    "googlenet": (_torchvision("googlenet", weights=None, aux_logits=False, init_weights=False), 64, 0.34),
    "yolo_like": (YoloLike, 64, 0.42),
    "nnunet_like": (NnUnetLike, 64, None),
    "nnunet_instance_norm": (lambda: NnUnetLike(norm=lambda c: nn.InstanceNorm2d(c, affine=True)), 64, 0.56),
    "resnet50_group_norm": (_torchvision("resnet50", norm_layer=lambda c: nn.GroupNorm(32, c)), 64, 0.88),
    "convnext_tiny": (_torchvision("convnext_tiny"), 64, 0.62),
    "timm_vit_tiny": (_timm("vit_tiny_patch16_224"), 224, 0.66),
    "timm_resnet50d": (_timm("resnet50d"), 64, None),
    "timm_tf_efficientnet_b3": (_timm("tf_efficientnet_b3"), 64, None),
    "timm_tresnet_m": (_timm("tresnet_m"), 64, None),
    "timm_regnety_032": (_timm("regnety_032"), 64, None),
    "smp_unet": (_unet(), 64, 0.42),
    "smp_unet_inplace": (_unet(decoder_use_norm="inplace"), 64, None),
}

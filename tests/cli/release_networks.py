"""The networks of the In-Place ABN paper with the names, order and arithmetic of the paper's release, for eval mode.

Parameters are random. A normalization computes with |weight| + eps and counts no batches, as the package's layer does.
"""
import torch
from torch import nn

EPS, SLOPE = 1e-5, 0.01


class Norm(nn.Module):
    """Batch normalization by the running statistics, and leaky ReLU."""

    def __init__(self, channels):
        super().__init__()
        sign = torch.where(torch.rand(channels) < 0.3, -1.0, 1.0)
        self.weight = nn.Parameter(sign * (0.5 + torch.rand(channels)))
        self.bias = nn.Parameter(torch.randn(channels) / 5)
        self.register_buffer("running_mean", torch.randn(channels) / 5)
        self.register_buffer("running_var", 0.5 + torch.rand(channels))

    def forward(self, x):
        y = nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight.abs() + EPS, self.bias, eps=EPS)
        return nn.functional.leaky_relu(y, SLOPE)


def conv(channels, out, kernel=1, stride=1, dilation=1, groups=1):
    return nn.Conv2d(channels, out, kernel, stride, dilation * (kernel // 2), dilation, groups, bias=False)


class Named(nn.Sequential):
    """Layers one after another, by name."""

    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


class Block(nn.Module):
    """Pre-activation; the first convolution has the stride, in a bottleneck the 1x1."""

    def __init__(self, channels, widths, stride=1, dilation=1, groups=1):
        super().__init__()
        self.bn1 = Norm(channels)
        layers, read = {}, channels
        for i, width in enumerate(widths, 1):
            if i > 1:
                layers[f"bn{i}"] = Norm(read)
            large = len(widths) == 2 or i == 2
            layers[f"conv{i}"] = conv(read, width, 3 if large else 1, stride if i == 1 else 1, dilation if large else 1,
                                      groups if large else 1)
            read = width
        self.convs = Named(**layers)
        if stride > 1 or channels != read:
            self.proj_conv = conv(channels, read, stride=stride)

    def forward(self, x):
        z = self.bn1(x)
        return self.convs(z) + (self.proj_conv(z) if hasattr(self, "proj_conv") else x)


def deep_stem(channels):
    return Named(conv1=conv(3, channels, 3, stride=2), bn1=Norm(channels), conv2=conv(channels, channels, 3),
                 bn2=Norm(channels), conv3=conv(channels, channels, 3), pool=nn.MaxPool2d(3, 2, 1))


def ending(channels, classes):
    return dict(bn_out=Norm(channels),
                classifier=Named(avg_pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(channels, classes)))


def resnext(blocks, classes):
    modules, channels = {"mod1": deep_stem(64)}, 64
    for i, count in enumerate(blocks):
        widths, layers = [128 << i, 128 << i, 256 << i], {}
        for b in range(count):
            layers[f"block{b + 1}"] = Block(channels, widths, 2 if i > 0 and b == 0 else 1, groups=64)
            channels = widths[-1]
        modules[f"mod{i + 2}"] = Named(**layers)
    return Named(**modules, **ending(channels, classes))


WIDTHS = [(128, 128), (256, 256), (512, 512), (512, 1024), (512, 1024, 2048), (1024, 2048, 4096)]


def wide_resnet(blocks, classes, a2):
    modules, channels = {"mod1": Named(conv1=conv(3, 64, 3))}, 64
    for i, (count, widths) in enumerate(zip(blocks, WIDTHS)):
        if i < (2 if a2 else 5):
            modules[f"pool{i + 2}"] = nn.MaxPool2d(3, 2, 1)
        layers = {}
        for b in range(count):
            layers[f"block{b + 1}"] = Block(channels, widths, 2 if a2 and i in (2, 3, 4) and b == 0 else 1)
            channels = widths[-1]
        modules[f"mod{i + 2}"] = Named(**layers)
    return Named(**modules, **ending(channels, classes))


class DenseModule(nn.Module):
    def __init__(self, channels, layers, growth):
        super().__init__()
        self.convs1 = nn.ModuleList(Named(bn=Norm(channels + i * growth), conv=conv(channels + i * growth, 4 * growth))
                                    for i in range(layers))
        self.convs3 = nn.ModuleList(Named(bn=Norm(4 * growth), conv=conv(4 * growth, growth, 3)) for _ in range(layers))

    def forward(self, x):
        for first, second in zip(self.convs1, self.convs3):
            x = torch.cat([x, second(first(x))], 1)
        return x


def densenet(blocks, classes, growth=32):
    channels = 2 * growth
    modules = {"mod1": deep_stem(channels)}
    for i, layers in enumerate(blocks):
        if i > 0:
            modules[f"tra{i + 1}"] = Named(bn=Norm(channels), conv=conv(channels, channels // 2), pool=nn.AvgPool2d(2))
            channels //= 2
        modules[f"mod{i + 2}"] = DenseModule(channels, layers, growth)
        channels += layers * growth
    return Named(**modules, **ending(channels, classes))


NETWORKS = {
    "resnext50_preact": lambda classes: resnext((3, 4, 6, 3), classes),
    "wide_resnet16": lambda classes: wide_resnet((1,) * 6, classes, a2=False),
    "wide_resnet16_a2": lambda classes: wide_resnet((1,) * 6, classes, a2=True),
    "densenet264_deep_stem": lambda classes: densenet((6, 12, 64, 48), classes),
}

"""DenseNet-121 (palimpsest/models/densenet.h) with leaky ReLU, with libtorch's layers and with each block as one
operator: a step on a GPU."""
import torch
from torch import nn
from torch.nn import functional

from preact_resnext import SLOPE

BLOCKS, GROWTH = (6, 12, 24, 16), 32


def activated(norm, x, ours):
    """leaky_relu(norm(x)). libtorch's layers apply the activation in place, with which they save the least."""
    arguments = (norm.weight, norm.bias)
    if ours:
        return torch.ops.palimpsest.abn(x, *arguments, norm.running_mean, norm.running_var, True, norm.momentum, norm.eps,
                                        "leaky_relu", SLOPE)
    y = functional.batch_norm(x, norm.running_mean, norm.running_var, *arguments, True, norm.momentum, norm.eps)
    return functional.leaky_relu_(y, SLOPE)


class Layer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features):
        h = self.conv1(activated(self.norm1, torch.cat(features, 1), ours=False))
        return self.conv2(activated(self.norm2, h, ours=False))

    def operands(self):
        """The layer's arguments of torch.ops.palimpsest.dense_block, in their order."""
        for norm, conv in ((self.norm1, self.conv1), (self.norm2, self.conv2)):
            yield from (norm.weight, norm.bias, norm.running_mean, norm.running_var, conv.weight)


class Block(nn.ModuleList):
    def __init__(self, ours, channels, layers, growth):
        super().__init__(Layer(channels + i * growth, growth) for i in range(layers))
        self.ours = ours

    def forward(self, x):
        if self.ours:
            lists = map(list, zip(*(layer.operands() for layer in self)))
            return torch.ops.palimpsest.dense_block(x, *lists, activation_param=SLOPE)
        features = [x]
        for layer in self:
            features.append(layer(features))
        return torch.cat(features, 1)


class Transition(nn.Module):
    def __init__(self, ours, channels):
        super().__init__()
        self.ours, self.norm, self.conv = ours, nn.BatchNorm2d(channels), nn.Conv2d(channels, channels // 2, 1, bias=False)

    def forward(self, x):
        return functional.avg_pool2d(self.conv(activated(self.norm, x, self.ours)), 2)


class Network(nn.Module):
    def __init__(self, ours, blocks=BLOCKS, growth=GROWTH, classes=1000):
        super().__init__()
        self.ours, channels = ours, 2 * growth
        self.stem, self.norm0 = nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels)
        parts = []
        for number, layers in enumerate(blocks):
            parts.append(Block(ours, channels, layers, growth))
            channels += layers * growth
            if number + 1 < len(blocks):
                parts.append(Transition(ours, channels))
                channels //= 2
        self.features, self.norm5 = nn.Sequential(*parts), nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images):
        pool = torch.ops.palimpsest.max_pool2d if self.ours else functional.max_pool2d
        x = self.features(pool(activated(self.norm0, self.stem(images), self.ours), [3, 3], [2, 2], [1, 1]))
        return self.classifier(activated(self.norm5, x, self.ours).mean((2, 3)))

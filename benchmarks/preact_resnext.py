"""ResNeXt-101 with pre-activation, with libtorch's layers and with ours: a step on a GPU. The blocks are those of the in-place
paper's network (palimpsest/models/resnext_preact.h), but for the stride, which is in the 3x3 convolution, and the stem, which
is one 7x7 convolution."""
import torch
from torch import nn
from torch.nn import functional

BLOCKS, GROUPS, SLOPE = (3, 4, 23, 3), 64, 0.01


class StandardNorm(nn.BatchNorm2d):
    """Batch normalization and leaky ReLU in place over its output, with which libtorch saves the least."""

    def forward(self, x, over=True):
        y = functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, self.momentum, self.eps)
        return functional.leaky_relu_(y, SLOPE)


class InPlaceNorm(nn.BatchNorm2d):
    def forward(self, x, over=True):
        """Overwrites x if `over`; it must be false if another layer reads x."""
        layer = torch.ops.palimpsest.abn_ if over else torch.ops.palimpsest.abn
        return layer(x, self.weight, self.bias, self.running_mean, self.running_var, True, self.momentum, self.eps,
                     "leaky_relu", SLOPE)


class Block(nn.Module):
    def __init__(self, norm, channels_in, width, channels_out, stride, groups):
        super().__init__()
        self.bn1, self.bn2, self.bn3 = norm(channels_in), norm(width), norm(width)
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        projects = stride != 1 or channels_in != channels_out
        self.projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False) if projects else None

    def forward(self, x):
        z = self.bn1(x, over=self.projection is not None)
        shortcut = x if self.projection is None else self.projection(z)
        return self.conv3(self.bn3(self.conv2(self.bn2(self.conv1(z))))).add_(shortcut)


class Network(nn.Module):
    def __init__(self, norm, blocks=BLOCKS, width=128, groups=GROUPS, expansion=2, classes=1000):
        """The output of a block has `expansion` times as many channels as its 3x3 convolution."""
        super().__init__()
        self.pool = torch.ops.palimpsest.max_pool2d if norm is InPlaceNorm else functional.max_pool2d
        self.stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        layers, channels = [], 64
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride = 2 if number == 0 and stage > 0 else 1
                layers.append(Block(norm, channels, width << stage, expansion * width << stage, stride, groups))
                channels = expansion * width << stage
        self.blocks = nn.Sequential(*layers)
        self.bn_out, self.classifier = norm(channels), nn.Linear(channels, classes)

    def forward(self, images):
        x = self.blocks(self.pool(self.stem(images), [3, 3], [2, 2], [1, 1]))
        return self.classifier(self.bn_out(x).mean((2, 3)))


def in_precision(network, dtype):
    """Converts the weights to `dtype`; weights and statistics of normalizations to f32 (f64 if `dtype` is f64)."""
    network = network.to(dtype)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.to(torch.promote_types(dtype, torch.float32))
    return network


class Side:
    """A network of one of two kinds, its optimizer and a batch; `step` is a training step."""

    def __init__(self, kind, images, targets, device, network=Network, **shape):
        torch.manual_seed(0)
        self.network = in_precision(network(kind, **shape), images.dtype).to(device, memory_format=torch.channels_last)
        self.images, self.targets = images, targets
        self.optimizer = torch.optim.SGD(self.network.parameters(), 0.01, momentum=0.9)

    def loss(self):
        return functional.cross_entropy(self.network(self.images).float(), self.targets)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

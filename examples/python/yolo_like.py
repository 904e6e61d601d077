"""A detector in the manner of YOLO, written here: SiLU everywhere, split stages, repeated pooling, heads at three scales."""
import torch
from torch import nn

import first_look


class Conv(nn.Sequential):
    """Convolution, batch normalization, SiLU."""

    def __init__(self, c_in, c_out, kernel=1, stride=1):
        super().__init__(nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(c_out),
                         nn.SiLU(inplace=True))


class SplitStage(nn.Module):
    """Half of the channels go through residual bottlenecks; every step of them is concatenated."""

    def __init__(self, c_in, c_out, bottlenecks=1):
        super().__init__()
        half = c_out // 2
        self.enter = Conv(c_in, c_out)
        self.bottlenecks = nn.ModuleList(nn.Sequential(Conv(half, half, 3), Conv(half, half, 3)) for _ in range(bottlenecks))
        self.leave = Conv(c_out + bottlenecks * half, c_out)

    def forward(self, x):
        parts = list(self.enter(x).chunk(2, 1))
        for bottleneck in self.bottlenecks:
            parts.append(parts[-1] + bottleneck(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class PyramidPooling(nn.Module):
    """Max pooling once, twice and three times, concatenated with its input."""

    def __init__(self, channels):
        super().__init__()
        self.enter, self.leave = Conv(channels, channels // 2), Conv(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)

    def forward(self, x):
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class YoloLike(nn.Module):
    """x: (N, 3, H, W), H and W multiples of 32, to maps of (N, outputs, H / 8, W / 8), / 16 and / 32."""

    def __init__(self, width=16, outputs=85):
        super().__init__()
        c = [width * 2 ** i for i in range(5)]  # channels at 1/2, 1/4, ... 1/32 of the image
        self.stem = nn.Sequential(Conv(3, c[0], 3, 2), Conv(c[0], c[1], 3, 2), SplitStage(c[1], c[1]))
        self.down = nn.ModuleList(nn.Sequential(Conv(c[i], c[i + 1], 3, 2), SplitStage(c[i + 1], c[i + 1])) for i in (1, 2, 3))
        self.pooling = PyramidPooling(c[4])
        self.up = nn.Upsample(scale_factor=2)
        self.merge = nn.ModuleList([SplitStage(c[4] + c[3], c[3]), SplitStage(c[3] + c[2], c[2])])
        self.heads = nn.ModuleList(nn.Sequential(Conv(n, n, 3), nn.Conv2d(n, outputs, 1)) for n in (c[2], c[3], c[4]))

    def forward(self, x):
        eighth = self.down[0](self.stem(x))
        sixteenth = self.down[1](eighth)
        last = self.pooling(self.down[2](sixteenth))
        sixteenth = self.merge[0](torch.cat([self.up(last), sixteenth], 1))
        eighth = self.merge[1](torch.cat([self.up(sixteenth), eighth], 1))
        return [head(x) for head, x in zip(self.heads, (eighth, sixteenth, last))]


given = first_look.options(__doc__)
first_look.run(YoloLike, given)

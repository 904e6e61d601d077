"""The parts that the benchmarks of whole training steps share: torchvision's networks, a training on one batch, the options."""
import importlib.util
import os
import pathlib
import sys
import time

import torch
from torch import nn

from support import ROOT, Options, positive


def torchvisions(name):
    def make():
        import torchvision
        return getattr(torchvision.models, name)()
    return make


def converted(model):
    import palimpsest
    return palimpsest.convert(model)[0]


class Training:
    """Training steps of a network on one batch: forward, cross entropy, backward, SGD with momentum; channels-last, f32."""

    def __init__(self, model, batch, size):
        self.model = model.train().to(memory_format=torch.channels_last)
        self.x = torch.randn(batch, 3, size, size).contiguous(memory_format=torch.channels_last)
        classes = [m.out_features for m in model.modules() if isinstance(m, nn.Linear)][-1]
        self.y = torch.randint(classes, (batch,))
        self.parameters = list(self.model.parameters())
        # The rate is so small that the parameters stay finite over all steps.
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-4, momentum=0.9)

    def loss(self, network):
        return nn.functional.cross_entropy(network(self.x), self.y)

    def step(self, network):
        """One step with `network` in the place of the model, whose parameters it must have."""
        self.optimizer.zero_grad()
        self.loss(network).backward()
        self.optimizer.step()


def gate(path, name):
    """A function that waits until the file at `path` exists. None: it does not wait."""
    def wait():
        if path and not path.exists():
            print(f"{name}: waits for {path}", flush=True)
            while not path.exists():
                time.sleep(0.1)
    return wait


class NetworkOptions(Options):
    """The options of a benchmark of networks ({name: how to make it}), and the library for Python."""

    def __init__(self, description, networks, repeats):
        super().__init__(description, repeats)
        self.known = networks
        self.add_argument("--build", metavar="FOLDER", default="build/release",
                          help="the build folder with the operators [build/release]")
        self.add_argument("--networks", metavar="NAME,...", help=f"some of {', '.join(networks)} [all]")
        self.add_argument("--batch", metavar="N", type=positive, default=16, help="images per step [16]")
        self.add_argument("--size", metavar="PIXELS", type=positive, default=224, help="height and width of an image [224]")
        self.add_argument("--while", metavar="PATH", type=pathlib.Path, dest="gate",
                          help="begin a round of timed steps only while this file exists")

    def choice(self, option, text, known, separator=","):
        """The names in `text`, or all that are known if it is None. A name that is not known ends the program."""
        names = list(known) if text is None else text.split(separator)
        for name in names:
            if name not in known:
                self.error(f"{option} knows {f'{separator} '.join(known)}; got '{name}'")
        return names

    def read(self):
        options = self.parse_args()
        options.networks = self.choice("--networks", options.networks, self.known)
        if options.gate and not options.gate.parent.is_dir():
            self.error(f"--while needs a path in a folder that exists, got '{options.gate}'")
        if importlib.util.find_spec("torchvision") is None:
            self.error("torchvision is not installed: scripts/bootstrap installs it")
        os.environ["PALIMPSEST_LIBRARY"] = str(self.library(options.build))
        sys.path.insert(0, str(ROOT / "python"))
        return options

"""Networks of torchvision with random weights, and the program's output for an image, for the tests of weights."""
import functools
import re

import numpy as np
import pytest
import safetensors.torch
import torch

from cli_support import png, succeeds, write

try:
    import torchvision
except Exception as error:  # a torchvision of another torch fails with RuntimeError
    pytest.skip(f"torchvision does not fit this torch: {error}", allow_module_level=True)

# One thread, like the program under test: on a busy machine a pool of two threads spins while one of them waits.
torch.set_num_threads(1)

NARROW = "_narrow"
# Their own initial values, which nobody reads, take seconds.
ARGUMENTS = {"googlenet": {"init_weights": False}, "inception_v3": {"init_weights": False}}
TOLERANCE = 1e-5  # ||got - want|| / ||want||, the same network in another program, f32


@functools.cache
def known_activations():
    text = " ".join(succeeds("info", "--help").stdout.split())
    return re.search(r"activation after every normalization \((.*?)\)", text)[1].split(", ")


@functools.cache
def known_models():
    text = " ".join(succeeds("info", "--help").stdout.split())
    return set(re.search(r"--model <name> network \((.*?)\)", text)[1].split(", "))


def replace_activations(module, activation):
    """torchvision's networks have nn.ReLU modules; ours have one activation throughout."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.ReLU):
            setattr(module, name, activation)
        else:
            replace_activations(child, activation)
    return module


@functools.cache
def random_weights(name, classes):
    """A state dict: random weights, random running statistics, scales of both signs. Read it, do not write into it."""
    if name.endswith(NARROW):  # ours: a quarter of all channels
        wide = random_weights(name.removesuffix(NARROW), classes)
        return {key: tensor[tuple(slice(size // 4 if size >= 64 else size) for size in tensor.shape)].clone()
                for key, tensor in wide.items()}
    torch.manual_seed(1)
    model = getattr(torchvision.models, name)(num_classes=classes, **ARGUMENTS.get(name, {}))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                sign = torch.where(torch.rand_like(module.weight) < 0.3, -1.0, 1.0)
                module.weight.uniform_(0.5, 1.5).mul_(sign)
                module.bias.normal_(0, 0.2)
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.5, 2)
    return model.state_dict()


def network(name, activation, classes=7):
    """A network of torchvision with random_weights of its own, in eval mode; a narrow one in torchvision's layers."""
    with torch.device("meta"):  # the weights that it would draw itself take 0.2 to 0.4 s
        wide = name.removesuffix(NARROW)
        model = getattr(torchvision.models, wide)(num_classes=classes, **ARGUMENTS.get(wide, {}))
        replace_activations(model, activation)
    for key, tensor in random_weights(name, classes).items():
        owner, _, last = key.rpartition(".")
        module = model.get_submodule(owner)
        if last in module._buffers:
            module._buffers[last] = tensor.clone()
        else:
            module._parameters[last] = torch.nn.Parameter(tensor.clone())
    return model.eval()


def folded(model):
    """The same network with a bias in every convolution and nothing where the normalizations were."""
    names = {name: module for name, module in model.named_modules()}
    for name, module in names.items():
        parent, last = (names[name.rpartition(".")[0]], name.rpartition(".")[2]) if name else (None, "")
        if isinstance(module, torch.nn.BatchNorm2d):
            setattr(parent, last, torch.nn.Identity())
        elif isinstance(module, torch.nn.Conv2d):
            module.bias = torch.nn.Parameter(torch.zeros(len(module.weight)))
    return model


def image(folder, height=96, width=80):
    """A PNG file, and the tensor that a network gets of it."""
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None].double() / 255
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return write(folder / "image.png", png(pixels)), (x - mean) / std


def predicted(weights, picture):
    """The program's logits."""
    file = weights.parent / "logits.safetensors"
    succeeds("predict", weights, picture, "--logits", file, "--overwrite")
    return safetensors.torch.load_file(file)[str(picture)]


def logits_of(model, x):
    with torch.no_grad():
        return model.double()(x)[0]


def relative_error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def load(path):
    return safetensors.torch.load_file(path)


def metadata(path):
    with safetensors.safe_open(path, "pt") as file:
        return file.metadata()

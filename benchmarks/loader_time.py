#!/usr/bin/env python3
"""Times the loader on one core: decoding, scaling, cutting, mirroring, normalizing and stacking of photos of ImageNet's size.

Claims:    per core, the loader gives at least as many images per second as torchvision, and at least twice as many as a
           training step of ResNet-50 takes.
Opponents: torchvision's ImageFolder (decoded by Pillow) with Resize(256), RandomCrop(224), RandomHorizontalFlip, ToTensor and
           Normalize behind torch's DataLoader with batches of 32, in this process; and a step of torchvision's resnet50 on a
           batch of 8 images of 224x224 pixels in f32, channels last: forward, backward and SGD.
Limits:    1.00 and 0.50 of the time per image.

All sides have one thread. The loader runs in a process of its own, benchmarks/loader_epochs.cpp, which waits between its
turns. The photos are made from the seed: 500x375 pixels, noise of all scales, about 110 KB each as JPEG, as in ImageNet.
They lie in the cache of the system: a disk is not measured.

Exit status: 0 done; 1 a side fails, the JSON file cannot be written, or, with --check, a measured claim fails; 2 a wrong
option or folder.
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch.nn import functional as F

from support import Options, Report, Row, begin_with_retaining_malloc, interleave, milliseconds_of

IMAGES = 128
BATCH = 32
STEP_BATCH = 8
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photo(seed):
    """u8 (375, 500, 3): noise of all scales, whose strength falls with the frequency as in photos."""
    generator = torch.Generator().manual_seed(seed)
    picture = torch.zeros(3, 375, 500)
    for octave in range(8):
        rows, columns = 3 * 2**octave, 4 * 2**octave
        noise = torch.randn(1, 3, min(rows, 375), min(columns, 500), generator=generator)
        picture += F.interpolate(noise, (375, 500), mode="bilinear")[0] * 0.85**octave
    return (128 + 45 * picture).clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


def write_photos(folder, count):
    """Writes FOLDER/train/{a,b}/N.jpg and returns the mean size of a file in bytes."""
    from PIL import Image

    for name in "ab":
        (folder / "train" / name).mkdir(parents=True)
    for i in range(count):
        Image.fromarray(photo(i)).save(folder / "train" / "ab"[i % 2] / f"{i}.jpg", quality=90)
    return sum(path.stat().st_size for path in folder.rglob("*.jpg")) / count


class Loader:
    """Our loader in its process."""

    def __init__(self, program, folder):
        self.process = subprocess.Popen([program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def epoch(self):
        """Returns the milliseconds of an epoch."""
        try:
            self.process.stdin.write("epoch\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ChildProcessError("loader_epochs ended before its epoch")
        return float(line)

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:  # it has ended, and what it did not read is still in the pipe
            pass
        self.process.wait()
        self.process.stdout.close()


def torchvisions(folder):
    """A function that returns the milliseconds of an epoch."""
    from torchvision import datasets, transforms

    transform = transforms.Compose([transforms.Resize(256), transforms.RandomCrop(224), transforms.RandomHorizontalFlip(),
                                    transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    dataset = datasets.ImageFolder(folder / "train", transform)
    batches = torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, drop_last=True)

    def epoch():
        for _ in batches:
            pass

    return lambda: milliseconds_of(epoch)


def resnet50_step():
    """A function that returns the milliseconds of a step."""
    from torchvision import models

    torch.manual_seed(0)
    model = models.resnet50().to(memory_format=torch.channels_last)
    images = torch.randn(STEP_BATCH, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    targets = torch.randint(1000, (STEP_BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step():
        F.cross_entropy(model(images), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return lambda: milliseconds_of(step)


def per_image(side, images):
    return lambda: side() / images


def measure(program, folder, repeats, report):
    loader = Loader(program, folder)
    try:
        ours = per_image(loader.epoch, IMAGES)
        theirs, mine = interleave([per_image(torchvisions(folder), IMAGES), ours], repeats, warm_up=1)
        report.add(Row("an image of a batch", "torchvision", opponent=theirs, measured=mine, limit=1.00))
        # A step takes seconds, so few of them; the epochs of the loader lie between them.
        step, mine = interleave([per_image(resnet50_step(), STEP_BATCH), ours], min(repeats, 5), warm_up=1)
        report.add(Row("an image of a batch", "ResNet-50 step", opponent=step, measured=mine, limit=0.50))
    finally:
        loader.close()


def read_options():
    parser = Options("Times the loader on one core beside torchvision's and a step of ResNet-50.")
    parser.add_argument("--build", metavar="FOLDER", default="build/release",
                        help="the build folder with the program loader_epochs [build/release]")
    options = parser.parse_args()
    options.program = pathlib.Path(options.build) / "loader_epochs"
    if not options.program.is_file():
        parser.error(f"--build needs a folder with {options.program.name}, got '{options.build}'")
    return options


def main():
    begin_with_retaining_malloc()
    options = read_options()
    torch.set_num_threads(1)
    report = Report("loader_time", options)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        size = write_photos(folder, IMAGES)
        print(f"{IMAGES} photos of {size / 1000:.0f} KB", flush=True)
        try:
            measure(options.program, folder, options.repeats, report)
        except ChildProcessError as error:
            print(f"loader_time: {error}", file=sys.stderr)
            return 1
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())

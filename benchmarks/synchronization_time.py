#!/usr/bin/env python3
"""Times what statistics over a process group add to a layer, on one machine over Gloo.

Claim:    the synchronization of a layer takes little more than the collectives that it consists of.
Opponent: the same collectives by torch.distributed, of the same bytes, after a layer without a group: forward
          all_gather_into_tensor of 2C + 1 f64, backward all_reduce of 2C f32.
Limit:    1.20 of the opponent in forward (control: backward).

Both times are what is added to a layer without a group. Collectives that are called one after another wait less:
between them no rank does work that makes it late. The input has 2 images of one pixel, so that nearly nothing but the
synchronization is left. All processes run on the cores of this machine, one thread each; they meet before each run.
Sides run in turn, and a run makes 60 calls with 2 ranks, 30 with 4. Low and high of a spread are bounds: a side's low
less the layer's high, and the reverse.

Exit status: 0 done; 1 the JSON file cannot be written, or, with --check, a claim fails; 2 a wrong option.
"""
import argparse
import multiprocessing
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

from support import Options, Report, Row, Spread, interleave, positive

CHANNELS = (64, 512, 2048)
RANKS = (2, 4)
CALLS = 120  # of all ranks per run
LIMIT = 1.20


class Layer:
    """One layer, with a group or without."""

    def __init__(self, channels, group):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(2, channels, 1, 1, generator=generator).requires_grad_()
        self.dz = torch.randn(2, channels, 1, 1, generator=generator)
        self.group = group
        self.weight, self.bias = torch.ones(channels, requires_grad=True), torch.zeros(channels, requires_grad=True)
        self.mean, self.var = torch.zeros(channels), torch.ones(channels)

    def forward(self):
        return torch.ops.palimpsest.abn(self.x, self.weight, self.bias, self.mean, self.var, group=self.group)


def calls():
    return max(1, CALLS // dist.get_world_size())


def microseconds_of(work, then):
    """Microseconds per call of work() and, unless it is None, then()."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls()):
        work()
        if then:
            then()
    return 1e6 * (time.perf_counter() - start) / calls()


def forward_of(layer, then=None):
    return lambda: microseconds_of(layer.forward, then)


def backward_of(layer, then=None):
    def run():
        outputs = [layer.forward() for _ in range(calls())]
        return microseconds_of(
            lambda: torch.autograd.grad(outputs.pop(), (layer.x, layer.weight, layer.bias), layer.dz), then)
    return run


def added_by(side, base):
    """What `side` takes more than `base`; low and high are bounds."""
    return Spread(side.median - base.median, side.low - base.high, side.high - base.low, side.runs)


def of_this_process(channels, repeats):
    """{direction: Spreads of what (the group, the opponent) add to the layer alone}."""
    world = dist.get_world_size()
    alone, shared = Layer(channels, ""), Layer(channels, dist.group.WORLD.group_name)
    mine, every = torch.zeros(2 * channels + 1, dtype=torch.double), torch.zeros(world * (2 * channels + 1), dtype=torch.double)
    sums = torch.zeros(2 * channels)
    opponents = {"forward": lambda: dist.all_gather_into_tensor(every, mine), "backward": lambda: dist.all_reduce(sums)}
    results = {}
    for direction, side in (("forward", forward_of), ("backward", backward_of)):
        without, with_group, opponent = interleave(
            [side(alone), side(shared), side(alone, opponents[direction])], repeats)
        results[direction] = added_by(with_group, without), added_by(opponent, without)
    return results


def serve(rank, world, store, library, channels, repeats, pipe):
    torch.set_num_threads(1)
    torch.ops.load_library(library)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for count in channels:
        results = of_this_process(count, repeats)
        if rank == 0:
            pipe.send((count, results))
    dist.destroy_process_group()


def measure(world, library, channels, repeats):
    """Yields (channels, results of rank 0)."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [context.Process(target=serve, args=(rank, world, store, library, channels, repeats, theirs))
                 for rank in range(world)]
        for process in ranks:
            process.start()
        theirs.close()
        for _ in channels:
            yield ours.recv()
        for process in ranks:
            process.join()


def group_sizes(text):
    """For argparse. One rank exchanges nothing."""
    sizes = [positive(part) for part in text.split(",")]
    if min(sizes) < 2:
        raise argparse.ArgumentTypeError(f"a group of 2 ranks or more is needed, got '{text}'")
    return sizes


def main():
    parser = Options("Times what statistics over a process group add to a layer.")
    parser.add_argument("--build", metavar="FOLDER", default="build/release",
                        help="the build folder with the operators [build/release]")
    parser.add_argument("--ranks", metavar="N,...", type=group_sizes, default=RANKS,
                        help="processes of the groups that are measured, 2 or more each [2,4]")
    options = parser.parse_args()
    library = parser.library(options.build)
    torch.set_num_threads(1)
    report = Report("synchronization_time", options)
    for world in options.ranks:
        for channels, results in measure(world, str(library), CHANNELS, options.repeats):
            for direction, (added, opponent) in results.items():
                name = "all_gather" if direction == "forward" else "all_reduce"
                report.add(Row(f"{direction}, {channels} channels, {world} ranks", name, "us", opponent, added,
                               LIMIT if direction == "forward" else None))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())

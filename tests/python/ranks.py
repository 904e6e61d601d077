"""Processes that hold one process group for all tests of a file: starting them takes longer than most tests."""
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import traceback

import pytest
import torch
import torch.distributed as dist

MOST = 4
LONGEST = 300  # seconds that the ranks may take; a test of theirs takes a few


class Ranks:
    """MOST processes, connected by Gloo through a file. run() calls a function in the first ones of them."""

    def __init__(self, folder):
        self._folder, self._starts = folder, 0
        self._pipes, self._processes = [], []

    def _start(self):
        context = multiprocessing.get_context("spawn")
        self._starts += 1
        store = os.path.join(self._folder, f"store{self._starts}")
        for rank in range(MOST):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, world, function, *arguments):
        """Returns [function(group, rank, *arguments) of each rank].

        The first failure of a rank is the test's failure. It ends all ranks, since the others may wait for it."""
        if not self._pipes:
            self._start()
        for pipe in self._pipes[:world]:
            pipe.send((world, function, arguments))
        results = {}
        while len(results) < world:
            waiting = [pipe for rank, pipe in enumerate(self._pipes[:world]) if rank not in results]
            answers = multiprocessing.connection.wait(waiting, timeout=LONGEST)
            if not answers:
                silent = sorted(set(range(world)) - set(results))
                self.close(kill=True)
                pytest.fail(f"no answer within {LONGEST} s from ranks {silent} of {world}", pytrace=False)
            for pipe in answers:
                rank = self._pipes.index(pipe)
                try:
                    ok, results[rank] = pipe.recv()
                except EOFError:
                    ok, results[rank] = False, "the process is gone"
                if not ok:
                    self.close(kill=True)
                    pytest.fail(f"rank {rank} of {world}:\n{results[rank]}", pytrace=False)
        return [results[rank] for rank in range(world)]

    def close(self, kill=False):
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            if kill:
                process.kill()
            process.join()
        self._pipes, self._processes = [], []


def _serve(rank, store, pipe):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=MOST)
    groups = {world: dist.new_group(list(range(world))) for world in range(1, MOST)}
    groups[MOST] = dist.group.WORLD
    while (task := pipe.recv()) is not None:
        world, function, arguments = task
        try:
            pipe.send((True, function(groups[world], rank, *arguments)))
        except BaseException:  # noqa: BLE001: the test reports it
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    started = Ranks(str(tmp_path_factory.mktemp("ranks")))
    yield started
    started.close()

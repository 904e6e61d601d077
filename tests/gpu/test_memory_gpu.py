"""The memory of our launches beside libtorch's pools, on a GPU: nothing of ours stays in the pool of a CUDA graph or of
torch.cuda.MemPool, and graphs share nothing with one another. Needs a GPU in every test; tests/kernels/cuda/counters_test.cpp
has the emulated device."""
import gc
import os
import pathlib
import subprocess
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_operators_gpu import Case, DEVICE, LIBRARY, REASON, abn, layer_of  # noqa: E402

pytestmark = pytest.mark.skipif(bool(REASON) or DEVICE == "cpu", reason=REASON or "needs a GPU")
torch._dynamo.config.use_recursive_dict_tags_for_guards = False  # see tests/python/conftest.py

# A channel has 1 MB, more than the shared memory of a cluster of 8: blocks hand over sums in both passes.
SHAPE = (16, 64, 128, 128)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(3))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(16) for _ in range(3))

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = abn(conv(x), norm.weight, norm.bias, norm.running_mean, norm.running_var, self.training)
        return x


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_torch_compile_may_record_graphs(mode):
    torch._dynamo.reset()
    eager, compiled = Layers().cuda(), Layers().cuda()
    call = torch.compile(compiled, mode=mode)
    for step in range(8):  # its first calls warm up, record and replay
        x = torch.randn(16, 16, 128, 128, generator=torch.Generator().manual_seed(step)).cuda()
        torch.compiler.cudagraph_mark_step_begin()
        gradients = []
        for network, run in ((eager, eager), (compiled, call)):
            network.zero_grad()
            run(x).square().mean().backward()
            gradients.append([p.grad.clone() for p in network.parameters()])
        for want, got in zip(*gradients):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4, msg=lambda text: f"step {step}: {text}")


def test_a_memory_pool_of_the_user_is_empty_afterwards():
    plain = Case(SHAPE).run(layer_of("leaky_relu"))
    pool = torch.cuda.MemPool()
    stream = torch.cuda.Stream()  # new to our launches, so that what a stream needs once is taken here
    with torch.cuda.stream(stream), torch.cuda.use_mem_pool(pool):
        got = Case(SHAPE).run(layer_of("leaky_relu"))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, plain))
    del got
    gc.collect()
    assert sum(segment["allocated_size"] for segment in pool.snapshot()) == 0
    with torch.cuda.stream(stream):
        with torch.cuda.use_mem_pool(pool):
            others = [torch.full((1 << 20,), -1, dtype=torch.int32, device="cuda") for _ in range(64)]
        again = Case(SHAPE).run(layer_of("leaky_relu"))
    torch.cuda.synchronize()
    assert all((t == -1).all() for t in others)
    assert all(torch.equal(a, b) for a, b in zip(again, plain))


def test_graphs_of_one_stream_replay_at_once_beside_the_streams_own_work():
    cases = [Case(SHAPE, seed=seed) for seed in range(3)]

    def forward(case):
        with torch.no_grad():
            return [abn(case.x, case.weight, case.bias, None, None, True) for _ in range(10)][-1]

    want = [forward(case) for case in cases]
    recording, replaying = torch.cuda.Stream(), torch.cuda.Stream()
    graphs, got = [], []
    for case in cases[:2]:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=recording):
            got.append(forward(case))
    torch.cuda.synchronize()
    for _ in range(50):
        with torch.cuda.stream(replaying):
            graphs[0].replay()
        graphs[1].replay()
        with torch.cuda.stream(recording):
            eager = forward(cases[2])
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip([*got, eager], want))


# Eager loading, because loading a kernel is CUDA's business and may not be recorded.
FIRST_USE_IS_RECORDED = f"""
import torch
torch.ops.load_library({str(LIBRARY.resolve())!r})
x = torch.randn({SHAPE}, device="cuda")
ones = torch.ones(64, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.no_grad():
    with torch.cuda.graph(graph):
        z = torch.ops.palimpsest.abn(x, ones, None, None, None, True)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(z, torch.ops.palimpsest.abn(x, ones, None, None, None, True))
"""


def test_the_first_launch_of_a_process_may_be_recorded():
    done = subprocess.run([sys.executable, "-c", FIRST_USE_IS_RECORDED], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "CUDA_MODULE_LOADING": "EAGER"})
    assert done.returncode == 0, done.stderr

"""Channels that the saved tensor does not determine, on a GPU: the device chooses them, and the host plans the slots.
Needs a GPU in every test; tests/ops/test_invertibility.py has the same network on the CPU."""
import pathlib
import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ops"))
from test_invertibility import STEPS, Network, gradients, move_weights  # noqa: E402
from test_operators_gpu import Case, DEVICE, REASON, abn  # noqa: E402

pytestmark = pytest.mark.skipif(bool(REASON) or DEVICE == "cpu", reason=REASON or "needs a GPU")
ops = torch.ops.palimpsest


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_gradients_are_the_same_at_every_step(reentrant):
    plain, recomputed = Network().cuda(), Network().cuda()
    for step in range(STEPS):
        for network in (plain, recomputed):
            move_weights(network, step)
        got = gradients(recomputed, lambda x: checkpoint(recomputed, x, use_reentrant=reentrant))
        assert all(w.equal(g) for w, g in zip(gradients(plain, plain), got)), f"step {step}"


def test_a_compiled_network_with_graphs_follows_weights_that_walk():
    eager, compiled = Network().cuda(), Network().cuda()
    call = torch.compile(compiled, mode="reduce-overhead")
    for step in range(0, STEPS, 3):
        for network in (eager, compiled):
            move_weights(network, step)
        torch.compiler.cudagraph_mark_step_begin()
        for w, g in zip(gradients(eager, eager), gradients(compiled, call)):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)


def test_a_graph_with_its_optimizer_chooses_anew_in_every_replay():
    case = Case((16, 64, 14, 14))
    weight, bias = case.weight.abs().requires_grad_(), torch.ones_like(case.bias).requires_grad_()
    with torch.no_grad():
        weight[3] = 1 / 40  # near: it has a slot, which it does not need yet

    def step():
        x = case.x.detach().clone().requires_grad_()
        dx, dweight = torch.autograd.grad(abn(x + 0, weight, bias, None, None, True), (x, weight), case.dz)
        with torch.no_grad():
            weight[3].mul_(0.9)
        return dx, dweight

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    ops.reset_abn_fallback_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dx, dweight = step()
    for replay in range(STEPS):
        before = weight.detach().double()
        graph.replay()
        torch.cuda.synchronize()
        x64 = case.x.detach().double().requires_grad_()
        w64 = before.requires_grad_()
        y = torch.nn.functional.batch_norm(x64, None, None, w64, bias.detach().double(), True)
        want = torch.autograd.grad(torch.nn.functional.leaky_relu(y, 0.01), (x64, w64), case.dz.double())
        assert (dx - want[0]).norm() <= 2e-5 * want[0].norm(), f"replay {replay}"
        assert abs(dweight[3] - want[1][3]) <= 1e-3 * abs(want[1][3]), f"replay {replay}"
    assert ops.abn_fallback_stats()[2] == 0
    with torch.no_grad():
        weight[5] = 0  # no slot is left for it
    graph.replay()
    torch.cuda.synchronize()
    assert ops.abn_fallback_stats()[2] == 1


def test_streams_in_turn_give_the_same_gradients():
    plain, streamed = Network().cuda(), Network().cuda()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for step in range(STEPS):
        for network in (plain, streamed):
            move_weights(network, step)
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[step % 2]):
            got = gradients(streamed, streamed)
        torch.cuda.synchronize()
        assert all(w.equal(g) for w, g in zip(gradients(plain, plain), got)), f"step {step}"


def test_computed_weights_do_not_wait_for_the_device():
    network = Network().cuda()

    def step():
        fresh = {name: p * 1.0 for name, p in network.named_parameters()}
        return gradients(network, lambda x: torch.func.functional_call(network, fresh, (x,)))

    step()
    torch.cuda.synchronize()
    x = torch.randn(4, 3, 6, 5, device="cuda")
    fresh = {name: p * 1.0 for name, p in network.named_parameters()}
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.func.functional_call(network, fresh, (x,)).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")

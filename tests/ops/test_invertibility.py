"""Channels that the saved tensor does not determine, while weights walk to zero and back: in training as PyTorch's users
write it. On a GPU the number of slots is planned from the passes before (tests/ops/invertibility has the emulated one)."""
import copy
import os
import pathlib

import pytest
import torch
from torch.utils.checkpoint import checkpoint

LIBRARY = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", "build/release")) / "libpalimpsest_ops.so"
torch.ops.load_library(str(LIBRARY))
ops = torch.ops.palimpsest

# Before torch 2.12 compiled guards may crash as Python exits: see tests/python/conftest.py.
torch._dynamo.config.use_recursive_dict_tags_for_guards = False

STEPS = 60
torch.set_num_threads(1)  # the tensors are small


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class Network(torch.nn.Module):
    """Every kind of saved tensor with slots: z, z of form I, z and bits, y, and y behind which a convolution reads its ReLU."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(8) for _ in range(5))
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(8 if i else 3, 8, 1, bias=False) for i in range(6))
        for norm in self.norms:
            torch.nn.init.uniform_(norm.bias, 0.5, 1.0)

    def forward(self, x):
        def vectors(norm):
            return norm.weight, norm.bias, norm.running_mean, norm.running_var, self.training

        kinds = [("leaky_relu", "output"), ("elu", "output_form1"), ("gelu", "output_bit"), ("silu", "pre_activation")]
        for conv, norm, (activation, saved) in zip(self.convs, self.norms, kinds):
            param = 1.0 if activation == "elu" else 0.01
            x = ops.abn(conv(x), *vectors(norm), activation=activation, activation_param=param, saved=saved)
        weight, bias, mean, var, training = vectors(self.norms[4])
        return ops.abn_conv(self.convs[4](x), weight, bias, mean, var, self.convs[5].weight, None, [1, 1], [0, 0], [1, 1], 1,
                            training, activation="relu", saved="pre_activation")


def walk(step):
    """1 to 0 and through it, and back."""
    return 0.75**step if step < 25 else 0.0 if step < 30 else -(0.75 ** (STEPS - step))


def move_weights(network, step):
    """Channels 3 and 6 of every layer walk, at different times: there are layers with none, one, and more than one in 32."""
    with torch.no_grad():
        for i, norm in enumerate(network.norms):
            norm.weight[3] = walk((step + 5 * i) % STEPS)
            norm.weight[6] = walk((step + 30) % STEPS)


def gradients(network, run, parts=1):
    network.zero_grad()
    device = next(network.parameters()).device
    x = torch.randn(4, 3, 6, 5, generator=torch.Generator().manual_seed(3)).to(device).requires_grad_()
    for part in x.chunk(parts):
        run(part).square().sum().backward()
    return [x.grad, *(p.grad for p in network.parameters())]


RUNS = {
    "reentrant": lambda network: lambda x: checkpoint(network, x, use_reentrant=True),
    "checkpoint": lambda network: lambda x: checkpoint(network, x, use_reentrant=False),
    "nested": lambda network: lambda x: checkpoint(lambda x: checkpoint(network, x, use_reentrant=False), x, use_reentrant=False),
}


@pytest.mark.parametrize("run,parts", [("reentrant", 1), ("checkpoint", 2), ("nested", 1)])
def test_recomputed_gradients_are_the_same_at_every_step(run, parts):
    plain, recomputed = Network(), Network()
    ops.reset_abn_fallback_stats()
    for step in range(STEPS):
        for network in (plain, recomputed):
            move_weights(network, step)
        want, got = gradients(plain, plain, parts), gradients(recomputed, RUNS[run](recomputed), parts)
        assert all(w.equal(g) for w, g in zip(want, got)), f"step {step}"
    stats = ops.abn_fallback_stats()
    assert stats[0] > 0 and stats[1] > 0 and stats[2] == 0


def test_every_step_has_the_gradients_of_plain_layers():
    network = Network()
    truth = copy.deepcopy(network).double()

    def plain(x):
        activations = [lambda y: torch.nn.functional.leaky_relu(y, 0.01), torch.nn.functional.elu, torch.nn.functional.gelu,
                       torch.nn.functional.silu, torch.relu]
        for conv, norm, activation in zip(truth.convs, truth.norms, activations):
            x = activation(norm(conv(x)))
        return truth.convs[5](x)

    for step in range(0, STEPS, 5):
        for n in (network, truth):
            move_weights(n, step)
        got, want = gradients(network, network), gradients(truth, lambda x: plain(x.double()))
        for g, w in zip(got, want):
            assert (g - w).norm() <= 2e-3 * w.norm() + 1e-6, f"step {step}"


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_network_follows_weights_that_walk(backend):
    """The graph is traced once, while every weight is fine: no kind of saved tensor may depend on values."""
    eager, compiled = Network(), Network()
    call = torch.compile(compiled, backend=backend)
    for step in (0, 12, 24, 27, 33, 50):
        for network in (eager, compiled):
            move_weights(network, step)
        for w, g in zip(gradients(eager, eager), gradients(compiled, call)):
            # Another order of additions; a wrong saved tensor is off by as much as the gradient.
            assert (g - w).norm() <= 1e-4 * w.norm() + 1e-4, f"step {step}"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 1


def test_loaded_weights_and_resumed_runs_give_the_same_bits():
    running = Network()
    for step in range(STEPS):
        move_weights(running, step)
        want = gradients(running, running)
        if step % 7 == 0:
            loaded, resumed = Network(), Network()
            gradients(loaded, loaded)  # it has run with other weights
            for network in (loaded, resumed):
                network.load_state_dict(running.state_dict())
                assert all(w.equal(g) for w, g in zip(want, gradients(network, network))), f"step {step}"


def test_weights_that_are_new_tensors_in_each_pass():
    network = Network()

    def functional(x):
        fresh = {name: p * 1.0 for name, p in network.named_parameters()}
        return torch.func.functional_call(network, fresh, (x,))

    for step in range(0, STEPS, 4):
        move_weights(network, step)
        want, got = gradients(network, network), gradients(network, functional)
        assert all(w.equal(g) for w, g in zip(want, got)), f"step {step}"


def test_a_graph_that_lost_saved_channels_says_so():
    """As a compiled graph would if it copied what it saves: the data of hidden tensors are gone."""
    x, weight = torch.randn(2, 8, 3, 3), torch.ones(8)
    weight[2] = 0
    for saved, activation in (("output", "leaky_relu"), ("pre_activation", "relu")):
        settings = (None, weight, None, activation, 0.01, saved, False)
        z, second, values, index, mean, inv_std, _ = ops.abn_forward(x, *settings, None, None, True, 0.1, 1e-5, True)
        assert values.shape == index.shape == (0,)
        kept = z if saved == "output" else second
        arguments = (*settings, mean, inv_std, True, True, False, True, False)
        ops.abn_backward(torch.ones_like(z), kept, None, values, index, *arguments)
        with pytest.raises(RuntimeError, match="and it is gone: something copied the tensors saved by a compiled graph"):
            ops.abn_backward(torch.ones_like(z), kept, None, values.clone(), index.clone(), *arguments)

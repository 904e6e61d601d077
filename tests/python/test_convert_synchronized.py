"""convert() of networks with torch's SyncBatchNorm, whose statistics are those of a process group."""
import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import palimpsest
from ranks import ranks  # noqa: F401: the fixture
from test_synchronized import images, steps_like_one_process

ops = torch.ops.palimpsest


class Network(nn.Module):
    """Each place that a normalization can have: first layers with a pooling, before convolutions, in sums, before and behind
    concatenations, before products and splits."""

    def __init__(self, activation=nn.ReLU, momentum=0.1):
        super().__init__()
        torch.manual_seed(5)
        self.act = activation()
        self.pool = nn.MaxPool2d(2)
        self.convs = nn.ModuleList(nn.Conv2d(c, k, s, padding=s // 2, bias=False)
                                   for c, k, s in [(3, 8, 3), (8, 8, 3), (8, 8, 1), (8, 8, 1), (16, 8, 1), (8, 8, 1), (24, 8, 3),
                                                   (8, 8, 3), (8, 4, 1)])
        self.norms = nn.ModuleList(nn.BatchNorm2d(c, momentum=momentum) for c in (8, 8, 8, 8, 16, 8, 8, 8))
        with torch.no_grad():
            for norm in self.norms:
                norm.weight.uniform_(-1, 1)
                norm.bias.uniform_(-1, 1)

    def forward(self, x):
        c, n, act = self.convs, self.norms, self.act
        x = self.pool(act(n[0](c[0](x))))
        y = act(n[1](c[1](x)))
        x = act(n[2](c[2](y)) + x)
        z = act(n[3](c[3](x)))
        x = c[5](act(n[5](c[4](act(n[4](torch.cat([x, z], 1)))))))
        x = c[6](torch.cat([z, y, F.interpolate(act(n[6](x)), scale_factor=1.0)], 1))
        a, b = act(n[7](x)).chunk(2, 1)
        return c[8](c[7](torch.cat([a, b * torch.sigmoid(a)], 1)))


def synchronized(network, group):
    """The converted network, with a SyncBatchNorm of the group for each normalization."""
    shared = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(network), None if group is dist.group.WORLD else group)
    shared, report = palimpsest.convert(shared)
    assert len(report.converted) == 9, report
    return shared


def _steps(group, rank, activation, layout, momentum, batches):
    one = Network(activation, momentum).double()
    call = nn.Module.__call__
    x = images(group, 3, 8, 8, layout=layout, batches=batches)
    shared = synchronized(one, group)
    for seed in range(2):
        steps_like_one_process(group, rank, (shared, call), (one, call), [x], gradient_seed=seed, batches=batches, tolerance=1e-10)
        for network in (shared, one):
            network.zero_grad()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU, nn.LeakyReLU])
@pytest.mark.parametrize("world", [2, 3])
def test_a_step_equals_one_process_with_the_whole_batch(ranks, world, activation, layout):
    ranks.run(world, _steps, activation, layout, 0.1, None)


def test_an_average_over_all_steps(ranks):
    ranks.run(2, _steps, nn.ReLU, torch.contiguous_format, None, None)


def test_a_rank_without_images(ranks):
    ranks.run(3, _steps, nn.ReLU, torch.contiguous_format, 0.1, {3: [2, 0, 3]})


def _frozen_and_eval(group, rank):
    one = Network().double()
    shared = synchronized(one, group)
    x = images(group, 3, 8, 8)[:rank + 1].requires_grad_()
    ops.reset_group_traffic()
    for norm in (*one.norms, *shared.norms):
        norm.eval()
    torch.testing.assert_close(shared(x), one(x))
    torch.testing.assert_close(shared.eval()(x), one.eval()(x))
    with torch.no_grad():
        assert torch.equal(shared(x), one(x))
    assert ops.group_traffic() == (0, 0)


def test_frozen_statistics_and_evaluation_send_nothing(ranks):
    ranks.run(2, _frozen_and_eval)


def _traffic(group, rank):
    shared = synchronized(Network().double(), group)
    ops.reset_group_traffic()
    shared(images(group, 3, 8, 8)[rank:rank + 1]).sum().backward()
    return ops.group_traffic()[0]


def test_one_collective_per_layer_and_direction(ranks):
    """The first layers, which backward runs again for one process, do not ask the group again."""
    assert ranks.run(2, _traffic) == [2 * 8, 2 * 8]


def _of_a_part(group, rank):
    """A group that is not all processes: the others are not asked."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = halves[rank // 2]
    one = Network().double()
    shared = synchronized(one, mine)
    x = images(None, 3, 8, 8, batches={4: [1, 2, 2, 1]}, seed=rank // 2)
    part = (x[:1] if rank == 0 else x[1:3]) if rank < 2 else (x[3:5] if rank == 2 else x[5:])
    whole = x[:3] if rank < 2 else x[3:]
    got, want = shared(part), one(whole)
    first = rank % 2 == 0
    expected = want[:len(part)] if first else want[-len(part):]
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    dist.barrier()


def test_a_group_of_some_processes(ranks):
    ranks.run(4, _of_a_part)


def test_without_a_process_group_it_is_a_batch_norm():
    one = Network().double()
    shared = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(one))
    x = torch.randn(2, 3, 8, 8, dtype=torch.double)
    shared, report = palimpsest.convert(shared, x)
    assert len(report.converted) == 9 and report.kept_bytes_after < 0.7 * report.kept_bytes_before, report
    for network in (one, shared):
        network(x).square().sum().backward()
    for p, q in zip(one.parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-8, atol=1e-10)
    with pytest.raises(ValueError, match="at least 2D input"):
        shared.norms[0](x[0, 0, 0])


def test_compiled_without_a_break():
    shared = nn.SyncBatchNorm.convert_sync_batchnorm(Network())
    shared, _ = palimpsest.convert(shared)
    x = torch.randn(2, 3, 8, 8)
    torch._dynamo.reset()
    compiled = torch.compile(shared, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), shared(x), rtol=1e-4, atol=1e-4)

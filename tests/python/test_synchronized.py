"""Statistics over a process group: every layer gives the results of one process with the whole batch."""
import copy
import functools
import pickle
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

import inplace_abn
import palimpsest
from palimpsest import functional
from ranks import ranks  # noqa: F401: the fixture

ops = torch.ops.palimpsest
BATCHES = {1: [5], 2: [3, 2], 3: [2, 0, 4], 4: [1, 3, 0, 2]}  # images of each rank
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def part_of(x, group, rank, batches=None):
    """This rank's images, in the layout of x."""
    sizes = (batches or BATCHES)[dist.get_world_size(group)]
    start = sum(sizes[:rank])
    part = x[start:start + sizes[rank]].clone(memory_format=torch.preserve_format)
    return part.requires_grad_(x.is_floating_point())


def images(group, *shape, dtype=torch.float64, layout=torch.contiguous_format, seed=0, batches=None):
    generator = torch.Generator().manual_seed(seed)
    total = sum((batches or BATCHES)[dist.get_world_size(group)])
    x = torch.randn(total, *shape, generator=generator, dtype=torch.float64) * 2 + 1
    return x.to(dtype).contiguous(memory_format=layout)


def assert_close(got, want, tolerance, what):
    assert got.shape == want.shape and got.dtype == want.dtype, (what, got.shape, want.shape)
    if want.numel() == 0:
        return
    error = (got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)
    assert error <= tolerance, f"{what}: relative error {error:.2e}, allowed {tolerance:.0e}"


def assert_same_bits(tensor, group, what):
    tensor = tensor.detach().contiguous()
    everywhere = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everywhere, tensor, group=group)
    assert all(torch.equal(t, everywhere[0]) for t in everywhere), f"{what}: other bits on another rank"


def summed(tensor, group):
    tensor = tensor.detach().double()
    dist.all_reduce(tensor, group=group)
    return tensor


def steps_like_one_process(group, rank, shared, alone, inputs, gradient_seed=7, batches=None, tolerance=None):
    """One step of both. shared and alone: (module, call); call(module, *inputs) gives a result with one row per image.

    shared has the statistics of the group and the images of this rank, alone has all images."""
    (module, call), (whole, call_whole) = shared, alone
    parts = [part_of(x, group, rank, batches) for x in inputs]
    wholes = [x.clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    got, want = call(module, *parts), call_whole(whole, *wholes)
    gradient = images(group, *want.shape[1:], dtype=want.dtype, seed=gradient_seed, batches=batches)
    got.backward(part_of(gradient, group, rank, batches).detach())
    want.backward(gradient)
    tolerance = tolerance or TOLERANCE[want.dtype]
    assert_close(got.detach(), part_of(want, group, rank, batches).detach(), tolerance, "output")
    for i, (x, y) in enumerate(zip(parts, wholes)):
        assert_close(x.grad, part_of(y.grad, group, rank, batches).detach(), tolerance, f"gradient of input {i}")
    named = dict(whole.named_parameters())
    for name, p in module.named_parameters():
        assert_close(summed(p.grad, group), named[name].grad.double(), tolerance, f"gradient of {name}")
    named = dict(whole.named_buffers())
    for name, b in module.named_buffers():
        assert_same_bits(b, group, name)
        assert_close(b.double(), named[name].double(), min(tolerance, 1e-6), name)


def randomized(norm):
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        norm.weight.copy_(torch.randn(norm.num_features, generator=generator).sign() + 0.3 *
                          torch.rand(norm.num_features, generator=generator))
        norm.bias.copy_(torch.randn(norm.num_features, generator=generator))
    return norm


def pair(group, channels, dtype, **keywords):
    """A normalization with the statistics of the group, and one without a group."""
    torch.manual_seed(1)
    one = randomized(palimpsest.nn.BatchNormAct(channels, **keywords)).to(dtype)
    if dtype in (torch.bfloat16, torch.float16):
        one.float()
    shared = copy.deepcopy(one)
    shared.group = functional.group_name(group)
    return shared, one


def through_copy(module, x, *more):
    return module(x * 1, *more)  # an in-place layer must not write over a leaf


# ---- The layer

def _layers(group, rank, dtype, channels, layout, activation, strategies):
    for strategy in strategies:
        shared, one = pair(group, channels, dtype, activation=activation, strategy=strategy, in_place=strategy != "checkpoint")
        x = images(group, channels, 5, 3, dtype=dtype, layout=layout)
        # The inverse of an activation with two branches is itself exact to 1e-6 in f32.
        tolerance = 4e-6 if strategy == "inplace_bit" and dtype == torch.float32 else None
        steps_like_one_process(group, rank, (shared, through_copy), (one, through_copy), [x], tolerance=tolerance)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("channels", [1, 65, 1000])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_strategy_equals_one_big_batch(ranks, world, channels, layout, dtype):
    monotone = ("standard", "checkpoint", "checkpoint_normalized", "inplace_1", "inplace_2", "store_y")
    ranks.run(world, _layers, dtype, channels, layout, "leaky_relu", monotone)
    ranks.run(world, _layers, dtype, channels, layout, "silu", ("inplace_bit", "store_y"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(ranks, dtype):
    ranks.run(3, _layers, dtype, 65, torch.contiguous_format, "leaky_relu", ("inplace_2", "store_y"))


def _other_ranks(group, rank, shape):
    shared, one = pair(group, 7, torch.float64)
    steps_like_one_process(group, rank, (shared, through_copy), (one, through_copy), [images(group, *shape)])


@pytest.mark.parametrize("shape", [(7,), (7, 4), (7, 2, 3, 2)])
def test_inputs_of_any_rank(ranks, shape):
    ranks.run(3, _other_ranks, shape)


def _views(group, rank):
    for view in (lambda x: x.transpose(2, 3), lambda x: x[..., ::2], lambda x: x.transpose(2, 3).contiguous().transpose(2, 3)):
        shared, one = pair(group, 6, torch.float64, in_place=False)

        def call(module, x, view=view):
            return module(view(x))

        steps_like_one_process(group, rank, (shared, call), (one, call), [images(group, 6, 4, 6)])


def test_views(ranks):
    ranks.run(3, _views)


def _options(group, rank):
    for momentum in (None, 0.0, 1.0):
        shared, one = pair(group, 6, torch.float64)
        shared.momentum = one.momentum = momentum
        steps_like_one_process(group, rank, (shared, through_copy), (one, through_copy), [images(group, 6, 4, 6)])
    shared, one = pair(group, 6, torch.float64)
    for module in (shared, one):
        for name in ("running_mean", "running_var"):  # the kernel writes to contiguous ones
            setattr(module, name, getattr(module, name).repeat_interleave(2)[::2])
    steps_like_one_process(group, rank, (shared, through_copy), (one, through_copy), [images(group, 6, 4, 6)])
    plain = palimpsest.nn.BatchNormAct(6, affine=False, track_running_stats=False).double()
    shared = copy.deepcopy(plain)
    shared.group = group.group_name
    steps_like_one_process(group, rank, (shared, through_copy), (plain, through_copy), [images(group, 6, 4, 6)])


def test_momentum_running_statistics_and_parameters_of_any_kind(ranks):
    ranks.run(3, _options)


def _twice(group, rank):
    shared, one = pair(group, 6, torch.float64)

    def call(module, x):
        return module(module(x * 1) * 2)

    steps_like_one_process(group, rank, (shared, call), (one, call), [images(group, 6, 4, 6)])
    x = images(group, 6, 4, 4)
    part, whole = part_of(x, group, rank), x.clone().requires_grad_()
    for module, values in ((shared, part), (one, whole)):
        module.requires_grad_(False)
        loss = module(values * 1).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert_close(part.grad, part_of(whole.grad, group, rank).detach(), 1e-12, "two backward passes")


def test_a_layer_used_twice_and_two_backward_passes(ranks):
    ranks.run(3, _twice)


def _residual(group, rank):
    shared, one = pair(group, 8, torch.float64)
    inputs = [images(group, 8, 3, 3), images(group, 8, 3, 3, seed=5)]
    steps_like_one_process(group, rank, (shared, through_copy), (one, through_copy), inputs)


def test_with_a_residual(ranks):
    ranks.run(4, _residual)


def _weak_weights(group, rank, zeros):
    """Channels whose weight is 0 save the normalized x: one by one, or all of a layer."""
    shared, one = pair(group, 64, torch.float64)
    for module in (shared, one):
        with torch.no_grad():
            module.weight[:zeros] = 0
    steps_like_one_process(group, rank, (shared, through_copy), (one, through_copy), [images(group, 64, 3, 3)])


@pytest.mark.parametrize("zeros", [1, 2, 40])
def test_channels_that_the_output_does_not_determine(ranks, zeros):
    ranks.run(3, _weak_weights, zeros)


def _one_value(group, rank):
    shared, one = pair(group, 5, torch.float64)
    batches = {2: [1, 1], 3: [1, 0, 1]}
    steps_like_one_process(group, rank, (shared, through_copy), (one, through_copy), [images(group, 5, batches=batches)],
                           batches=batches)


@pytest.mark.parametrize("world", [2, 3])
def test_one_value_per_channel_on_a_rank_is_enough(ranks, world):
    ranks.run(world, _one_value)


def _too_few(group, rank):
    shared, _ = pair(group, 5, torch.float64)
    before = shared.running_mean.clone()
    try:
        shared(torch.ones(1 - rank, 5, dtype=torch.float64))
    except ValueError as error:
        message = str(error).split("\n")[0]
    assert torch.equal(shared.running_mean, before)
    empty = torch.ones(0, 5, dtype=torch.float64, requires_grad=True)
    shared(empty * 1).sum().backward()  # all ranks have an empty batch
    assert empty.grad.shape == (0, 5) and torch.equal(shared.running_mean, before)
    return message


def test_one_value_in_all_ranks_is_an_error_on_all(ranks):
    first, second = ranks.run(2, _too_few)
    assert first == second and "more than one value per channel, got one in all 2 ranks" in first


def _frozen(group, rank):
    shared, one = pair(group, 6, torch.float64)
    ops.reset_group_traffic()
    x = images(group, 6, 3, 3)[:rank + 1].requires_grad_()
    for mode in (False, True):
        shared.train(mode), one.train(mode)
        if mode:  # frozen statistics in training
            arguments = one.running_mean, one.running_var, one.weight, one.bias, False
            got, want = (functional.batch_norm_act(x, *arguments, group=g) for g in (group, None))
        else:
            got, want = shared(x * 1), one(x * 1)
        assert torch.equal(got, want)
        got.sum().backward()
    assert ops.group_traffic() == (0, 0)


def test_eval_mode_and_frozen_statistics_send_nothing(ranks):
    ranks.run(2, _frozen)


def _without_running_statistics(group, rank):
    layer = palimpsest.nn.InPlaceABN(5, track_running_stats=False, group=group).eval()
    ops.reset_group_traffic()
    block = palimpsest.nn.DenseBlock(2, 5, 4, group=group).eval()
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
    if rank == 0:  # the others are not asked
        layer(torch.randn(3, 5, 2, 2))
        block(torch.randn(3, 5, 2, 2))
    assert ops.group_traffic() == (0, 0)


def test_a_layer_without_running_statistics_asks_nobody_in_eval_mode(ranks):
    ranks.run(2, _without_running_statistics)


def _traffic(group, rank):
    counts = []
    for dtype in (torch.float32, torch.float64):
        shared, _ = pair(group, 33, dtype)
        x = images(group, 33, 4, 4, dtype=dtype)[:rank].requires_grad_()
        for needs in (True, False):
            ops.reset_group_traffic()
            z = shared(x.detach().requires_grad_(needs) * 1)
            forward = ops.group_traffic()
            z.sum().backward()
            counts.append((forward, ops.group_traffic()))
    return counts


def test_one_collective_per_layer_and_direction(ranks):
    for counts in ranks.run(3, _traffic):
        gather = (2 * 33 + 1) * 8
        assert counts == [((1, gather), (2, gather + 2 * 33 * 4)), ((1, gather), (1, gather)),
                          ((1, gather), (2, gather + 2 * 33 * 8)), ((1, gather), (1, gather))]


def _kept(group, rank):
    x = torch.randn(4, 256, 28, 28).requires_grad_()

    def kept_bytes(module, pause):
        with palimpsest.memory.measure() as measured:
            z = module(x * 1)
            time.sleep(pause)
            measured.forward_done()
            z.sum().backward()
        del z  # or the next measurement sees it go
        return measured.kept_bytes

    kept = []
    for strategy in ("inplace_2", "store_y", "checkpoint"):
        shared, alone = pair(group, 256, torch.float32, strategy=strategy)
        for module in (shared, alone):
            module(x * 1)  # what is made once
        time.sleep(0.1)
        expected = kept_bytes(alone, 0)
        # Gloo's thread sometimes holds what it has gathered a moment longer, so the least of several counts. Each rank
        # measures as often as the others: one that stopped at a good figure would leave them in a collective for ever.
        of_shared = min(kept_bytes(shared, pause) for pause in (0, 0.01, 0.01, 0.1, 0.1, 0.1, 1, 1))
        kept += [of_shared, expected]
    return kept


def test_a_rank_keeps_what_one_process_keeps(ranks):
    for kept in ranks.run(2, _kept):
        for shared, alone in zip(kept[::2], kept[1::2]):
            assert alone <= shared <= alone + 64  # the number of values


def _alone(group, rank):
    shared, one = pair(group, 9, torch.float32)
    ops.reset_group_traffic()
    x = torch.randn(4, 9, 3, 3)
    assert torch.equal(shared(x * 1), one(x * 1)) and torch.equal(shared.running_var, one.running_var)
    assert ops.group_traffic() == (0, 0)
    with pytest.raises(ValueError, match="more than one value per channel"):
        shared(torch.ones(1, 9))


def test_a_group_of_one_process_is_no_group(ranks):
    ranks.run(1, _alone)


def test_a_name_that_is_no_group():
    x = torch.randn(4, 3)
    with pytest.raises(RuntimeError, match="must be the name of a process group of this process, got 'nobody'"):
        ops.abn(x, None, None, None, None, group="nobody")
    with pytest.raises(ValueError, match="ProcessGroup that this process belongs to, its name or None, got int"):
        palimpsest.nn.BatchNormAct(3, group=5)
    module = palimpsest.nn.BatchNormAct(3, group="nobody")
    assert "group='nobody'" in repr(module)
    assert pickle.loads(pickle.dumps(module)).group == copy.deepcopy(module).group == "nobody"
    module.eval()(x)  # nothing is asked of a group


# ---- Operators with the layer inside

def _convolved(group, rank, dtype, activation, saved):
    generator = torch.Generator().manual_seed(4)
    kernel = torch.randn(6, 10, 3, 3, generator=generator, dtype=torch.float64).to(dtype)

    class Block(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.norm, self.kernel, self.name = randomized(nn.BatchNorm2d(10)).to(dtype), nn.Parameter(kernel.clone()), name

        def forward(self, x):
            n = self.norm
            return ops.abn_conv_(x * 1, n.weight, n.bias, n.running_mean, n.running_var, self.kernel, None, [1, 1], [1, 1],
                                 [1, 1], activation=activation, saved=saved, group=self.name)

    call = Block.__call__
    steps_like_one_process(group, rank, (Block(group.group_name), call), (Block(""), call), [images(group, 10, 5, 4, dtype=dtype)])


@pytest.mark.parametrize("saved", ["pre_activation", "normalized", "input", "output"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_convolution_behind_it(ranks, saved, dtype):
    ranks.run(3, _convolved, dtype, "leaky_relu" if saved == "output" else "relu", saved)


def _concatenated(group, rank):
    generator = torch.Generator().manual_seed(4)
    kernel = torch.randn(6, 10, 1, 1, generator=generator, dtype=torch.float64)

    class Block(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.norm, self.kernel, self.name = randomized(nn.BatchNorm2d(10)).double(), nn.Parameter(kernel.clone()), name

        def forward(self, x, y):
            n = self.norm
            return ops.concat_abn_conv([x, y], n.weight, n.bias, n.running_mean, n.running_var, self.kernel, [1, 1], [0, 0],
                                       [1, 1], activation="relu", pool=True, group=self.name)

    call = Block.__call__
    inputs = [images(group, 4, 5, 4), images(group, 6, 5, 4, seed=2)]
    steps_like_one_process(group, rank, (Block(group.group_name), call), (Block(""), call), inputs)


def test_a_concatenation_before_it(ranks):
    ranks.run(3, _concatenated)


def _dense(group, rank, dtype, layout, hooked):
    torch.manual_seed(2)
    whole = palimpsest.nn.DenseBlock(3, 8, 4).to(dtype)
    for module in whole.modules():
        if isinstance(module, nn.BatchNorm2d):
            randomized(module)
    shared = palimpsest.nn.DenseBlock(3, 8, 4, group=group).to(dtype)
    shared.load_state_dict(whole.state_dict())
    if hooked:  # the layers run one by one
        shared.denselayer1.register_forward_hook(lambda *_: None)
    ops.reset_group_traffic()
    call = nn.Module.__call__
    steps_like_one_process(group, rank, (shared, call), (whole, call), [images(group, 8, 6, 5, dtype=dtype, layout=layout)],
                           tolerance=2e-6 if dtype == torch.float32 else None)
    return ops.group_traffic()[0]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_dense_block(ranks, world, layout, dtype):
    for collectives in ranks.run(world, _dense, dtype, layout, False):
        assert collectives == 14  # the input and, for each layer, its bottleneck and its features, but for the last; twice
    ranks.run(world, _dense, dtype, layout, True)


# ---- With the rest of PyTorch

def _network(group=None, activation="leaky_relu"):
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), palimpsest.nn.InPlaceABN(8, activation=activation, group=group),
                         nn.Conv2d(8, 8, 3, padding=1, bias=False), palimpsest.nn.InPlaceABN(8, activation=activation, group=group),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).double()


class _Checkpointed(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        inner = functools.partial(palimpsest.checkpoint, self.network[2:4])
        return self.network[4:](palimpsest.checkpoint(lambda y: inner(self.network[:2](y)), x))


def _checkpointed(group, rank):
    shared, one = _Checkpointed(_network(group)), _Checkpointed(_network())
    ops.reset_group_traffic()
    call = nn.Module.__call__
    steps_like_one_process(group, rank, (shared, call), (one, call), [images(group, 3, 6, 6)])
    return ops.group_traffic()[0]


def test_a_checkpoint_sends_nothing_again(ranks):
    assert ranks.run(3, _checkpointed) == [4, 4, 4]


def _compiled(group, rank):
    shared, one = _network(group), _network()
    torch._dynamo.reset()
    step = torch.compile(shared, fullgraph=True, backend="aot_eager")
    call = nn.Module.__call__
    steps_like_one_process(group, rank, (shared, lambda _, x: step(x)), (one, call), [images(group, 3, 6, 6)])


def test_compiled_without_a_break(ranks):
    ranks.run(2, _compiled)


def _autocast(group, rank):
    shared, one = _network(group).float(), _network().float()

    def call(module, x):
        with torch.autocast("cpu", torch.bfloat16):
            return module(x).float()

    steps_like_one_process(group, rank, (shared, call), (one, call), [images(group, 3, 6, 6, dtype=torch.float32)], tolerance=5e-2)


def test_autocast(ranks):
    ranks.run(2, _autocast)


def _sgd(module, parameters=None):
    return torch.optim.SGD(parameters or module.parameters(), lr=0.05, momentum=0.9)


def _trained(group, rank, kind, count=50):
    """Steps of the group, with as many images on each rank, and of one process with all of them."""
    world = dist.get_world_size(group)
    batches = {world: [2] * world}
    shared, whole = _network(group), _network()
    model, optimizer = shared, None
    if kind == "fsdp":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard
        fully_shard(shared, mesh=DeviceMesh.from_group(group, "cpu"))
    else:
        model = nn.parallel.DistributedDataParallel(shared, process_group=group)
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(shared.parameters(), torch.optim.SGD, process_group=group, lr=0.05, momentum=0.9)
    optimizers = optimizer or _sgd(shared), _sgd(whole)
    for i in range(count):
        x = images(group, 3, 6, 6, batches=batches, seed=i)
        y = torch.arange(len(x)) % 5
        for module, optimizer, rows in ((model, optimizers[0], slice(2 * rank, 2 * rank + 2)), (whole, optimizers[1], slice(None))):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
    state = {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in shared.state_dict().items()}
    for name, t in whole.state_dict().items():
        assert_close(state[name].double(), t.double(), 1e-10, name)
        assert_same_bits(state[name], group, name)


@pytest.mark.parametrize("world", [2, 4])
def test_fifty_steps_of_data_parallelism_equal_one_process(ranks, world):
    ranks.run(world, _trained, "ddp")


@pytest.mark.parametrize("kind", ["fsdp", "zero"])
def test_sharded_training(ranks, kind):
    ranks.run(2, _trained, kind, 5)


# ---- The drop-in

def _dropped_in(group, rank):
    torch.manual_seed(1)
    shared, one = inplace_abn.InPlaceABNSync(6, group=group).double(), inplace_abn.InPlaceABN(6).double()
    steps_like_one_process(group, rank, (shared, through_copy), (one, through_copy), [images(group, 6, 4, 4)])
    x = images(group, 6, 4, 4)
    want = inplace_abn.inplace_abn(x.clone(), None, None, None, None)
    got = inplace_abn.inplace_abn_sync(part_of(x, group, rank).detach(), None, None, None, None, group=group)
    assert_close(got, part_of(want, group, rank).detach(), 1e-12, "function")


@pytest.mark.parametrize("world", [2, 3])
def test_the_drop_in(ranks, world):
    ranks.run(world, _dropped_in)


def _active(group, rank):
    module = nn.Sequential(inplace_abn.InPlaceABNSync(6)).double()
    active = inplace_abn.active_group(rank < 3)
    inplace_abn.set_active_group(module, active)
    if rank == 3:
        return
    module = pickle.loads(pickle.dumps(copy.deepcopy(module)))
    x = images(active, 6, 4, 4)
    want = inplace_abn.inplace_abn(x.clone(), None, None, None, None)
    assert_close(module(part_of(x, active, rank).detach()).detach(), part_of(want, active, rank).detach(), 1e-12, "module")


def test_an_active_group(ranks):
    ranks.run(4, _active)

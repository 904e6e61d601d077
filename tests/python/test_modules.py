"""The modules against torch's own: outputs, gradients, statistics, state dicts, and the rest of PyTorch around them."""
import concurrent.futures
import copy
import functools
import io
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch.nn import functional as F

import palimpsest
from palimpsest import functional, nn

ACTIVATIONS = functional.activation_names()


class Reference(torch.nn.BatchNorm2d):
    """BatchNorm2d and the activation as torch has them."""
    activation = "leaky_relu"

    def forward(self, x, residual=None):
        y = super().forward(x)
        return functional.activate(y if residual is None else y + residual, self.activation)


def reference(activation):
    norm = Reference(6).double()
    norm.activation = activation
    return norm


def results(layer, x, residual=None):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    leaves = [x]
    if residual is not None:
        leaves.append(residual.detach().clone().requires_grad_())
    z = layer(x + 0, *leaves[1:])
    z.backward(torch.linspace(-1, 1, z.numel(), dtype=z.dtype).reshape(z.shape))
    gradients = [leaf.grad for leaf in (*leaves, *layer.parameters())]
    return [z.detach(), *gradients, *(b.double() for b in layer.buffers())]


def assert_same(got, want, bound=1e-9):
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want)):
        assert torch.isfinite(g).all() and (g - w).norm() <= bound * (1 + w.norm()), f"result {i}: {(g - w).norm()}"


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_strategy_gives_the_results_of_torchs_layers(activation, layout):
    torch.manual_seed(1)
    x, residual = (torch.randn(4, 6, 5, 7, dtype=torch.double).contiguous(memory_format=layout) for _ in range(2))
    norm = reference(activation)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -0.7, 2.0, 0.5, 1.5, -1.0]))
        norm.bias.uniform_(-1, 1)
    tried = 0
    for strategy in ("auto", *functional.strategy_names()):
        for in_place in (False, True):
            try:
                layer = nn.BatchNormAct(6, activation=activation, strategy=strategy, in_place=in_place).double()
            except ValueError as error:
                assert activation in str(error) and strategy.startswith("inplace")
                continue
            for training in (True, False):
                for r in (None, residual):
                    layer.load_state_dict(norm.state_dict())
                    theirs = copy.deepcopy(norm).train(training)
                    layer.zero_grad()
                    assert_same(results(layer.train(training), x, r), results(theirs, x, r))
            tried += 1
    assert tried >= 8


def test_state_dicts_fit_both_ways_and_names_and_order_are_torchs():
    ours, theirs = nn.BatchNormAct(6), torch.nn.BatchNorm2d(6)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict(), strict=True)
    assert [name for name, _ in ours.named_parameters()] == ["weight", "bias"]


def test_torchs_converter_loses_no_activation():
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 1), nn.BatchNormAct(6))
    assert isinstance(torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)[1], nn.BatchNormAct)


@pytest.mark.parametrize("options", [dict(affine=False), dict(track_running_stats=False), dict(momentum=None)])
def test_the_options_of_torchs_layer_mean_the_same(options):
    torch.manual_seed(7)
    ours, theirs = nn.BatchNormAct(6, **options).double(), Reference(6, **options).double()
    for training in (True, True, False, None):
        if training is None:  # switched off later: the batch's statistics, and none move
            ours.track_running_stats = theirs.track_running_stats = False
        x = torch.randn(4, 6, 5, 5, dtype=torch.double)
        for layer in (ours, theirs):
            layer.train(training is not False).zero_grad()
        assert_same(results(ours, x), results(theirs, x))


def test_wrong_names_pairs_and_shapes_are_one_clear_exception():
    for arguments, says in ((dict(activation="rellu"), "unknown activation 'rellu'"),
                            (dict(strategy="inplaced"), "unknown strategy"),
                            (dict(activation="relu", strategy="inplace_2"), "does not fit the activation 'relu'")):
        with pytest.raises(ValueError, match=says):
            nn.BatchNormAct(6, **arguments)
    with pytest.raises(ValueError, match=r"needs \(N, 6, ...\), got shape \(2, 5, 3, 3\)"):
        nn.BatchNormAct(6)(torch.randn(2, 5, 3, 3))
    with pytest.raises(ValueError, match="no indices"):
        nn.MaxPool2d(2, return_indices=True)
    with pytest.raises(ValueError, match="num_layers >= 1"):
        nn.DenseBlock(0, 8, 4)


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "save"])
def test_copies_are_layers_of_their_own(copied):
    layer = nn.InPlaceABN(6, activation="elu", activation_param=0.5)
    if copied == "deepcopy":
        other = copy.deepcopy(layer)
    elif copied == "pickle":
        other = pickle.loads(pickle.dumps(layer))
    else:
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    x = torch.randn(2, 6, 4, 4)
    assert torch.equal(layer(x.clone()), other(x.clone()))
    assert other.weight is not layer.weight and repr(other) == repr(layer)


def test_functional_call_uses_the_given_parameters():
    layer = nn.BatchNormAct(6)
    given = {"weight": torch.full((6,), 2.0), "bias": torch.ones(6)}
    x = torch.randn(3, 6, 4, 4)
    want = F.leaky_relu(F.batch_norm(x, None, None, given["weight"], given["bias"], True))
    assert torch.allclose(torch.func.functional_call(layer, given, x), want, atol=1e-5)


def network():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), nn.BatchNormAct(6, activation="silu"), nn.MaxPool2d(2),
                               torch.nn.Conv2d(6, 6, 3), nn.InPlaceABN(6))


def test_a_compiled_network_has_no_break_and_the_same_gradients():
    torch.manual_seed(2)
    eager = network()
    compiled_source = copy.deepcopy(eager)
    compiled = torch.compile(compiled_source, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 12, 12)
    for step in (eager, compiled):
        step(x).square().sum().backward()
    for a, b in zip(eager.parameters(), compiled_source.parameters()):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    assert all(torch.allclose(a.double(), b.double()) for a, b in zip(eager.buffers(), compiled_source.buffers()))


def test_an_exported_program_needs_no_operator_of_ours():
    model = network().eval()
    x = torch.randn(2, 3, 12, 12)
    program = torch.export.export(model, (x,))
    assert "palimpsest" not in str(program.graph)
    assert torch.allclose(program.module()(x), model(x), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_gradients_near_f32s(dtype):
    torch.manual_seed(3)
    plain = network()
    cast = copy.deepcopy(plain)
    x = torch.randn(4, 3, 12, 12)
    plain(x).square().mean().backward()
    with torch.autocast("cpu", dtype):
        loss = cast(x).float().square().mean()
    loss.backward()
    for a, b in zip(plain.parameters(), cast.parameters()):
        if a.grad.norm() > 1e-3:  # a bias before a normalization has none
            assert (a.grad - b.grad).norm() < 0.1 * a.grad.norm()


@pytest.mark.parametrize("options", [dict(kernel_size=3, stride=2, padding=1), dict(kernel_size=2),
                                     dict(kernel_size=(2, 3), stride=(1, 2)), dict(kernel_size=3, dilation=2, ceil_mode=True),
                                     dict(kernel_size=17, stride=1, padding=8), dict(kernel_size=(16, 16), padding=8)])
def test_max_pooling_is_torchs(options):
    x = torch.randn(2, 3, 11, 13, dtype=torch.double)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours, theirs = nn.MaxPool2d(**options)(a), torch.nn.MaxPool2d(**options)(b)
    assert torch.equal(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("training", [True, False])
def test_a_dense_block_is_torchvisions(training):
    densenet = pytest.importorskip("torchvision").models.densenet
    torch.manual_seed(4)
    theirs = densenet._DenseBlock(3, 8, 4, 4, 0.0).double()
    ours = nn.DenseBlock(3, 8, 4).double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 8, 6, 6, dtype=torch.double)
    assert_same(results(ours.train(training), x), results(theirs.train(training), x))


def freeze_all(block):
    for module in block.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()


CHANGES = {  # of a dense block and of torchvision's alike
    "all norms frozen": freeze_all,
    "one norm frozen": lambda block: block.denselayer2.norm1.eval(),
    "momentum of one": lambda block: setattr(block.denselayer2.norm1, "momentum", 0.7),
    "momentum None": lambda block: [setattr(layer.norm2, "momentum", None) for layer in block.children()],
    "eps of one": lambda block: setattr(block.denselayer1.norm2, "eps", 0.3),
    "eps of all": lambda block: [setattr(norm, "eps", 0.3) for layer in block.children() for norm in (layer.norm1, layer.norm2)],
    "no tracking": lambda block: setattr(block.denselayer1.norm1, "track_running_stats", False),
    "bias of a convolution": lambda block: setattr(block.denselayer2.conv2, "bias", torch.nn.Parameter(torch.ones(4).double())),
    "dilation": lambda block: [setattr(block.denselayer1.conv2, name, (2, 2)) for name in ("dilation", "padding")],
    "a hook": lambda block: block.denselayer1.norm1.register_forward_hook(lambda module, x, y: y * 2) and None,
    "a layer in eval": lambda block: block.denselayer1.eval(),
    "the first norm replaced": lambda block: setattr(block.denselayer1, "norm1", torch.nn.GroupNorm(2, 8).double()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_dense_block_that_was_changed_is_torchvisions(change):
    densenet = pytest.importorskip("torchvision").models.densenet
    torch.manual_seed(4)
    theirs = densenet._DenseBlock(3, 8, 4, 4, 0.0).double()
    ours = nn.DenseBlock(3, 8, 4).double()
    ours.load_state_dict(theirs.state_dict())
    for block in (ours, theirs):
        CHANGES[change](block)
    x = torch.randn(2, 8, 6, 6, dtype=torch.double)
    for _ in range(2):
        assert_same(results(ours, x), results(theirs, x))


def test_a_dense_block_drops_in_the_layers_that_train():
    torch.manual_seed(4)
    dropping, plain = nn.DenseBlock(2, 8, 4, drop_rate=0.5).double(), nn.DenseBlock(2, 8, 4).double()
    plain.load_state_dict(dropping.state_dict())
    x = torch.randn(2, 8, 6, 6, dtype=torch.double)
    for block in (dropping, plain):
        for layer in block.children():
            layer.eval()
    assert_same(results(dropping, x), results(plain, x))
    for block in (dropping, plain):
        block.denselayer2.train()
    dropped = (dropping(x)[:, -4:] == 0).double().mean()
    assert 0.3 < dropped < 0.7 and torch.allclose(dropping(x)[:, :12], plain(x)[:, :12])


def test_a_dense_block_under_autocast_has_torchvisions_dtype():
    densenet = pytest.importorskip("torchvision").models.densenet
    ours, theirs = nn.DenseBlock(2, 8, 4), densenet._DenseBlock(2, 8, 4, 4, 0.0)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 8, 6, 6, dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16):
            got, want = ours(x), theirs(x)
        assert got.dtype == want.dtype and torch.equal(got[:, :8], x.to(got.dtype))


def test_a_dense_block_synchronizes_where_torch_says_so(monkeypatch):
    block = torch.nn.SyncBatchNorm.convert_sync_batchnorm(nn.DenseBlock(2, 8, 4))
    synchronized = []
    monkeypatch.setattr(torch.nn.SyncBatchNorm, "forward", lambda self, x: synchronized.append(self) or x)
    block(torch.randn(2, 8, 6, 6))
    assert len(synchronized) == 4


def test_a_dense_block_follows_its_normalizations_where_they_have_another_group():
    torch.manual_seed(4)
    block = nn.DenseBlock(2, 8, 4)
    x = torch.randn(2, 8, 6, 6)
    want = block(x)
    block.group = "no group of this name"  # the operator would look for it
    assert block(x).allclose(want, atol=1e-5)


def test_a_compiled_dense_block_has_the_gradients_of_the_plain_one():
    torch.manual_seed(4)
    plain = nn.DenseBlock(2, 8, 4, activation="leaky_relu").double()
    compiled = copy.deepcopy(plain)
    x = torch.randn(2, 8, 6, 6, dtype=torch.double)
    want = results(plain, x)
    run = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    run(x).backward(torch.linspace(-1, 1, want[0].numel(), dtype=torch.double).reshape(want[0].shape))
    assert_same([p.grad for p in compiled.parameters()], want[2:2 + len(list(plain.parameters()))])


def kept(model, x):
    with palimpsest.memory.measure() as m:
        y = model(x)
        m.forward_done()
        y.sum().backward()
    return m


def test_measure_counts_what_is_kept_and_the_peak():
    x = torch.randn(4, 16, 32, 32)
    size = x.nbytes
    def between(*layers):
        return torch.nn.Sequential(torch.nn.Conv2d(16, 16, 1), *layers, torch.nn.Conv2d(16, 16, 1))

    relus, ours = between(torch.nn.BatchNorm2d(16), torch.nn.ReLU(inplace=True)), between(nn.InPlaceABN(16))
    for model in (relus, ours):
        kept(model, x)  # buffers that libraries keep are made now
    theirs, mine = kept(relus, x), kept(ours, x)
    assert 3 * size <= theirs.kept_bytes < 3.2 * size  # the normalization's input, its output, and y
    assert 2 * size <= mine.kept_bytes < 2.2 * size
    for m in (theirs, mine):
        assert m.peak_bytes >= m.kept_bytes and max(b for _, b in m.timeline) == m.peak_bytes
        assert [t for t, _ in m.timeline] == sorted(t for t, _ in m.timeline)


def test_measure_warns_of_what_was_there_before_and_was_freed():
    model, x = torch.nn.Linear(200, 300), torch.randn(4, 200)

    def step():
        model.zero_grad()
        model(x).sum().backward()

    step()
    with pytest.warns(RuntimeWarning, match="241,200 bytes of tensors from before were freed"), palimpsest.memory.measure():
        step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with palimpsest.memory.measure() as m:  # the profiler has seen the gradients of the last step
            step()
    assert m.end_bytes == 0


def test_measure_passes_over_tensors_without_memory():
    lazy, meta = torch.nn.LazyLinear(3), torch.empty(3, device="meta")
    with palimpsest.memory.measure() as m:
        torch.ones(10)
    assert m.peak_bytes == 40 and lazy.weight is not None and meta.is_meta


def test_measurements_do_not_nest():
    with palimpsest.memory.measure(), pytest.raises(RuntimeError, match="end the measurement or the profile around it"):
        with palimpsest.memory.measure():
            pass
    with torch.profiler.profile(), pytest.raises(RuntimeError, match="end the measurement or the profile around it"):
        with palimpsest.memory.measure():
            pass


def test_measure_without_forward_done_keeps_nothing_and_hands_on_exceptions():
    with palimpsest.memory.measure() as m:
        held = torch.zeros(1000)
    assert m.kept_bytes == 0 and m.end_bytes == held.nbytes == m.peak_bytes
    with pytest.raises(KeyError):
        with palimpsest.memory.measure():
            raise KeyError("mine")


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [lambda: nn.InPlaceABN(4), lambda: nn.BatchNormAct(4), lambda: nn.DenseBlock(2, 4, 4),
                                  lambda: nn.BatchNormAct(4, activation="relu"), lambda: nn.MaxPool2d(2)])
def test_forward_mode_of_frozen_layers_is_refused(make, training, grad_mode):
    """Nothing is recorded there, so autograd does not refuse it: in place, z had the tangent of x."""
    layer = make().double().train(training).requires_grad_(False)
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    with torch.autograd.forward_ad.dual_level(), torch.set_grad_enabled(grad_mode):
        dual = torch.autograd.forward_ad.make_dual(x.clone(), torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="forward-mode differentiation|forward AD"):
            layer(dual)
        layer(x.clone())
        # Statistics that torch's layer takes have a tangent.
        assert torch.autograd.forward_ad.unpack_dual(torch.nn.BatchNorm2d(4).double()(dual)).tangent is not None


def test_torch_func_jvp_of_a_frozen_layer_is_refused():
    layer = nn.BatchNormAct(4).eval().requires_grad_(False)
    x = torch.randn(2, 4, 6, 6)
    with pytest.raises(NotImplementedError, match="forward-mode differentiation"):
        torch.func.jvp(layer, (x,), (x,))


# weight, bias, whether z underflows, and the relative error of dx
@pytest.mark.parametrize("dtype,weight,bias,underflows,limit", [
    (torch.float32, 1, 0, False, 1e-6), (torch.float32, 8, 0, False, 1e-6), (torch.float32, 30, 0, True, 1e-6),
    (torch.float32, 40, 0, True, 1e-6), (torch.float32, 100, 0, True, 1e-6), (torch.float32, -40, 3, True, 1e-6),
    (torch.float64, 1, 0, False, 1e-14), (torch.float64, 300, 5, True, 1e-14), (torch.float16, 1, 0, False, 1e-3),
    (torch.float16, 3, -8, True, 1e-3), (torch.float16, 8, 0, True, 1e-3), (torch.bfloat16, 1, 0, False, 1e-2),
    (torch.bfloat16, 300, 0, True, 1e-2)])
def test_softplus_keeps_its_digits_where_z_underflows(dtype, weight, bias, underflows, limit):
    torch.manual_seed(0)
    layer = nn.BatchNormAct(4, activation="softplus").to(torch.promote_types(dtype, torch.float32))
    torch.nn.init.constant_(layer.weight, weight)
    torch.nn.init.constant_(layer.bias, bias)
    x, dz = torch.randn(2, 8, 4, 16, 16).to(dtype)
    mine, exact = x.clone().requires_grad_(), x.clone().double().requires_grad_()
    torch.ops.palimpsest.reset_abn_fallback_stats()
    layer(mine).backward(dz)
    y = F.batch_norm(exact, None, None, layer.weight.detach().double(), layer.bias.detach().double(), True)
    torch.logaddexp(y, torch.zeros_like(y)).backward(dz.double())  # F.softplus is y above 20
    assert (mine.grad.double() - exact.grad).norm() <= limit * exact.grad.norm()
    assert (torch.ops.palimpsest.abn_fallback_stats()[0] == 1) == underflows


def segment():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.Dropout(0.4),
                               torch.nn.Conv2d(6, 6, 3), nn.BatchNormAct(6, momentum=None))


@pytest.mark.parametrize("form", ["plain", "nested", "twice"])
def test_checkpoint_gives_the_bytes_of_the_plain_run(form):
    torch.manual_seed(5)
    x = torch.randn(2, 3, 10, 10)
    made = segment()
    seen = []
    for recomputes in (False, True):
        part = copy.deepcopy(made)
        leaf = x.clone().requires_grad_()
        torch.manual_seed(6)

        def run(value):
            if form == "nested" and recomputes:
                return palimpsest.checkpoint(lambda v: part[3:](palimpsest.checkpoint(part[:3], v)), value)
            return palimpsest.checkpoint(part, value) if recomputes else part(value)

        y = run(leaf)
        if form == "twice":
            y = y.sum() + run(leaf.flip(0)).sum()
        y.sin().sum().backward()
        seen.append([leaf.grad, *(p.grad for p in part.parameters()), *part.buffers(), torch.get_rng_state()])
    for a, b in zip(*seen):
        assert torch.equal(a, b)


def _function(strategy):
    norm = nn.BatchNormAct(6, strategy=strategy)
    return norm, lambda x: functional.batch_norm_act(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, True,
                                                     activation="silu", strategy=strategy)


def _direct(**options):  # no hook of a module sees this call
    norm = nn.BatchNormAct(6, **options)
    return norm, norm.forward


def _dense():
    block = nn.DenseBlock(2, 6, 4, drop_rate=0.3)
    return block, block


@pytest.mark.parametrize("make", [lambda: _function("auto"), lambda: _function("standard"), lambda: _direct(activation="silu"),
                                  lambda: _direct(momentum=None), lambda: _direct(strategy="standard"), _dense])
def test_statistics_move_once_under_checkpoint(make):
    torch.manual_seed(5)
    x = torch.randn(2, 6, 5, 5)
    seen = []
    for recomputes in (False, True):
        torch.manual_seed(6)
        module, run = make()
        leaf = x.clone().requires_grad_()
        y = palimpsest.checkpoint(lambda v: run(v).sin(), leaf) if recomputes else run(leaf).sin()
        y.sum().backward()
        seen.append([leaf.grad, *(p.grad for p in module.parameters()), *module.buffers()])
    for plain, again in zip(*seen):
        assert torch.equal(plain, again)


class OwnStatistics(torch.nn.Module):
    """A normalization of somebody's own: no class of torch, and its buffers have their own names."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("m", torch.zeros(6))
        self.register_buffer("v", torch.ones(6))
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.batches.add_(1)
        return self.function(x, self.m, self.v, self.training)


def _by_hand(x, m, v, training):
    if training:
        with torch.no_grad():
            m.lerp_(x.mean((0, 2, 3)), 0.1)
    return x * v.view(1, 6, 1, 1)


_OWN_FUNCTIONS = {
    "F.batch_norm": lambda x, m, v, training: F.batch_norm(x, m, v, None, None, training),
    "torch.batch_norm": lambda x, m, v, training: torch.batch_norm(x, None, None, m, v, training, 0.1, 1e-5, False),
    "native_batch_norm": lambda x, m, v, training: torch.native_batch_norm(x, None, None, m, v, training, 0.1, 1e-5)[0],
    "aten": lambda x, m, v, training: torch.ops.aten._native_batch_norm_legit(x, None, None, m, v, training, 0.1, 1e-5)[0],
    "F.instance_norm": lambda x, m, v, training: F.instance_norm(x, m, v, None, None, training),
    "palimpsest": lambda x, m, v, training: torch.ops.palimpsest.abn(x, None, None, m, v, training),
    "by hand": _by_hand,
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("function", _OWN_FUNCTIONS)
def test_statistics_of_other_modules_move_once_under_checkpoint(function, nested, training):
    torch.manual_seed(5)
    x = torch.randn(2, 6, 5, 5)
    seen = []
    for recomputes in (False, True):
        module = torch.nn.Sequential(OwnStatistics(_OWN_FUNCTIONS[function])).train(training)
        module.append(module[0])  # runs twice
        buffers = list(module.buffers())
        leaf = x.clone().requires_grad_()

        def run(v):
            return palimpsest.checkpoint(module, v).sin() if nested and recomputes else module(v).sin()

        for _ in range(2):
            (palimpsest.checkpoint(run, leaf) if recomputes else run(leaf)).sum().backward()
        assert all(after is before for after, before in zip(module.buffers(), buffers))
        seen.append([*buffers, leaf.grad])
    for plain, again in zip(*seen):
        assert torch.equal(plain, again)


def test_a_segment_may_read_statistics_that_it_takes_itself():
    """A running mean with momentum 1 is the batch's: copies of tensors that the run made would hide it."""
    x = torch.randn(2, 6, 5, 5)

    def centred(v):
        mean, var = torch.zeros(6), torch.ones(6)
        F.batch_norm(v, mean, var, None, None, True, 1.0)
        return (v * mean.view(1, 6, 1, 1)).sin()

    seen = []
    for run in (centred, lambda v: palimpsest.checkpoint(centred, v)):
        leaf = x.clone().requires_grad_()
        run(leaf).sum().backward()
        seen.append(leaf.grad)
    assert torch.equal(*seen)


def test_a_segment_that_fails_in_its_second_run_gives_the_buffers_back():
    module, fails = OwnStatistics(_OWN_FUNCTIONS["F.batch_norm"]), []

    def run(v):
        y = module(v)
        if fails:
            raise KeyError("mine")
        return y.sin()

    before = list(module.buffers())
    y = palimpsest.checkpoint(run, torch.randn(2, 6, 5, 5, requires_grad=True))
    after = [b.clone() for b in before]
    fails.append(True)
    with pytest.raises(KeyError):
        y.sum().backward()
    assert all(a is b for a, b in zip(module.buffers(), before))
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), after))


@pytest.mark.parametrize("read", [
    lambda bn, v: (bn(v) - bn.running_mean.view(1, 6, 1, 1)).sin() * bn.running_var.view(1, 6, 1, 1),
    lambda bn, v: bn.train()(v).sin() * bn.eval()(v * 2),
    lambda bn, v: bn.train()(v).sin() * F.batch_norm(v.flip(0), bn.running_mean, bn.running_var, None, None, False)])
def test_statistics_read_behind_a_normalization_are_those_of_the_first_run(read):
    x = torch.randn(2, 6, 5, 5, dtype=torch.float64)
    seen = []
    for again in (False, True):
        bn = torch.nn.BatchNorm2d(6, momentum=0.5).double()
        leaf = x.clone().requires_grad_()
        (palimpsest.checkpoint(lambda v: read(bn, v), leaf) if again else read(bn, leaf)).sum().backward()
        seen.append([leaf.grad, *bn.buffers()])
    for plain, again in zip(*seen):
        assert torch.equal(plain, again)


def test_statistics_that_a_forward_binds_anew_move_once_under_checkpoint():
    class Rebinding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 2, 3))
            return x.sin()

    x = torch.randn(2, 6, 5, 5, requires_grad=True)
    plain, again = Rebinding(), Rebinding()
    for _ in range(2):
        plain(x).sum().backward()
        palimpsest.checkpoint(again, x).sum().backward()
    assert torch.equal(plain.mean, again.mean)


class Observed(torch.nn.Module):
    """A layer whose parent reads the buffer that an observer has moved."""

    class Observer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("most", torch.zeros((), dtype=torch.float64))

        def forward(self, x):
            self.most.copy_(x.detach().abs().max())
            return x

    def __init__(self):
        super().__init__()
        self.observer, self.linear = self.Observer(), torch.nn.Linear(6, 6, dtype=torch.float64)

    def forward(self, x):
        x = self.observer(x)
        return self.linear(x / self.observer.most.clone()).tanh()


class Cached(torch.nn.Module):
    """A table that is made anew for another length."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(0, dtype=torch.float64))

    def forward(self, x):
        if len(self.table) != len(x):
            self.table = torch.linspace(1, 2, len(x), dtype=torch.float64)
        return (x * self.table[:, None]).sin()


def _hooked():
    module = OwnStatistics(_OWN_FUNCTIONS["F.batch_norm"]).double()
    module.register_buffer("calls", torch.zeros((), dtype=torch.float64))
    module.register_forward_hook(lambda module, *_: module.calls.add_(1) and None)
    return torch.nn.Sequential(module)


def _spectral(function):
    return lambda: function(torch.nn.Linear(6, 6, dtype=torch.float64))


class Remembering(torch.nn.Module):
    """A buffer with a history in the graph."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6, dtype=torch.float64)
        self.register_buffer("state", torch.zeros(6, dtype=torch.float64))

    def forward(self, x):
        self.state = 0.5 * self.state + self.linear(x).mean(0)
        return (self.state * x).tanh()


class Aliased(torch.nn.Module):
    """A part moves the buffer that its parent reads under a name of its own, and a view of it."""

    class Part(torch.nn.Module):
        def __init__(self, buffer):
            super().__init__()
            self.register_buffer("most", buffer)

        def forward(self, x):
            self.most[:1] = x.detach().abs().max()
            return x

    def __init__(self):
        super().__init__()
        self.register_buffer("all", torch.ones(2, dtype=torch.float64))
        self.register_buffer("first", self.all[:1])
        self.part = self.Part(self.all)

    def forward(self, x):
        return (self.part(x) / self.all.clone()[0] + self.first.clone()).sin()


_READ_WHAT_THEY_MOVE = {
    "history": Remembering, "aliases": Aliased,
    "observer": Observed, "cache": Cached, "a hook of its own": _hooked,
    "spectral norm": _spectral(torch.nn.utils.parametrizations.spectral_norm), "old spectral norm": _spectral(torch.nn.utils.spectral_norm),
    "momentum None": lambda: nn.BatchNormAct(6, momentum=None).double(),
}


@pytest.mark.parametrize("make", _READ_WHAT_THEY_MOVE)
@pytest.mark.parametrize("nested", [False, True])
def test_a_second_run_reads_the_buffers_of_the_first(make, nested):
    """Segments that ran more than once before backward: each second run finds what its first run found."""
    generator = torch.Generator().manual_seed(4)
    xs = [scale * torch.randn(size, 6, generator=generator, dtype=torch.float64) for scale, size in ((1, 5), (100, 7), (1, 7))]
    seen = []
    for again in (False, True):
        torch.manual_seed(3)
        module = _READ_WHAT_THEY_MOVE[make]()
        run = functools.partial(palimpsest.checkpoint, module) if again else module
        segment = (lambda x: palimpsest.checkpoint(lambda v: run(v).square(), x)) if again and nested else lambda x: run(x).square()
        leaves = [x.clone().requires_grad_() for x in xs]
        before = list(module.buffers())
        loss = sum(segment(x).sum() for x in leaves)
        loss.backward(retain_graph=True)
        loss.backward()
        if make not in ("cache", "history"):
            assert all(a is b for a, b in zip(module.buffers(), before))
        seen.append([*(x.grad for x in leaves), *(p.grad for p in module.parameters()), *module.buffers()])
    for plain, repeated in zip(*seen, strict=True):
        assert torch.equal(plain, repeated)


def test_buffers_that_are_not_the_module_s_own_stay_what_they_are():
    """Those of functional_call, of a lazy module, of one that makes them in its forward, and of a large normalization."""
    norm, given = torch.nn.BatchNorm1d(6), {"running_mean": torch.ones(6), "running_var": torch.ones(6)}
    own, x = norm.running_mean, torch.randn(4, 6, requires_grad=True)
    palimpsest.checkpoint(lambda v: torch.func.functional_call(norm, given, v).sin(), x).sum().backward()
    assert norm.running_mean is own and own.count_nonzero() == 0
    torch.testing.assert_close(given["running_mean"], 0.9 + 0.1 * x.detach().mean(0))

    lazy = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LazyBatchNorm1d())
    palimpsest.checkpoint(lazy, x).sum().backward()
    assert lazy[1].num_batches_tracked == 1

    class Counting(torch.nn.Module):
        def forward(self, v):
            if "calls" not in self._buffers:
                self.register_buffer("calls", torch.zeros(()))
            self.calls += 1
            return v.sin()

    counting = Counting()
    palimpsest.checkpoint(lambda v: counting(counting(v)), x).sum().backward()
    assert counting.calls == 2

    wide, y = torch.nn.BatchNorm1d(70_000), torch.randn(3, 70_000, requires_grad=True)
    palimpsest.checkpoint(lambda v: wide(v).sin(), y).sum().backward()
    torch.testing.assert_close(wide.running_mean, 0.1 * y.detach().mean(0))


def test_threads_may_share_a_module_whose_segments_run_again():
    norm = torch.nn.BatchNorm1d(6)
    own, starts, ends = norm.running_mean, threading.Barrier(2), threading.Barrier(2)

    def step(_):
        again = []

        def segment(v):
            if again:
                starts.wait(10)
            y = norm(v)
            if again:
                ends.wait(10)
            again.append(True)
            return y.sin()

        palimpsest.checkpoint(segment, torch.ones(4, 6, requires_grad=True)).sum().backward()

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(step, range(2)))
    assert norm.running_mean is own and norm.num_batches_tracked == 2
    torch.testing.assert_close(own, torch.full((6,), 0.19))


def test_a_large_buffer_that_stays_is_not_kept_twice():
    module = OwnStatistics(lambda x, m, v, training: x.sin())
    module.register_buffer("mask", torch.ones(1 << 20))
    module.register_buffer("small_mask", torch.ones(1 << 16))
    x = torch.randn(2, 6, 5, 5, requires_grad=True)
    with palimpsest.memory.measure() as m:
        y = palimpsest.checkpoint(lambda v: module(v).sin(), x)
        m.forward_done()
        y.sum().backward()
    assert m.kept_bytes < 10_000


def test_checkpoint_compiles():
    torch.manual_seed(3)
    norm, compiled_norm = torch.nn.BatchNorm2d(6), torch.nn.BatchNorm2d(6)
    own = nn.BatchNormAct(6)
    compiled_own = copy.deepcopy(own)
    seen = []
    for parts, compiles in (((own, norm), False), ((compiled_own, compiled_norm), True)):
        x = torch.linspace(-1, 1, 300).reshape(2, 6, 5, 5).requires_grad_()

        def run(v):
            return palimpsest.checkpoint(torch.nn.Sequential(*parts), v).sin()

        (torch.compile(run, fullgraph=True, backend="aot_eager") if compiles else run)(x).sum().backward()
        seen.append([x.grad, *(p.grad for part in parts for p in part.parameters()), *(b for part in parts for b in part.buffers())])
    for plain, compiled in zip(*seen, strict=True):
        torch.testing.assert_close(compiled, plain)


def test_update_bn_gives_the_statistics_of_one_pass():
    torch.manual_seed(3)
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 1), torch.nn.BatchNorm2d(6), torch.nn.BatchNorm2d(6, momentum=0.3)).eval()
    ours = torch.nn.Sequential(theirs[0], nn.BatchNormAct(6, activation="identity"), nn.BatchNormAct(6, activation="identity")).eval()
    loader = [(torch.randn(2, 3, 5, 5), "labels") for _ in range(3)]
    torch.optim.swa_utils.update_bn(loader, theirs)
    nn.update_bn(loader, ours)
    for mine, want in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, want)
    assert not ours.training and ours[1].momentum == 0.1
    nn.update_bn((batch for batch, _ in loader), torch.nn.Linear(2, 2))  # nothing to do


def test_a_tracer_is_told_to_make_a_leaf_of_the_layer():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 1), nn.BatchNormAct(6))
    with pytest.raises(TypeError, match="leaf_modules"):
        torch.fx.symbolic_trace(model)
    extract = pytest.importorskip("torchvision.models.feature_extraction").create_feature_extractor
    features = extract(model, ["0", "1"], tracer_kwargs={"leaf_modules": [nn.BatchNormAct]})(torch.randn(2, 3, 5, 5))
    assert features["1"].shape == (2, 6, 5, 5) and model[1].num_batches_tracked == 1


def test_sizes_may_be_numbers_of_numpy_and_lists_of_one():
    numpy = pytest.importorskip("numpy")
    x = torch.randn(2, 3, 8, 8)
    for size in (numpy.int64(2), numpy.array([2, 2]), [2], (2, 2)):
        assert torch.equal(functional.max_pool2d(x, size), F.max_pool2d(x, 2))
    layer = nn.Conv2d(3, 4, 3, padding=(1,))
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, layer.bias, padding=1))


def test_statistics_of_a_scripted_module_move_once_under_checkpoint():
    part = torch.nn.Sequential(torch.nn.Conv2d(6, 6, 1), torch.nn.BatchNorm2d(6))
    x = torch.randn(2, 6, 5, 5, requires_grad=True)
    for scripted in (torch.jit.script(copy.deepcopy(part)), torch.jit.script(part[1])):
        palimpsest.checkpoint(lambda v: scripted(scripted(v).sin()).sin(), x).sum().backward()
        assert [int(b) for b in scripted.buffers() if b.dtype == torch.long] == [2]


def _nested(last):
    first, second = torch.nn.Sequential(torch.nn.Conv2d(6, 6, 1), last()), last()
    return lambda x: palimpsest.checkpoint(second, palimpsest.checkpoint(first, x))


_LAST_LAYERS = {
    **{strategy: functools.partial(nn.BatchNormAct, 6, strategy=strategy) for strategy in functional.strategy_names()},
    "inplace_bit of silu": lambda: nn.BatchNormAct(6, strategy="inplace_bit", activation="silu"),
    "identity": lambda: nn.BatchNormAct(6, activation="identity"),
    "eval": lambda: nn.BatchNormAct(6).eval(),
    "in place": lambda: nn.InPlaceABN(6),
    "function": lambda: lambda x: functional.batch_norm_act(x, None, None, training=True, strategy="inplace"),
    "dense block": lambda: nn.DenseBlock(2, 6, 4),
    "convolution": lambda: nn.Conv2d(6, 6, 3, padding=1, groups=3),
    "max pooling": lambda: nn.MaxPool2d(2),
    "nested": lambda: _nested(lambda: nn.BatchNormAct(6, strategy="inplace")),
}


@pytest.mark.parametrize("last", _LAST_LAYERS)
def test_a_checkpoint_keeps_nothing_when_backward_is_done(last):
    """The second run stops by an exception while its last layer saves its tensors, which may be its output."""
    first, layer = torch.nn.Conv2d(6, 6, 1), _LAST_LAYERS[last]()
    x = torch.randn(2, 6, 16, 16, requires_grad=True)

    def steps(number):
        for _ in range(number):
            palimpsest.checkpoint(lambda v: layer(first(v)), x).sum().backward()

    steps(2)  # makes the gradients, and what libraries keep
    with palimpsest.memory.measure() as m:
        steps(25)
    assert m.end_bytes < x.nbytes


def test_the_import_names_the_way_out(tmp_path):
    code = "import torch; torch.__version__ = '2.99.1'\nimport palimpsest"
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(palimpsest.__file__).parents[1])}
    for library, says in ((None, "no operators for torch 2.99"),
                          (str(tmp_path / "none.so"), "PALIMPSEST_LIBRARY must name the file")):
        environment.pop("PALIMPSEST_LIBRARY", None)
        if library:
            environment["PALIMPSEST_LIBRARY"] = library
        end = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert end.returncode == 1 and says in end.stderr.splitlines()[-1]
    (tmp_path / "bad.so").write_bytes(b"no library")
    environment["PALIMPSEST_LIBRARY"] = str(tmp_path / "bad.so")
    end = subprocess.run([sys.executable, "-c", "import palimpsest"], env=environment, capture_output=True, text=True)
    assert end.returncode == 1 and "do not fit torch" in end.stderr

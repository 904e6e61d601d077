"""Layers of a converted network whose settings change after convert(), and inputs of other dtypes, shapes and sizes."""
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import palimpsest
from palimpsest._convert import runtime


def step(model, x, seed=1):
    """Output, gradients and buffers of a step."""
    torch.manual_seed(seed)
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))
    return [y.detach(), x.grad, *(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())]


def assert_all_close(got, want):
    """Two lists of tensors, or of None, in f64."""
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def assert_same_gradients(model, original):
    """Of two networks of the same parameters, each of which has made a backward pass."""
    for (name, p), q in zip(original.named_parameters(), model.named_parameters(), strict=True):
        assert name == q[0]
        assert_all_close([q[1].grad], [p.grad])


def assert_same_under_hooks(make, x, want, is_compiled=True):
    """A step of the network that make() returns is `want`, of step(), under checkpoints, hooks and compilation."""
    def on_hooks(network, x):
        with torch.autograd.graph.save_on_cpu():
            return network(x)

    calls = [palimpsest.checkpoint, lambda network, x: torch.utils.checkpoint.checkpoint(network, x, use_reentrant=False), on_hooks]
    if is_compiled:
        torch._dynamo.reset()
        calls.append(lambda network, x: torch.compile(network, fullgraph=True, backend="aot_eager")(x))
    for call in calls:
        network = make()
        torch.manual_seed(1)
        leaf = x.clone().requires_grad_()
        y = call(network, leaf)
        y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))
        got = [y, leaf.grad, *(p.grad for p in network.parameters())]
        assert_all_close(got, want[:len(got)])


def assert_same_after(model, x, change=lambda model: None):
    """Steps before and after a change of the network are those of the network that is not converted."""
    converted, report = palimpsest.convert(copy.deepcopy(model))
    assert report.converted
    for _ in range(2):
        for got, want in zip(step(converted, x), step(model, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10, equal_nan=False)
        for network in (model, converted):
            change(network)


class Dense(nn.Module):
    def __init__(self, drop_rate=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(8, 8, 1)
        self.block = pytest.importorskip("torchvision").models.densenet._DenseBlock(3, 8, 4, 4, drop_rate)

    def forward(self, x):
        return self.block(self.conv(x))


def _norms(model):
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def _biases(model):
    for layer in model.block.children():
        layer.norm2.eval()  # which would take a bias away
        layer.conv1.bias = nn.Parameter(torch.ones(16, dtype=torch.double))


CHANGES = {
    "bias": _biases,
    "dilation": lambda model: [setattr(model.block.denselayer1.conv2, name, (2, 2)) for name in ("dilation", "padding")],
    "frozen": lambda model: [norm.eval() for norm in _norms(model)],
    "one frozen": lambda model: model.block.denselayer2.norm1.eval(),
    "momentum": lambda model: setattr(model.block.denselayer2.norm1, "momentum", None),
    "eps": lambda model: setattr(model.block.denselayer2.norm2, "eps", 0.5),
    "no tracking": lambda model: [setattr(norm, "track_running_stats", False) for norm in _norms(model)],
    "no statistics": lambda model: [setattr(norm, name, None) for norm in _norms(model)
                                    for name in ("running_mean", "running_var")],
    "no weight": lambda model: setattr(model.block.denselayer1.norm1, "weight", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_dense_block_computes_what_its_layers_say_now(change):
    assert_same_after(Dense().double(), torch.randn(2, 8, 6, 6, dtype=torch.double), CHANGES[change])


@pytest.mark.parametrize("count", [1, 3])
def test_dense_layers_in_eval_drop_nothing(count):
    model = Dense(drop_rate=0.5).double().train()
    for layer in list(model.block.children())[:count]:
        layer.eval()
    if count == 1:  # own forward, with torch's random numbers
        assert_same_after(model, torch.randn(2, 8, 6, 6, dtype=torch.double))
        return
    plain = Dense().double()
    plain.load_state_dict(model.state_dict())
    for layer in plain.block.children():
        layer.eval()
    converted, _ = palimpsest.convert(model)
    x = torch.randn(2, 8, 6, 6, dtype=torch.double)
    for got, want in zip(step(converted, x), step(plain, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("later", [False, True])
def test_a_dense_layer_with_a_forward_of_its_own(later):
    densenet = pytest.importorskip("torchvision").models.densenet

    class Halved(densenet._DenseLayer):
        def forward(self, x):
            return 0.5 * super().forward(x)

    def replace(model):
        torch.manual_seed(1)
        model.block._modules["denselayer2"] = Halved(12, 4, 4, 0.0).double()

    model, x = Dense().double(), torch.randn(2, 8, 6, 6, dtype=torch.double)
    if later:
        assert_same_after(model, x, replace)
        return
    replace(model)
    assert_same_after(model, x)
    ours = palimpsest.nn.DenseBlock(3, 8, 4)

    class Doubled(palimpsest.nn._DenseLayer):
        def forward(self, *arguments):
            return 2 * super().forward(*arguments)

    y = ours(x.float())
    ours.denselayer3.__class__ = Doubled
    assert not torch.equal(ours(x.float())[:, -4:], y[:, -4:])


class Cat(nn.Module):
    """cat, normalization, ReLU, convolution; `features` makes what is concatenated."""

    def __init__(self, features=lambda conv, x: [x, conv(x)], **options):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.last = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(8, **options), nn.Conv2d(8, 4, 1, bias=False)
        self.features = features

    def forward(self, x):
        return self.last(F.relu(self.norm(torch.cat(self.features(self.conv, x), 1))))


def test_a_bias_that_is_set_later_is_added_behind_cat():
    def change(model):
        model.last.bias = nn.Parameter(torch.arange(4, dtype=torch.double))

    assert_same_after(Cat().double(), torch.randn(2, 4, 6, 6, dtype=torch.double), change)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_rounds_no_feature_before_the_normalization(dtype):
    """1e6 has no place in f16."""
    model = Cat(lambda conv, x: [x * 1e6, conv(x)])
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    x = torch.randn(2, 4, 6, 6)
    with torch.autocast("cpu", dtype):
        got, want = step(converted, x), step(model, x)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05 * b.abs().max().item())


def test_autocast_leaves_the_dtype_of_a_dense_blocks_features():
    model = Dense()
    model.conv = nn.Identity()
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    x = torch.randn(2, 8, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = step(converted, x), step(model, x)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05 * b.abs().max().item())


def test_features_of_two_dtypes():
    model = Cat(lambda conv, x: [x.bfloat16(), conv(x)])
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    x = torch.randn(2, 4, 6, 6)
    for got, want in zip(step(converted, x), step(model, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("written", ["norm", "residual", None])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_an_in_place_sum_keeps_the_dtype_of_its_left_side(dtypes, written):
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    x, residual = (torch.randn(2, 4, 5, 5).to(dtype).requires_grad_() for dtype in dtypes)
    results = []
    for ours in (True, False):
        if ours:
            y = runtime.norm_add(norm, x, residual, "identity", 0.0, "output", False, False, written)
        else:
            y, r = norm(x), residual * 1
            y = y.add_(r) if written == "norm" else r.add_(y) if written == "residual" else y + r
        results.append([y, *torch.autograd.grad(y.float().sin().sum(), [x, residual, norm.weight, norm.bias])])
    for got, want in zip(*results):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("window", [dict(kernel_size=17, stride=1, padding=8), dict(kernel_size=(16, 16), padding=7)])
def test_a_pool_of_more_than_255_positions(window):
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(**window)).double()
    assert_same_after(model, torch.randn(2, 4, 20, 20, dtype=torch.double))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_tracking_that_is_switched_off_later(momentum):
    def change(model):
        model.norm.track_running_stats = False
        model.norm.reset_running_stats()
        model.norm.num_batches_tracked.zero_()

    for model in (Cat(momentum=momentum), Cat(lambda conv, x: [conv(x), x.relu()], momentum=momentum)):
        assert_same_after(model.double(), torch.randn(2, 4, 6, 6, dtype=torch.double), change)


class OneImage(nn.Module):
    """A convolution of one image without a batch, beside a layer that is converted."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3)

    def forward(self, x):
        return self.last(F.silu(self.norm(self.conv(x))).sum(0))


def test_a_convolution_of_one_image_without_a_batch():
    assert_same_after(OneImage().double(), torch.randn(2, 4, 6, 6, dtype=torch.double))


@pytest.mark.parametrize("forward", [
    lambda m, x: m.conv(F.relu(m.norm1(x))),                                  # the convolution alone reads it
    lambda m, x: m.conv(y := F.relu(m.norm1(x) + x)) + m.last1(y),            # two read a sum
    lambda m, x: m.conv(y := F.silu(m.norm1(x))) * y.mean(),
])
def test_a_convolution_takes_a_batch_for_one_image(forward):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.norm1, self.last1 = nn.Conv2d(4, 6, 1), nn.BatchNorm1d(3), nn.Conv2d(4, 6, 1)

        def forward(self, x):
            return forward(self, x)

    assert_same_after(Network().double(), torch.randn(4, 3, 6, dtype=torch.double))


def test_pools_of_integers_and_of_one_image():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.norm, self.pool = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.MaxPool2d(2)

        def forward(self, x):
            mask = F.max_pool2d((x > 0).long(), 2) + self.pool((x[:1] > 0.5).long())
            return self.pool(F.relu(self.norm(self.conv(x)))) * mask + self.pool(x[0])

    assert_same_after(Masked().double(), torch.randn(2, 4, 6, 6, dtype=torch.double))


def test_weights_that_are_attributes_in_place_of_parameters():
    """As in a replica of DataParallel."""
    def change(model):
        for module in (model.norm, model.conv):
            for name in ("weight", "bias"):
                if name in module._parameters:
                    value = module._parameters.pop(name)
                    setattr(module, name, value.detach() * 2)

    class Plain(OneImage):
        def forward(self, x):
            return F.silu(self.norm(self.conv(x)))

    assert_same_after(Plain().double(), torch.randn(2, 4, 6, 6, dtype=torch.double), change)


def replica_of(network):
    """As torch.nn.parallel.replicate makes one, on one device."""
    modules = list(network.modules())
    copies = {m: m._replicate_for_data_parallel() for m in modules}
    for module, made in copies.items():
        made._former_parameters = {}
        for name, child in module._modules.items():
            setattr(made, name, copies[child])
        for name, parameter in module._parameters.items():
            if parameter is None:
                made._parameters[name] = None
            else:
                made._former_parameters[name] = value = parameter.view_as(parameter)
                setattr(made, name, value)
    return copies[network]


class Scaled(nn.Module):
    """Has parameters of its own, one of which is none."""

    def __init__(self):
        super().__init__()
        self.register_parameter("shift", None)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x):
        y = F.silu(self.norm(self.conv(x))) * self.scale
        return y if self.shift is None else y + self.shift


REPLICATED = {
    "BatchNorm": lambda: [nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 1)],
    "no biases": lambda: [nn.BatchNorm2d(8, affine=False), nn.SiLU(), nn.Conv2d(8, 8, 1, bias=False)],
    "GroupNorm": lambda: [nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 1)],
    "LayerNorm": lambda: [nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8)],
    "InstanceNorm": lambda: [nn.InstanceNorm2d(8, affine=True), nn.LeakyReLU(), nn.Conv2d(8, 8, 1)],
    "transposed": lambda: [nn.BatchNorm2d(8), nn.SiLU(), nn.ConvTranspose2d(8, 8, 1)],
    "a class of its own": lambda: [Scaled(), nn.Conv2d(8, 8, 1)],
}


@pytest.mark.parametrize("name", REPLICATED)
def test_a_replica_of_data_parallelism_keeps_no_more(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 8, 1), *REPLICATED[name]()).double()
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    x = torch.randn(16, 8, 8, 8, dtype=torch.double)
    step(converted, x)  # the plan that its replicas use
    results = []
    for network in (model, converted):
        network.zero_grad()
        y = replica_of(network)(x)
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad for p in network.parameters() if p.grad is not None)])
    assert_all_close(results[1], results[0])
    kept = []
    for network in (model, converted, replica_of(converted)):
        with palimpsest.memory.measure() as measured:
            y = network(x)
            measured.forward_done()
            del y
        kept.append(measured.kept_bytes)
    assert kept[2] <= kept[1] < kept[0]


class Broadcast(nn.Module):
    """A sum that no operator of ours takes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)) + x.mean((2, 3), keepdim=True)).sin()


def test_checkpoint_saves_the_same_tensors_again_where_torchs_normalization_runs():
    model = Broadcast().double()
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    x = torch.randn(2, 4, 6, 6, dtype=torch.double)

    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = converted

        def forward(self, x):
            return palimpsest.checkpoint(self.part, x)

    for got, want in zip(step(Again(), x), step(model, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)

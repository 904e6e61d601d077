"""The first layers of a converted network, which run again in backward."""
import copy

import pytest
import torch
from torch import nn

import palimpsest
from palimpsest._convert import runtime


class Net(nn.Module):
    def __init__(self, channels=3, activation=nn.ReLU, bias=False):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(channels, 16, 7, stride=2, padding=3, bias=bias)
        self.norm = nn.BatchNorm2d(16)
        self.act = activation()
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.last = nn.Conv2d(16, 4, 1)
        with torch.no_grad():
            self.norm.weight.uniform_(-1, 1)
            self.norm.bias.uniform_(-1, 1)

    def forward(self, x):
        return self.last(self.pool(self.act(self.norm(self.conv(x)))))


def both(model):
    """(original, converted), of which the converted one runs its stem again."""
    model = model.double()
    converted, report = palimpsest.convert(copy.deepcopy(model))
    how = {layer.name: layer.how for layer in report.layers}
    assert how["norm"] == how["pool"] == "runs again in backward, with conv: saves the images alone"
    return model, converted


def images(channels=3):
    torch.manual_seed(1)
    return torch.randn(2, channels, 33, 30, dtype=torch.double)


def assert_same_gradients(original, converted):
    for a, b in zip(original.parameters(), converted.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-9, atol=1e-10)


def assert_same(original, converted):
    for name, state in original.state_dict().items():
        torch.testing.assert_close(converted.state_dict()[name], state, rtol=1e-10, atol=1e-11)
    assert_same_gradients(original, converted)


def backward(y, **keywords):
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y), **keywords)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Identity, nn.LeakyReLU, nn.SiLU])
@pytest.mark.parametrize("channels", [1, 4])
def test_gradients_and_statistics_are_those_of_the_original(activation, channels):
    networks = both(Net(channels, activation, bias=channels == 1))
    for _ in range(2):
        for network in networks:
            backward(network(images(channels)))
    assert_same(*networks)


def test_keeps_the_images_and_what_pooling_returns():
    x = torch.randn(2, 3, 64, 64)
    model, _ = palimpsest.convert(Net())
    with palimpsest.memory.measure() as measured:
        y = model(x)
        measured.forward_done()
    pooled = 2 * 16 * 16 * 16 * 4
    parameters = 4 * sum(p.numel() for p in (*model.conv.parameters(), *model.norm.parameters()))
    assert measured.kept_bytes <= pooled + y.numel() * 4 + parameters


@pytest.mark.parametrize("momentum", [0.1, None])
def test_frozen_statistics_and_settings_of_the_first_run(momentum):
    networks = both(Net())
    for network in networks:
        network.norm.momentum = momentum
        backward(network(images()))
        network.norm.eval()
        y = network(images())
        network.train()                # not what forward ran with
        network.norm.eps = 0.5
        network.pool.kernel_size = 2
        backward(y)
    assert_same(*networks)


def test_refuses_images_that_were_changed_before_backward():
    _, model = both(Net())
    x = images()
    y = model(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(y)


def test_changes_of_parameters_and_statistics_between_the_passes_do_not_matter():
    original, model = both(Net())
    for network in (original, model):
        network.eval()
        y = network(images())
        if network is model:
            with torch.no_grad():
                for tensor in (*network.conv.parameters(), *network.norm.parameters(), *network.norm.buffers()):
                    tensor.add_(1)
        backward(y)
    assert_same_gradients(original, model)


def test_a_pass_in_evaluation_and_one_in_training_with_one_backward():
    original, model = both(Net())
    # torch's layer reads the running statistics in backward, which the pass in training has moved: its gradient is wrong.
    backward(original.eval()(images()))
    backward(original.train()(images() * 2))
    backward(model.eval()(images()) + model.train()(images() * 2))
    assert_same(original, model)


def test_parameters_may_be_frozen_between_the_passes():
    networks = both(Net())
    for network in networks:
        y = network(images())
        network.requires_grad_(False)
        backward(y)
        network.requires_grad_(True)
    assert_same(*networks)


def test_a_new_image_may_be_written_behind_backward():
    networks = both(Net())
    for network in networks:
        x = images()
        backward(network(x))
        x.mul_(2)
        backward(network(x))
    assert_same(*networks)


def test_backward_runs_twice():
    networks = both(Net())
    for network in networks:
        y = network(images())
        backward(y, retain_graph=True)
        backward(y)
    assert_same(*networks)


def test_two_forwards_before_their_backwards():
    networks = both(Net())
    for network in networks:
        first, second = network(images()), network(images() * 2)
        backward(first)
        backward(second)
    assert_same(*networks)


def _calls(monkeypatch, name):
    calls = []
    function = getattr(runtime, name)
    monkeypatch.setattr(runtime, name, lambda *arguments, **keywords: calls.append(1) or function(*arguments, **keywords))
    return calls


@pytest.mark.parametrize("case", ["images need a gradient", "hooks on saved tensors", "a checkpoint around it",
                                  "the convolution is frozen", "images of inference mode"])
def test_runs_once_where_it_cannot_run_again(case, monkeypatch):
    original, model = both(Net())
    again = _calls(monkeypatch, "_norm_act_pool")
    for network in (original, model):
        x = images().requires_grad_(case == "images need a gradient")
        network.conv.requires_grad_(case not in ("the convolution is frozen", "images of inference mode"))
        if case == "images of inference mode":
            with torch.inference_mode():
                x = images()
        if case == "hooks on saved tensors":
            with torch.autograd.graph.save_on_cpu():
                y = network(x)
        elif case == "a checkpoint around it":
            y = palimpsest.checkpoint(network, x)
        else:
            y = network(x)
        backward(y)
    assert not again
    assert_same_gradients(original, model)


def test_parts_that_are_frozen():
    for frozen in (["conv"], ["norm"], ["conv", "norm"]):
        networks = both(Net())
        for network in networks:
            for part in frozen:
                getattr(network, part).requires_grad_(False)
            backward(network(images()))
        assert_same_gradients(*networks)


def test_autocast():
    x = images().float()
    model, _ = palimpsest.convert(Net())
    plain = copy.deepcopy(model)
    results = []
    for network, needs_gradient in ((model, False), (plain, True)):  # runs again; saves
        with torch.autocast("cpu", torch.bfloat16):
            y = network(x.clone().requires_grad_(needs_gradient))
        backward(y)
        results.append([y.detach(), *(p.grad for p in network.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


class ReadTwice(Net):
    def forward(self, x):
        z = self.act(self.norm(self.conv(x)))
        return self.last(self.pool(z)), z.mean()


class Written(Net):
    def forward(self, x):
        y = self.conv(x)
        x.add_(1)
        return self.last(self.pool(self.act(self.norm(y))))


class Later(Net):
    def forward(self, x):
        return super().forward(x * 2)


@pytest.mark.parametrize("model", [ReadTwice(), Written(), Later(), Net(5)], ids=lambda m: f"{type(m).__name__}")
def test_other_networks_keep_their_first_layers(model):
    _, report = palimpsest.convert(model)
    assert not any("runs again" in layer.how for layer in report.layers)


def test_a_strategy_by_name_is_obeyed():
    _, report = palimpsest.convert(Net(), strategy="store_y")
    assert not any("runs again" in layer.how for layer in report.layers)


def test_a_batch_counts_once(monkeypatch):
    _, model = both(Net())
    settings = _calls(monkeypatch, "_settings")
    backward(model(images()))
    assert len(settings) == 1 and int(model.norm.num_batches_tracked) == 1


class OnePool(Net):
    """One pooling module, called twice."""

    def forward(self, x):
        return self.pool(self.act(self.last(self.pool(self.act(self.norm(self.conv(x)))))))


class OneNorm(nn.Module):
    """One normalization without running statistics, called twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 8, 3) for _ in range(2))
        self.norm = nn.BatchNorm2d(8, track_running_stats=False)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool(self.norm(self.first(x)).relu()), self.norm(self.second(x)).relu()


def test_the_report_names_the_calls_that_run_again():
    _, report = palimpsest.convert(OnePool())
    pools = [layer for layer in report.layers if layer.name == "pool"]
    assert [layer.runs_again for layer in pools] == [True, False] and "runs again" not in pools[1].how
    _, report = palimpsest.convert(OneNorm())
    assert report.converted and not any(layer.runs_again for layer in report.layers)


def test_convert_proves_what_runs_again(monkeypatch):
    _, report = palimpsest.convert(Net(), torch.randn(2, 3, 33, 30))
    assert not report.left and report.kept_bytes_after < 0.5 * report.kept_bytes_before

    run = runtime._norm_act_pool
    monkeypatch.setattr(runtime, "_norm_act_pool", lambda *arguments: run(*arguments) * (2 if torch.is_grad_enabled() else 1))
    _, report = palimpsest.convert(Net(), torch.randn(2, 3, 33, 30))
    assert not any(layer.runs_again for layer in report.layers)


def test_the_compiled_network():
    networks = both(Net())
    compiled = networks[0], torch.compile(networks[1], backend="aot_eager", fullgraph=True)
    for network in compiled:
        backward(network(images()))
    assert_same(*networks)


def test_has_no_double_backward():
    _, model = both(Net())
    with pytest.raises(RuntimeError, match="has no double backward"):
        torch.autograd.grad(model(images()).sum(), model.conv.weight, create_graph=True)


def test_images_are_kept_in_the_dtype_of_autocast():
    """As before: who fills a buffer of f32 images anew under autocast changes no saved tensor."""
    model, _ = palimpsest.convert(Net())
    x = images().float()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    expected = torch.autograd.grad(y.float().sum(), model.conv.weight, retain_graph=True)[0]
    x.zero_()
    assert torch.equal(torch.autograd.grad(y.float().sum(), model.conv.weight)[0], expected)


def test_meta_tensors():
    with torch.device("meta"):
        model = Net()
    model, _ = palimpsest.convert(model)
    assert model(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 4, 8, 8)


def test_a_batch_that_the_convolution_refuses_does_not_count():
    _, model = both(Net())
    with pytest.raises(RuntimeError):
        model(images(5))
    assert int(model.norm.num_batches_tracked) == 0

"""nn.Conv2d and functional.conv2d against torch's own."""
import pytest
import torch

import palimpsest
from palimpsest import functional

GEOMETRIES = [{}, {"padding": 1}, {"stride": 2, "padding": (1, 0)}, {"dilation": 2, "padding": "same"}, {"padding": "valid"},
              {"groups": 16, "padding": 2}, {"groups": 8, "padding": 1, "stride": 2}, {"padding": 1, "padding_mode": "reflect"}]


def of_torch(layer):
    own = torch.nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation,
                          layer.groups, layer.bias is not None, layer.padding_mode, dtype=layer.weight.dtype)
    own.load_state_dict(layer.state_dict(), strict=True)
    return own


def results(layer, x):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("keywords", GEOMETRIES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_equals_torch(keywords, bias, memory_format):
    torch.manual_seed(0)
    layer = palimpsest.nn.Conv2d(16, 16, 5 if keywords.get("groups") == 16 else 3, bias=bias, **keywords)
    x = torch.randn(2, 16, 11, 9).contiguous(memory_format=memory_format)
    for got, want in zip(results(layer, x), results(of_torch(layer).double(), x.double()), strict=True):
        assert (got - want).norm() <= 2e-6 * want.norm() and got.shape == want.shape


def test_kernels_of_ours_run_in_a_depthwise_layer():
    """Their graph node is ours, not ConvolutionBackward."""
    layer = palimpsest.nn.Conv2d(32, 32, 5, padding=2, groups=32).to(memory_format=torch.channels_last)
    y = layer(torch.randn(2, 32, 8, 8).contiguous(memory_format=torch.channels_last))
    assert "Convolution" in y.grad_fn.name() and y.grad_fn.name() != "ConvolutionBackward0"


def test_gradients_may_be_batched():
    layer = palimpsest.nn.Conv2d(32, 32, 3, padding=1, groups=4).to(memory_format=torch.channels_last)
    x = torch.randn(2, 32, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = layer(x)
    given = torch.randn(3, *y.shape)
    batched = torch.autograd.grad(y, (x, layer.weight), given, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(y, (x, layer.weight), one, retain_graph=True) for one in given]
    for got, want in zip(batched, zip(*single), strict=True):
        assert (got - torch.stack(want)).norm() <= 2e-6 * got.norm()


def test_one_image_without_a_batch():
    layer = palimpsest.nn.Conv2d(3, 4, 3)
    assert torch.equal(layer(torch.ones(3, 5, 5)), of_torch(layer)(torch.ones(3, 5, 5)))


def test_compile_and_export():
    layer = palimpsest.nn.Conv2d(16, 16, 3, padding=1, groups=4)
    x = torch.randn(2, 16, 8, 8)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))
    program = torch.export.export(layer.eval(), (x,))
    assert not any("palimpsest" in str(node.target) for node in program.graph.nodes)


def test_bad_input_is_one_clear_line():
    x = torch.randn(1, 3, 5, 5)
    with pytest.raises(RuntimeError, match=r"\[convolution\] weight.size\(1\)"):
        functional.conv2d(x, torch.randn(4, 2, 3, 3))
    with pytest.raises(RuntimeError, match=r"\[convolution\] stride must be 1 to"):
        functional.conv2d(x, torch.randn(4, 3, 3, 3), stride=0)

"""The operator library as Python sees it: torch.ops.palimpsest.abn, abn_, dense_block and max_pool2d."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from activations import activations, can_save  # noqa: E402

LIBRARY = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", "build/release")) / "libpalimpsest_ops.so"
torch.ops.load_library(str(LIBRARY))
abn = torch.ops.palimpsest.abn
abn_ = torch.ops.palimpsest.abn_
max_pool2d = torch.ops.palimpsest.max_pool2d


# Before torch 2.12 compiled guards may crash as Python exits: see tests/python/conftest.py.
torch._dynamo.config.use_recursive_dict_tags_for_guards = False


@pytest.fixture(autouse=True)
def fresh_compiler():
    """A compilation of one test must not count against another test's limit of recompilations."""
    torch._dynamo.reset()


ACTIVATIONS = [("leaky_relu", 0.01), ("leaky_relu", 0.3), ("elu", 1.0), ("elu", 0.4), ("identity", 0.0)]


def reference(x, weight, bias, mean, var, training=True, momentum=0.1, eps=1e-5, activation="leaky_relu", param=0.01):
    y = torch.nn.functional.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    if activation == "leaky_relu":
        return torch.nn.functional.leaky_relu(y, param)
    return torch.nn.functional.elu(y, param) if activation == "elu" else y


def arguments(dtype=torch.float64, shape=(3, 4, 3, 2), requires_grad=True, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def randn(*size):
        return torch.randn(*size, dtype=dtype, generator=generator)

    channels = shape[1]
    weight = (randn(channels).abs() + 0.4) * torch.tensor([1, -1] * channels, dtype=dtype)[:channels]
    leaves = [randn(*shape), weight, randn(channels)]
    for leaf in leaves:
        leaf.requires_grad_(requires_grad)
    return [*leaves, randn(channels), randn(channels).abs() + 0.5]


class Layer(torch.nn.Module):
    """A convolution and the layer behind it, out of place or in place."""

    def __init__(self, in_place, **options):
        super().__init__()
        torch.manual_seed(3)
        self.in_place = in_place
        self.options = options
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)

    def forward(self, x):
        n = self.norm
        layer = abn_ if self.in_place else abn
        return layer(self.conv(x), n.weight, n.bias, n.running_mean, n.running_var, self.training, **self.options)


def test_the_schemas_are_the_contract():
    assert str(abn.default._schema) == (
        "palimpsest::abn(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
        'bool training=True, float momentum=0.10000000000000001, float eps=1.0000000000000001e-05, '
        'str activation="leaky_relu", float activation_param=0.01, Tensor? residual=None, str group="", '
        'str? saved=None, bool relu_residual=False, str? keep=None) -> Tensor'
    )
    assert str(abn_.default._schema) == (
        "palimpsest::abn_(Tensor(a!) x, Tensor? weight, Tensor? bias, Tensor(b!)? running_mean, "
        "Tensor(c!)? running_var, bool training=True, float momentum=0.10000000000000001, "
        'float eps=1.0000000000000001e-05, str activation="leaky_relu", float activation_param=0.01, '
        'Tensor? residual=None, str group="", str? saved=None, bool relu_residual=False, str? keep=None) -> Tensor(a!)'
    )


def test_the_library_needs_the_cpu_part_of_libtorch_only():
    dynamic = subprocess.run(["readelf", "-d", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line}
    of_torch = {name for name in needed if name.startswith(("libtorch", "libc10", "libcu", "libpython", "libshm"))}
    assert of_torch == {"libtorch_cpu.so", "libc10.so"}


@pytest.mark.parametrize("activation,param", ACTIVATIONS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_those_of_finite_differences(activation, param, in_place, training):
    def run(x, weight, bias, mean, var):
        layer = abn_ if in_place else abn
        return layer(x.clone(), weight, bias, mean.clone(), var.clone(), training, 0.1, 1e-5, activation, param)

    x, weight, bias, mean, var = arguments()
    assert gradcheck(lambda *t: run(*t, mean, var), (x, weight, bias))
    assert gradcheck(lambda x: run(x, None, None, mean, var), (x,))
    channels_last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    assert gradcheck(lambda *t: run(*t, mean, var), (channels_last, weight, bias))


@pytest.mark.parametrize("activation", [a for a in activations() if can_save(a, "output_bit")])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_a_bit_an_element_gives_the_gradients_of_finite_differences(activation, in_place, training):
    x, weight, bias, mean, var = arguments()
    residual = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(8), requires_grad=True)

    def run(x, weight, bias, residual):
        layer = abn_ if in_place else abn
        return layer(x.clone(), weight, bias, mean.clone(), var.clone(), training, activation=activation,
                     residual=residual, saved="output_bit")

    assert gradcheck(run, (x, weight, bias, residual))
    channels_last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    assert gradcheck(run, (channels_last, weight, bias, residual))


@pytest.mark.parametrize("weight_value", [None, 0.0])
@pytest.mark.parametrize("training", [True, False])
def test_opcheck_passes(training, weight_value):
    x, weight, bias, mean, var = arguments(torch.float32)
    if weight_value is not None:
        weight = torch.full_like(weight, weight_value).requires_grad_()
    opcheck(abn.default, (x, weight, bias, mean, var, training))
    opcheck(abn.default, (x, None, None, mean, var, training))
    opcheck(abn.default, (x, weight, bias, mean, var, training), {"activation": "gelu", "saved": "output_bit"})
    # The in-place form takes no leaf that requires grad, so x itself does not.
    opcheck(abn_.default, (x.detach(), weight, bias, mean, var, training))


@pytest.mark.parametrize("training", [True, False])
def test_opcheck_sees_the_mutations_that_the_schema_names(training):
    # Composite operators are taken apart before the check sees them, except in inference mode.
    with torch.inference_mode():
        for operator in (abn.default, abn_.default):
            values = arguments(torch.float32, requires_grad=False)
            opcheck(operator, (*values, training), test_utils="test_schema")


@pytest.mark.parametrize("training", [True, False])
def test_opcheck_passes_for_the_inner_operators(training):
    x, weight, bias, mean, var = arguments(torch.float32, requires_grad=False)
    statistics = (mean, var, training, 0.1)
    for saved, residual in (("output", None), ("output", torch.randn_like(x)), ("pre_activation", None), ("input", None),
                           ("output_bit", None), ("output_bit", torch.randn_like(x))):
        settings = (residual, weight, bias, "silu" if saved == "output_bit" else "leaky_relu", 0.01, saved, False)
        forward = (x, *settings, *statistics, 1e-5, True)
        opcheck(torch.ops.palimpsest.abn_forward.default, forward)
        if saved != "input":
            opcheck(torch.ops.palimpsest.abn_forward_.default, forward)
        z, second, channel_values, channel_index, mean_, inv_std, _ = torch.ops.palimpsest.abn_forward(*forward)
        branch = second if saved == "output_bit" else None
        saved_values = {"output": z, "output_bit": z, "pre_activation": second, "input": x}[saved]
        if saved in ("pre_activation", "input"):
            opcheck(torch.ops.palimpsest.abn_recompute_output.default, (saved_values, *settings, mean_, inv_std))
        for need_sums in (True, False):
            backward = (torch.randn_like(z), saved_values, branch, channel_values, channel_index, *settings, mean_, inv_std, training, need_sums)
            need_residual, need_z = residual is not None, saved in ("pre_activation", "input")
            opcheck(torch.ops.palimpsest.abn_backward_.default, (*backward, need_z, need_residual))
            for need_dx in (True, False):
                opcheck(torch.ops.palimpsest.abn_backward.default, (*backward, need_z, need_dx, need_residual))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("options", [{}, {"activation": "silu", "saved": "output_bit"}], ids=["leaky_relu", "silu"])
def test_compiled_modules_give_the_eager_gradients_and_update_statistics_once(in_place, channels_last, options):
    torch.manual_seed(1)
    x = torch.randn(4, 3, 6, 5)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    eager, compiled = Layer(in_place, **options), Layer(in_place, **options)
    results = []
    for module, call in ((eager, eager), (compiled, torch.compile(compiled, fullgraph=True, backend="aot_eager"))):
        z = call(x)
        z.square().sum().backward()
        results.append([z.detach(), *(p.grad for p in module.parameters()), *module.buffers()])
    for want, got in zip(*results):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert results[0][0].stride() == results[1][0].stride()


@pytest.mark.parametrize("options", [{}, {"activation": "silu", "saved": "output_bit"}], ids=["leaky_relu", "silu"])
def test_compiled_modules_take_another_batch_size_and_evaluate(options):
    module = Layer(in_place=False, **options)
    call = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (2, 5):
        x = torch.randn(batch, 3, 6, 5)
        before = module.norm.running_mean.clone()
        got = call(x)
        after = module.norm.running_mean.clone()
        module.norm.running_mean.copy_(before)
        torch.testing.assert_close(got, module(x))
        torch.testing.assert_close(module.norm.running_mean, after)
    module.eval()
    with torch.no_grad():
        torch.testing.assert_close(call(x), module(x))


def test_a_compiled_layer_whose_weight_becomes_zero_keeps_what_its_gradient_needs():
    # The graph is traced while every weight is fine; the choice is made when it runs.
    module = Layer(in_place=False)
    call = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 3, 6, 5)
    call(x).sum().backward()
    with torch.no_grad():
        module.norm.weight[2] = 0
        module.norm.bias[2] = 0.5
    torch.ops.palimpsest.reset_abn_fallback_stats()
    module.zero_grad()
    call(x).square().sum().backward()
    assert torch.ops.palimpsest.abn_fallback_stats() == (0, 1, 0)
    got = [p.grad.clone() for p in module.parameters()]

    module.zero_grad()
    n = module.norm
    reference(module.conv(x), n.weight, n.bias, None, None).square().sum().backward()
    for g, p in zip(got, module.parameters()):
        torch.testing.assert_close(g, p.grad, rtol=1e-4, atol=1e-4)


def test_compiled_autograd_runs_the_backward_pass():
    module = Layer(in_place=False)
    x = torch.randn(4, 3, 6, 5)
    module(x).square().sum().backward()
    want = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        module(x).square().sum().backward()
    for w, p in zip(want, module.parameters()):
        torch.testing.assert_close(p.grad, w)


def test_export_keeps_the_operator_and_shows_the_mutation():
    module = Layer(in_place=False)
    program = torch.export.export(module, (torch.randn(4, 3, 6, 5),))
    module_again = program.module()
    before = module_again.norm.running_mean.clone()
    module_again(torch.randn(4, 3, 6, 5))
    assert not module_again.norm.running_mean.equal(before)


def test_saved_tensor_hooks_that_copy_elsewhere_do_no_harm():
    bits = {"activation": "gelu", "saved": "output_bit"}
    for weight_value, options in ((1.0, {}), (0.0, {}), (1.0, bits), (0.0, bits)):
        x, weight, bias, _, _ = arguments(torch.float64)
        x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        weight = torch.full_like(weight, weight_value).requires_grad_()
        plain = reference(x, weight, bias, None, None, activation="identity" if options else "leaky_relu")
        plain = torch.nn.functional.gelu(plain) if options else plain
        want = torch.autograd.grad(plain.square().sum(), (x, weight, bias))
        # The copy is contiguous, whatever the original was.
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t)
        with hooks:
            loss = abn(x, weight, bias, None, None, **options).square().sum()
        for g, w in zip(torch.autograd.grad(loss, (x, weight, bias)), want):
            torch.testing.assert_close(g, w)


def test_the_fallback_statistics_are_readable_by_their_older_names_too():
    torch.ops.palimpsest.reset_abn_fallback_stats()
    x, _, bias, _, _ = arguments()
    abn(x, torch.zeros(4, dtype=torch.float64), bias, None, None)
    assert torch.ops.palimpsest.abn_fallback_stats() == (1, 0, 0)
    assert torch.ops.palimpsest.abn_fallback_count() == 1
    assert torch.ops.palimpsest.abn_side_channel_count() == torch.ops.palimpsest.abn_missed_channel_count() == 0
    torch.ops.palimpsest.reset_abn_fallback_count()
    assert torch.ops.palimpsest.abn_fallback_stats() == (0, 0, 0)


def test_keep_and_scaled_are_older_names_of_saved_and_pre_activation():
    x, weight, bias, _, _ = arguments(torch.float32, requires_grad=False)
    options = {"activation": "gelu"}
    want = abn(x, weight, bias, None, None, saved="pre_activation", **options)
    for old in ({"keep": "scaled"}, {"saved": "scaled"}, {"keep": "pre_activation"}):
        assert abn(x, weight, bias, None, None, **old, **options).equal(want)
    with pytest.raises(RuntimeError, match=r"keep is the old name of saved: give one of the two, got saved='input' and keep='scaled'"):
        abn(x, weight, bias, None, None, saved="input", keep="scaled", **options)
    with pytest.raises(RuntimeError, match=r"got saved='output' and keep='scaled'"):
        abn(x, weight, bias, None, None, saved="output", keep="scaled", **options)
    with pytest.raises(RuntimeError, match=r"unknown value of keep 'inplace' \(known: output, "):
        abn(x, weight, bias, None, None, keep="inplace", **options)


def test_what_autocast_hands_over_is_taken_as_it_is():
    module = Layer(in_place=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = module(torch.randn(2, 3, 6, 5))
        assert z.dtype == torch.bfloat16
        # A f32 input in an autocast region passes as it is.
        assert abn(torch.randn(2, 8, 3), torch.ones(8), torch.zeros(8), None, None).dtype == torch.float32
    z.float().sum().backward()
    assert module.norm.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    "keywords,message",
    [
        ({"activation": "leaky_rellu"}, r"\[abn\] unknown activation 'leaky_rellu'; did you mean 'leaky_relu'\?"),
        ({"activation": "zzz"}, r"\[abn\] unknown activation 'zzz' \(known: leaky_relu, elu, identity, "),
        ({"activation": "relu"}, r"\[abn\] a layer that saves only its output needs an invertible activation, got 'relu'"),
        ({"activation": "gelu"}, r"invertible activation, got 'gelu'; take saved='output_bit', 'pre_activation'"),
        ({"saved": "output_bit"}, r"saved='output_bit' needs .*, got 'leaky_relu'; take saved='output'"),
        ({"activation": "relu", "saved": "output_bit"}, r"saved='output_bit' needs .*, got 'relu'; take saved='pre_activation'"),
        ({"residual": torch.zeros(2)}, r"\[abn\] residual must have the shape of x, .*, got \[2\]"),
        ({"group": "world"}, r"\[abn\] group must be the name of a process group of this process, got 'world'"),
        ({"activation_param": -0.1}, r"\[abn\] leaky_relu's slope must be in \[0, 1\], got -0.1"),
        ({"training": False}, r"\[abn\] training = false .* got none"),
    ],
)
@pytest.mark.parametrize("operator", [abn, abn_])
def test_bad_arguments_are_refused(operator, keywords, message):
    with pytest.raises(RuntimeError, match=message):
        operator(torch.randn(2, 3, 4), None, None, None, None, **keywords)


def test_gradients_through_an_inner_operator_are_refused():
    x = torch.randn(2, 3, 4, requires_grad=True)
    z = torch.ops.palimpsest.abn_forward(
        x, None, None, None, "identity", 0.0, "output", False, None, None, True, 0.1, 1e-5, True
    )[0]
    with pytest.raises(RuntimeError, match="derivative for palimpsest::abn_forward is not implemented"):
        z.sum().backward()


def dense_lists(layers=2, channels=3, growth=2, requires_grad=True):
    """The ten lists of torch.ops.palimpsest.dense_block, f64."""
    generator = torch.Generator().manual_seed(1)

    def vector(count, wanted=requires_grad):
        return (torch.rand(count, dtype=torch.float64, generator=generator) + 0.5).requires_grad_(wanted)

    lists = [[] for _ in range(10)]
    for i in range(layers):
        read = channels + i * growth
        for half, (count, kernel) in enumerate(((read, (4, read, 1, 1)), (4, (growth, 4, 3, 3)))):
            weight = torch.randn(kernel, dtype=torch.float64, generator=generator).requires_grad_(requires_grad)
            for own, value in zip(lists[5 * half:], (vector(count), vector(count), vector(count, False), vector(count, False), weight)):
                own.append(value)
    return lists


def test_the_gradient_of_a_dense_block_is_that_of_finite_differences():
    x, lists = torch.randn(2, 3, 4, 3, dtype=torch.float64, requires_grad=True), dense_lists()
    statistics = (2, 3, 7, 8)
    leaves = [t for i, own in enumerate(lists) if i not in statistics for t in own]

    def block(x, *flat):
        left = iter(flat)
        return torch.ops.palimpsest.dense_block(
            x, *([t.clone() if i in statistics else next(left) for t in own] for i, own in enumerate(lists)), activation_param=0.5)

    assert gradcheck(block, (x, *leaves), fast_mode=True)


def test_a_dense_block_moves_every_running_statistic_once():
    x, lists = torch.randn(2, 3, 4, 3, dtype=torch.float64), dense_lists(requires_grad=False)
    mean = lists[2][0].clone()
    out = torch.ops.palimpsest.dense_block(x, *lists)
    assert out.shape == (2, 7, 4, 3) and out[:, :3].equal(x)
    torch.testing.assert_close(lists[2][0], 0.9 * mean + 0.1 * x.mean((0, 2, 3)))
    torch.testing.assert_close(lists[2][1][:3], 0.1 * x.mean((0, 2, 3)) + 0.9 * dense_lists()[2][1][:3])


def test_a_dense_block_needs_one_tensor_of_each_list_a_layer():
    lists = dense_lists()
    lists[0] = lists[0][:1]
    with pytest.raises(RuntimeError, match=r"\[dense_block\] every list needs one tensor per layer: kernel2 has 2, another has 1"):
        torch.ops.palimpsest.dense_block(torch.randn(2, 3, 4, 3, dtype=torch.float64), *lists)


# (kernel_size, stride, padding, dilation, ceil_mode)
POOLS = [(3, 2, 1, 1, False), ([2, 3], [1, 2], [1, 0], [2, 1], True), (2, [], 0, 1, True)]


def pool_input(channels_last=False, dtype=torch.float64, requires_grad=True):
    # All values differ by more than the step of the numeric gradient.
    generator = torch.Generator().manual_seed(5)
    x = torch.randperm(2 * 3 * 7 * 6, generator=generator).to(dtype).div(16).reshape(2, 3, 7, 6)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    return x.requires_grad_(requires_grad)


def test_the_schema_of_max_pooling_is_the_contract():
    assert str(max_pool2d.default._schema) == (
        "palimpsest::max_pool2d(Tensor x, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, "
        "bool ceil_mode=False) -> Tensor"
    )


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_gradient_of_max_pooling_is_that_of_finite_differences(pool, channels_last):
    assert gradcheck(lambda x: max_pool2d(x, *pool), (pool_input(channels_last),))
    assert gradcheck(lambda x: max_pool2d(x[0], *pool), (pool_input(channels_last),))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck_passes_for_max_pooling(pool, channels_last, dtype):
    x = pool_input(channels_last, dtype)
    opcheck(max_pool2d.default, (x, *pool))
    opcheck(max_pool2d.default, (x.detach()[0], *pool))
    kernel_size, stride, padding, dilation, ceil_mode = [n if isinstance(n, (list, bool)) else [n, n] for n in pool]
    window = (kernel_size, stride or kernel_size, padding, dilation)
    for for_backward in (True, False):
        opcheck(torch.ops.palimpsest.max_pool2d_forward.default, (x.detach(), *window, ceil_mode, for_backward))
    z, argmax = torch.ops.palimpsest.max_pool2d_forward(x.detach(), *window, ceil_mode, True)
    opcheck(torch.ops.palimpsest.max_pool2d_backward.default, (z, argmax, *window, 7, 6, channels_last))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_max_pooling_gives_the_eager_gradients(channels_last, dynamic):
    def run(x):
        return max_pool2d(torch.sin(x), 3, 2, 1)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for height in (7, 9) if dynamic else (7,):
        x = torch.randn(2, 4, height, 6)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        results = []
        for call in (run, compiled):
            leaf = x.clone().requires_grad_()
            z = call(leaf)
            results.append((z, *torch.autograd.grad(z.square().sum(), leaf)))
        for want, got in zip(*results):
            assert got.equal(want)
        assert results[0][0].stride() == results[1][0].stride()


def test_compiled_autograd_runs_the_backward_pass_of_max_pooling():
    x = pool_input()
    (want,) = torch.autograd.grad(max_pool2d(x, 3, 2, 1).square().sum(), x)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        max_pool2d(x, 3, 2, 1).square().sum().backward()
    assert x.grad.equal(want)


def test_export_keeps_max_pooling():
    class Pool(torch.nn.Module):
        def forward(self, x):
            return max_pool2d(x, 3, 2, 1)

    x = pool_input(requires_grad=False)
    program = torch.export.export(Pool(), (x,))
    assert "palimpsest.max_pool2d" in program.graph_module.code
    assert program.module()(x).equal(torch.nn.functional.max_pool2d(x, 3, 2, 1))


def test_saved_tensor_hooks_that_copy_elsewhere_do_no_harm_to_max_pooling():
    x = pool_input(channels_last=True)
    (want,) = torch.autograd.grad(torch.nn.functional.max_pool2d(x, 3, 2, 1).square().sum(), x)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t)
    with hooks:
        loss = max_pool2d(x, 3, 2, 1).square().sum()
    assert torch.autograd.grad(loss, x)[0].equal(want)


def test_the_inner_operators_of_max_pooling_refuse_windows_that_their_memory_is_not_made_for():
    x = pool_input(requires_grad=False)
    for window in (([16, 16], [1, 1], [0, 0], [1, 1]), ([2, 2], [0, 1], [0, 0], [1, 1]), ([2], [1, 1], [0, 0], [1, 1])):
        with pytest.raises(RuntimeError, match=r"\[max_pool2d\]"):
            torch.ops.palimpsest.max_pool2d_forward(x, *window, False, True)


# ---- The loss of upsampled logits

upsampled_cross_entropy = torch.ops.palimpsest.upsampled_cross_entropy


def upsampled_inputs(dtype=torch.float64, channels_last=False, classes=5):
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(2, classes, 3, 4, generator=generator, dtype=torch.float64).to(dtype)
    if channels_last:
        logits = logits.contiguous(memory_format=torch.channels_last)
    targets = torch.randint(classes, (2, 8, 10), generator=generator)
    targets[0, :2] = 255
    return logits.requires_grad_(), targets


def test_the_schema_of_the_upsampled_loss_is_the_contract():
    assert str(upsampled_cross_entropy.default._schema) == (
        "palimpsest::upsampled_cross_entropy(Tensor logits, Tensor targets, Tensor? weight=None, int ignore_index=255, "
        "float label_smoothing=0., bool align_corners=False, float bootstrap_share=1., float bootstrap_probability=1.) "
        "-> (Tensor, Tensor)")
    assert str(torch.ops.palimpsest.upsampled_argmax.default._schema) == (
        "palimpsest::upsampled_argmax(Tensor logits, SymInt[2] size, bool align_corners=False) -> Tensor")


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_the_gradient_of_the_upsampled_loss_is_that_of_finite_differences(channels_last, share):
    logits, targets = upsampled_inputs(channels_last=channels_last)
    weight = torch.rand(5, dtype=torch.float64)
    assert gradcheck(lambda x: upsampled_cross_entropy(x, targets, weight, 255, 0.1, True, share)[0], (logits,))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck_passes_for_the_upsampled_loss(channels_last, dtype):
    logits, targets = upsampled_inputs(dtype, channels_last)
    opcheck(upsampled_cross_entropy.default, (logits, targets))
    for for_backward in (True, False):
        opcheck(torch.ops.palimpsest.upsampled_cross_entropy_forward.default,
                (logits.detach(), targets, None, 255, 0.0, False, 1.0, 1.0, for_backward))
    opcheck(torch.ops.palimpsest.upsampled_argmax.default, (logits.detach(), [8, 10]))


def test_the_upsampled_loss_compiles_without_a_break():
    logits, targets = upsampled_inputs(torch.float32)

    def step(x):
        return upsampled_cross_entropy(x * 2, targets, bootstrap_share=0.5)[0] + 1

    (want,) = torch.autograd.grad(step(logits), logits)
    (got,) = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(logits), logits)
    assert got.equal(want)

"""Calls that the operators must refuse, or answer right, from Python: the inner operators too, which anybody can call."""

import os
import pathlib

import pytest
import torch

LIBRARY = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", "build/release")) / "libpalimpsest_ops.so"
torch.ops.load_library(str(LIBRARY))
ops = torch.ops.palimpsest


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


# ---- A residual that shares memory with x


def producer():
    return torch.randn(2, 4, 3, 5, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("share", [
    lambda h: h, lambda h: h.view_as(h), lambda h: h.detach(), lambda h: h.view(2, 4, 15).view(2, 4, 3, 5),
    lambda h: torch.from_numpy(h.detach().numpy())])
def test_a_residual_in_the_memory_of_x_is_refused_in_place(share):
    h = producer() * 2
    with pytest.raises(RuntimeError, match=r"\[abn_\] .*residual must not share memory with x.*use abn"):
        ops.abn_(h, None, None, None, None, residual=share(h))
    ops.abn(h, None, None, None, None, residual=share(h))


def test_vectors_in_the_memory_of_x_are_refused_in_place():
    h = torch.randn(4, 4)
    for name, place in (("weight", 1), ("bias", 2), ("running_mean", 3)):
        arguments = [h, None, None, None, None]
        arguments[place] = h[0]
        if name == "running_mean":
            arguments[4] = torch.ones(4)
        with pytest.raises(RuntimeError, match=name + " must not share memory with x"):
            ops.abn_(*arguments)


def test_partial_overlap_is_refused_and_other_parts_of_one_tensor_are_accepted():
    base = torch.randn(200, dtype=torch.float64)
    x = base[:120].view(2, 4, 3, 5)
    for offset in (1, 15, 60, 80):
        with pytest.raises(RuntimeError, match="share memory"):
            ops.abn_(x, None, None, None, None, residual=base[offset:offset + 120].view(2, 4, 3, 5))
    whole = torch.randn(2, 8, 3, 5, dtype=torch.float64)  # two channel slices: their ranges cross, no element is shared
    want = ops.abn(whole[:, :4].clone(), None, None, None, None, residual=whole[:, 4:].clone())
    got = ops.abn_(whole[:, :4], None, None, None, None, residual=whole[:, 4:])
    assert torch.equal(got, want)
    with pytest.raises(RuntimeError, match="share memory"):
        ops.abn_(whole[:, :4], None, None, None, None, residual=whole[:, 3:7])
    with pytest.raises(RuntimeError, match="share memory"):  # other strides: the ranges cross
        ops.abn_(whole[:, :4], None, None, None, None, residual=whole.view(-1)[:120].view(2, 4, 3, 5))


def test_another_view_of_the_base_of_x_has_the_right_gradient_and_leaks_nothing():
    def run(in_place, leaf):
        base = leaf * 1
        x, r = base.narrow(0, 0, 2), base.narrow(0, 2, 2)
        z = ops.abn_(x, None, None, None, None, residual=r) if in_place else ops.abn(x, None, None, None, None, residual=r)
        return z, base

    torch.manual_seed(1)
    grads = []
    for in_place in (False, True):
        torch.manual_seed(1)
        leaf = torch.randn(4, 4, 3, 5, dtype=torch.float64, requires_grad=True)
        z, _ = run(in_place, leaf)
        (z * torch.arange(z.numel()).view_as(z)).sum().backward()
        grads.append(leaf.grad)
    assert torch.allclose(*grads, rtol=1e-9)

    import weakref
    leaf = torch.randn(4, 4, 3, 5, requires_grad=True)
    z, base = run(True, leaf)
    watch = weakref.ref(base)
    del z, base
    assert watch() is None


def test_a_compiled_graph_refuses_the_residual_too():
    call = torch.compile(lambda h: ops.abn_(h * 2, None, None, None, None, residual=h), backend="aot_eager")
    call(producer())

    def bad(h):
        h = h * 2
        return ops.abn_(h, None, None, None, None, residual=h)
    with pytest.raises(Exception, match="share memory"):
        torch.compile(bad, backend="aot_eager", fullgraph=True)(producer())


# ---- saved="pre_activation" in a traced graph


@pytest.mark.parametrize("place", ["whole", "view"])
@pytest.mark.parametrize("in_place_producer", [False, True])
def test_a_compiled_layer_decides_by_the_values_that_it_gets(place, in_place_producer):
    torch.manual_seed(2)
    both = torch.randn(2, 8, dtype=torch.float64)
    both[:, 2] = 0
    both[:, 3] = 1e-13
    if place == "view":
        big = torch.randn(19, dtype=torch.float64)
        big[3:19] = both.view(-1)
        both = big[3:19].view(2, 8)
    w, b = both[0].detach(), both[1].detach()
    w.requires_grad_(), b.requires_grad_()
    x = torch.randn(3, 8, 4, 4, dtype=torch.float64, requires_grad=True)

    def run(x, w, b):
        h = x * 1.5
        return ops.abn(h, w, b, None, None, activation="relu", saved="pre_activation")

    dz = torch.randn(3, 8, 4, 4, dtype=torch.float64)
    want = torch.autograd.grad(run(x, w, b), (x, w, b), dz)
    got = torch.autograd.grad(torch.compile(run, backend="aot_eager", fullgraph=True)(x, w, b), (x, w, b), dz)
    for g, t in zip(got, want):
        assert torch.allclose(g, t, rtol=1e-10, atol=1e-12)


def test_an_exported_layer_keeps_its_gradients_for_a_weight_of_zero():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm2d(4).double()
            torch.nn.init.zeros_(self.norm.weight)

        def forward(self, x):
            n = self.norm
            return ops.abn(x * 2, n.weight, n.bias, n.running_mean, n.running_var, True, activation="relu",
                           saved="pre_activation")

    net = Net()
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    exported = torch.export.export_for_training(net, (x,)).module() if hasattr(torch.export, "export_for_training") \
        else torch.export.export(net, (x,)).module()
    leaf = x.clone().requires_grad_()
    exported(leaf).sum().backward()
    assert torch.isfinite(leaf.grad).all()


def test_a_traced_dense_block_is_refused_in_one_line():
    k1, k2 = torch.randn(8, 4, 1, 1), torch.randn(2, 8, 3, 3)
    with torch._subclasses.FakeTensorMode() as mode:
        args = [mode.from_tensor(t) for t in (torch.randn(1, 4, 5, 5), torch.ones(4), torch.ones(8), k1, k2)]
        x, w1, w2, f1, f2 = args
        with pytest.raises(RuntimeError, match="eager mode only"):
            ops.dense_block(x, [w1], [w1], [w1], [w1], [f1], [w2], [w2], [w2], [w2], [f2])


# ---- Slope 0, and slopes that z cannot show


@pytest.mark.parametrize("activation", ["leaky_relu", "elu"])
@pytest.mark.parametrize("dtype,params", [(torch.float32, [0.0, 1e-40, 1e-36]), (torch.float64, [0.0, 1e-300]),
                                          (torch.float16, [0.0, 1e-8, 1e-7]), (torch.bfloat16, [0.0, 1e-40])])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("saved,compiled", [("output", False), ("output_form1", False), ("output", True)])
def test_a_slope_that_cannot_be_inverted_gives_relu(activation, dtype, params, in_place, saved, compiled):
    if compiled and dtype != torch.float32:
        return
    torch.manual_seed(3)
    x = torch.randn(3, 6, 5, 5).to(dtype)
    w = torch.tensor([1, -0.7, 0.3, 1.2, 0, 0.9]).to(torch.float64 if dtype == torch.float64 else torch.float32)
    b = torch.randn(6).to(w.dtype)
    dz = torch.randn(x.shape).to(dtype)
    residual = torch.randn(x.shape).to(dtype)

    def run(layer, **options):
        def call(leaf, r, *vectors):
            return layer(leaf * 1, *vectors, None, None, residual=r, **options)
        leaves = [x.clone().requires_grad_(), residual.clone().requires_grad_(), w.clone().requires_grad_(),
                  b.clone().requires_grad_()]
        z = (torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call)(*leaves)
        return [z, *torch.autograd.grad(z, leaves, dz)]

    want = run(ops.abn, activation="relu", saved="pre_activation")
    for param in params:
        got = run(ops.abn_ if in_place else ops.abn, activation=activation, activation_param=param, saved=saved)
        for g, t in zip(got, want):
            rounding = 2e-3 if dtype == torch.float16 else 1e-6  # 1e-7 is no subnormal of f16 but moves a sum
            assert ((g - t).abs() <= rounding * (1e-3 + t.abs())).all(), param
            if param == 0:
                assert torch.equal(g, t)
    if compiled:
        return
    for bad in (-1e-3, float("nan")):
        with pytest.raises(RuntimeError, match="slope must be in|alpha must be finite"):
            run(ops.abn, activation=activation, activation_param=bad, saved=saved)


def test_without_gradients_slope_zero_writes_relu_over_x():
    x = torch.randn(2, 3, 4, 4)
    want = ops.abn(x, None, None, None, None, activation="relu", saved="input")
    z = ops.abn_(x, None, None, None, None, activation_param=0.0)
    assert z.data_ptr() == x.data_ptr() and torch.equal(z, want)


def test_slope_zero_saves_one_tensor_and_writes_over_x():
    sizes = []
    def pack(t):
        sizes.append(t.numel())
        return t
    leaf = torch.randn(4, 8, 16, 16, requires_grad=True)
    for in_place in (False, True):
        sizes.clear()
        h = leaf * 1
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            z = (ops.abn_ if in_place else ops.abn)(h, None, None, None, None, activation_param=0.0)
        assert sum(s >= leaf.numel() for s in sizes) == 1
        assert (z.data_ptr() == h.data_ptr()) == in_place


def test_a_weight_so_small_that_the_negative_side_is_lost_is_saved():
    ops.reset_abn_fallback_stats()
    x = torch.randn(4, 64, 8, 8).half()
    w = torch.ones(64)
    w[5] = 1e-5
    leaf = x.clone().requires_grad_()
    weight = w.clone().requires_grad_()
    ops.abn(leaf, weight, None, None, None, activation_param=0.01).sum().backward()
    assert ops.abn_fallback_stats()[1] == 1


# ---- Windows of any size


@pytest.mark.parametrize("bad", [
    dict(kernel_size=[1, 9], stride=1, padding=0, dilation=2**61), dict(kernel_size=2, stride=2**62),
    dict(kernel_size=2, stride=2**31), dict(kernel_size=[2**62, 4]), dict(kernel_size=3, stride=1, dilation=2**62),
    dict(kernel_size=2, stride=2**63 - 1, ceil_mode=True), dict(kernel_size=3, stride=1, padding=1, dilation=2**31 - 1)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_max_pooling_refuses_windows_whose_sizes_overflow(bad, channels_last):
    x = torch.randn(1, 2, 8, 32)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match=r"\[max_pool2d\]"):
        ops.max_pool2d(x, **bad)
    window = [bad.get("kernel_size"), bad.get("stride"), bad.get("padding", 0), bad.get("dilation", 1)]
    window = [w if isinstance(w, list) else [w if w else 1] * 2 for w in window]
    with pytest.raises(RuntimeError):
        ops.max_pool2d_forward(x, *window[:2], [0, 0] if bad.get("padding") is None else window[2], window[3],
                               bad.get("ceil_mode", False), True)


def test_the_largest_stride_pools_one_window():
    x = torch.randn(2, 3, 8, 9)
    z = ops.max_pool2d(x, 2, 2**31 - 1)
    assert torch.equal(z, x[:, :, :2, :2].amax((2, 3), keepdim=True))


def test_the_inner_max_pooling_operators_check_what_they_read():
    x = torch.randn(2, 3, 8, 8)
    window = [[2, 2], [2, 2], [0, 0], [1, 1]]
    z, argmax = ops.max_pool2d_forward(x, *window, False, True)
    ops.max_pool2d_backward(z, argmax, *window, 8, 8, False)
    for height, width, dz, am in ((80, 8, z, argmax), (-8, 8, z, argmax), (0, 8, z, argmax), (8, 8, z, argmax[:, :, :2]),
                                  (8, 8, z, argmax.int()), (8, 8, z[0], argmax[0])):
        with pytest.raises(RuntimeError):
            ops.max_pool2d_backward(dz, am, *window, height, width, False)
    with pytest.raises(RuntimeError):
        ops.max_pool2d_forward(x[0], *window, False, True)
    with pytest.raises(RuntimeError):
        ops.max_pool2d_forward(x, [2, 2], [2, 2], [2, 2], [1, 1], False, True)


# ---- The inner operators of the fused layer

SETTINGS = dict(residual=None, weight=None, bias=None, activation="leaky_relu", activation_param=0.01, saved="output",
                relu_residual=False)
FORWARD = dict(SETTINGS, running_mean=None, running_var=None, training=True, momentum=0.1, eps=1e-5, for_backward=True)


def vector(n, dtype=torch.float32):
    return torch.ones(n, dtype=dtype)


BAD_SETTINGS = [dict(weight=vector(1)), dict(bias=vector(63)), dict(weight=vector(64, torch.int64)),
                dict(weight=vector(64, torch.float64)), dict(weight=torch.ones(64, 1)),
                dict(residual=torch.randn(2, 64, 4, 7)), dict(residual=torch.randn(2, 64, 8, 8).half()),
                dict(activation="relu"), dict(activation_param=0.0), dict(activation_param=-1.0),
                dict(saved="output_bit"), dict(saved="nothing")]


@pytest.mark.parametrize("bad", BAD_SETTINGS + [
    dict(running_mean=vector(64)), dict(running_mean=vector(3), running_var=vector(3)), dict(training=False),
    dict(eps=float("nan")), dict(momentum=7.0)])
def test_the_inner_forward_passes_check_what_they_read(bad):
    x = torch.randn(2, 64, 8, 8)
    for op in (ops.abn_forward, ops.abn_forward_):
        with pytest.raises((RuntimeError, ValueError)):
            op(x, **{**FORWARD, **bad})
    for shape in ((4,), (2, 0, 3), (1, 3), (2, 2, 2, 2, 2, 2)):
        with pytest.raises(ValueError if shape == (1, 3) else RuntimeError):
            ops.abn_forward(torch.randn(shape), **FORWARD)
    with pytest.raises(RuntimeError):
        ops.abn_forward(torch.ones(2, 3, 4, dtype=torch.int32), **FORWARD)
    with pytest.raises(RuntimeError):
        ops.abn_forward_(torch.randn(1, 64, 8, 8).expand(2, 64, 8, 8), **FORWARD)


def backward_arguments(saved="output", activation="leaky_relu"):
    x = torch.randn(2, 64, 8, 8)
    weight = vector(64)
    weight[3] = 0
    out = ops.abn_forward(x, **{**FORWARD, "weight": weight, "saved": saved, "activation": activation})
    z, second, values, index, mean, inv_std, _ = out
    branch = second if saved == "output_bit" else None
    saved_values = z if saved in ("output", "output_bit") else second
    return dict(SETTINGS, weight=weight, activation=activation, saved=saved, saved_values=saved_values, branch=branch,
                channel_values=values, channel_index=index, mean=mean, inv_std=inv_std, training=True, need_sums=True,
                need_z=False, need_dresidual=False)


BAD_BACKWARD = [b for b in BAD_SETTINGS if "weight" not in b] + [
    dict(weight=vector(1)), dict(mean=vector(64)), dict(inv_std=vector(3, torch.float64)),
    dict(inv_std=torch.ones(128, dtype=torch.float64)[::2]),
    dict(saved_values=torch.randn(2, 64, 8, 9)), dict(saved_values=torch.randn(2, 64, 8, 8).half()),
    dict(channel_values=torch.zeros(128, dtype=torch.uint8)), dict(channel_index=torch.tensor([3.0])),
    dict(channel_index=torch.tensor([64])), dict(channel_index=torch.tensor([-1])),
    dict(channel_index=torch.tensor([2**40])), dict(channel_values=torch.zeros(7)),
    dict(channel_index=torch.tensor([3, 3, 3, 3])), dict(need_z=True), dict(need_dresidual=True)]


@pytest.mark.parametrize("bad", BAD_BACKWARD)
@pytest.mark.parametrize("in_place", [False, True])
def test_the_inner_backward_passes_check_what_they_read(bad, in_place):
    dz = torch.randn(2, 64, 8, 8)
    op = ops.abn_backward_ if in_place else ops.abn_backward
    more = {} if in_place else dict(need_dx=True)
    good = backward_arguments()
    op(dz.clone(), **good, **more)
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        op(dz, **{**good, **bad}, **more)


def test_the_inner_backward_pass_needs_all_branches_and_apart_memory():
    dz = torch.randn(2, 64, 8, 8)
    good = backward_arguments("output_bit", "gelu")
    ops.abn_backward(dz, **good, need_dx=True)
    for branch in (None, good["branch"][:-1], good["branch"].int(), good["branch"][:10]):
        with pytest.raises(RuntimeError, match="branches"):
            ops.abn_backward(dz, **{**good, "branch": branch}, need_dx=True)
    good = backward_arguments()
    with pytest.raises(RuntimeError, match="dz is written over"):
        ops.abn_backward_(good["saved_values"], **good)
    for bad in (torch.randn(2, 64, 8, 7), dz.half(), dz[0]):
        with pytest.raises(RuntimeError):
            ops.abn_backward(bad, **good, need_dx=True)


def test_the_inner_recomputation_checks_what_it_reads():
    x = torch.randn(2, 64, 8, 8)
    good = dict(SETTINGS, saved="normalized", mean=vector(64, torch.float64), inv_std=vector(64, torch.float64))
    ops.abn_recompute_output(x, **good)
    for bad in [b for b in BAD_SETTINGS if not {"activation", "saved"} & set(b) and b != dict(activation_param=0.0)] + [
            dict(mean=vector(64)), dict(inv_std=vector(1, torch.float64)), dict(saved="output")]:
        with pytest.raises(RuntimeError):
            ops.abn_recompute_output(x, **{**good, **bad})


def test_an_empty_batch_in_training_gives_an_empty_result_as_batch_norm_does():
    for in_place in (False, True):
        x = torch.randn(0, 4, 3, 3, requires_grad=True)
        w = torch.ones(4, requires_grad=True)
        mean, var = torch.randn(4), torch.rand(4)
        before = mean.clone(), var.clone()
        z = (ops.abn_ if in_place else ops.abn)(x * 1, w, None, mean, var)
        z.sum().backward()
        assert z.shape == x.shape and x.grad.shape == x.shape and torch.equal(w.grad, torch.zeros(4))
        assert torch.equal(mean, before[0]) and torch.equal(var, before[1])

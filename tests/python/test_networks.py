"""convert() on whole networks: the same names, outputs, gradients and buffers as before, with less kept for backward."""
import copy

import pytest
import torch

import palimpsest
from networks import NETWORKS
from palimpsest._convert.proof import tensors_of

NAMES = list(NETWORKS)


def make(name, dtype=torch.float64):
    torch.manual_seed(0)
    build, size, limit = NETWORKS[name]
    model = build().to(dtype).train()
    return model, torch.randn(2, 3, size, size, dtype=dtype), limit


def step(model, x, optimizer=None):
    """(outputs, bytes kept) of one step; the gradients stay in the parameters."""
    torch.manual_seed(1)
    with palimpsest.memory.measure() as measured:
        outputs = tensors_of(model(x))
        measured.forward_done()
        sum(out.float().square().mean() if out.dtype == torch.bfloat16 else out.square().mean() for out in outputs).backward()
    if optimizer:
        optimizer.step()
    return [out.detach() for out in outputs], measured.kept_bytes


def all_close(a, b, relative):
    """The difference of two lists of tensors, by the norm of all of them."""
    difference = sum((x.double() - y.double()).square().sum() for x, y in zip(a, b)).sqrt()
    size = sum(x.double().square().sum() for x in a).sqrt()
    return len(a) == len(b) and bool(difference <= relative * size)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_equals_the_original(name):
    model, x, limit = make(name)
    original = copy.deepcopy(model)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    kinds = [type(m) for m in model.modules()]
    model, report = palimpsest.convert(model)
    assert report.converted
    assert list(model.state_dict()) == list(state) and all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert [n for n, _ in model.named_modules()] == [n for n, _ in original.named_modules()]

    with torch.no_grad():
        outputs = [tensors_of(m.eval()(x)) for m in (original, model)]
    assert all(torch.equal(a, b) for a, b in zip(*outputs))
    assert all_close(tensors_of(original(x)), tensors_of(model(x)), 1e-9)  # gradients recorded, running statistics

    original.train(), model.train()
    results = [step(m, x, torch.optim.SGD(m.parameters(), 0.01, momentum=0.9)) for m in (original, model)]
    assert all_close(results[0][0], results[1][0], 1e-9)
    gradients = [[p.grad for p in m.parameters() if p.grad is not None] for m in (original, model)]
    assert all_close(*gradients, 1e-8)
    assert all_close(list(original.state_dict().values()), list(model.state_dict().values()), 1e-9)
    kept = results[1][1] / results[0][1]
    print(f"{name}: keeps {kept:.3f} of the original's bytes")
    assert 0 < kept <= (limit or 1.0)

    palimpsest.revert(model)
    assert [type(m) for m in model.modules()] == kinds
    model.load_state_dict(state)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert not any("palimpsest" in key for m in model.modules() for key in vars(m))


@pytest.mark.parametrize("name", ["resnext_small", "efficientnet_small", "densenet_small", "yolo_like", "nnunet_like"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_autocast(name, channels_last):
    model, x, _ = make(name, torch.float32)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    outputs = []
    for m in (model, converted):
        with torch.autocast("cpu", torch.bfloat16):
            outputs.append(step(m, x)[0])
    assert [out.dtype for out in outputs[0]] == [out.dtype for out in outputs[1]]
    exact = tensors_of(copy.deepcopy(model).double()(x.double()))  # both are as far from it, up to a factor
    error = [sum((a.double() - b).norm() for a, b in zip(out, exact)) for out in outputs]
    assert error[1] <= 2 * error[0] + 1e-6
    assert all(p.grad.isfinite().all() for p in converted.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "densenet_small", "deeplabv3_resnet50", "yolo_like", "nnunet_like"])
def test_compile_has_no_break(name):
    model, x, _ = make(name)
    converted, _ = palimpsest.convert(copy.deepcopy(model))
    seen = []

    def backend(module, inputs):
        seen.extend(str(node.target) for node in module.graph.nodes)
        from torch._dynamo.backends.debugging import aot_eager
        return aot_eager(module, inputs)

    torch._dynamo.reset()
    step(model, x)
    step(torch.compile(converted, fullgraph=True, backend=backend), x)
    assert any("palimpsest" in target for target in seen)
    gradients = [[p.grad for p in m.parameters() if p.grad is not None] for m in (model, converted)]
    assert all_close(*gradients, 1e-8)

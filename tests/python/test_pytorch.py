"""Converted networks with the rest of PyTorch: data parallel, sharding, scaling, averages, export, checkpoints, processes."""
import copy
import io
import pickle

import pytest
import torch
from torch import nn

import palimpsest
from networks import NETWORKS
from palimpsest._convert.proof import tensors_of

X = torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def small(dtype=torch.float64):
    """A network with a layer of each of the ways in which layers are converted."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
                         nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU(), nn.Flatten(),
                         nn.Linear(512, 5)).to(dtype)


def pair(dtype=torch.float64):
    """(the original, the converted network)"""
    model = small(dtype)
    converted, report = palimpsest.convert(copy.deepcopy(model))
    assert len(report.converted) >= 3
    return model, converted


def gradients_of(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_all_close(a, b, relative=1e-8):
    """By the norm of all values together: gradients that are 0 but for rounding have no relative error."""
    assert list(a) == list(b) and len(a) > 0
    difference = sum((a[key].double() - b[key].double()).square().sum() for key in a).sqrt()
    size = sum(a[key].double().square().sum() for key in a).sqrt()
    assert difference <= relative * size, f"{difference / size:.2e} of {relative:.2e}"


def backward(model, x=X):
    torch.manual_seed(1)
    outputs = tensors_of(model(x))
    sum(out.square().mean() for out in outputs).backward()
    return outputs


_SKIPPED = "skipped: "


def _one_of_two(rank, file, names, results):
    """Sends (name, None or why it was skipped or what went wrong) for each network, then (None, None)."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    try:
        for name in names:
            try:
                _compare_data_parallel(name, rank)
                results.put((name, None))
            except pytest.skip.Exception as skipped:  # the package is missing in both processes
                results.put((name, _SKIPPED + str(skipped)))
            except Exception as error:  # noqa: BLE001: the parent reports it
                results.put((name, repr(error)))
                return  # the other process may wait for ever: it is ended by the parent
    finally:
        results.put((None, None))
        torch.distributed.destroy_process_group()


def _compare_data_parallel(name, rank):
    build, size, _ = NETWORKS[name]
    gradients = []
    for convert in (False, True):
        torch.manual_seed(0)
        model = build().double().train()
        if convert:
            assert palimpsest.convert(model)[1].converted
        # Networks of detection and segmentation have heads that a loss may leave out.
        parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        generator = torch.Generator().manual_seed(10 + rank)
        backward(parallel, torch.randn(2, 3, size, size, dtype=torch.float64, generator=generator))
        gradients.append({key: g.clone() for key, g in gradients_of(model).items()})
    assert_all_close(*gradients)


# Without DeepLabV3 and the networks that have more of the same blocks, which together take minutes.
PARALLEL = [name for name in NETWORKS if name not in ("resnet50", "resnext50", "densenet121", "efficientnet_b0", "mobilenet_v3_large",
                                                      "mobilenet_v2", "deeplabv3_resnet50", "resnet50_group_norm", "convnext_tiny",
                                                      "timm_vit_tiny")]


@pytest.fixture(scope="module")
def data_parallel(tmp_path_factory):
    """The answers of two processes that train the networks in turn."""
    if not torch.distributed.is_available():
        pytest.skip("torch has no distributed package")
    patch = pytest.MonkeyPatch()
    patch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = torch.multiprocessing.get_context("spawn")  # a fork after a backward with threads is refused
    results = context.SimpleQueue()
    file = tmp_path_factory.mktemp("meeting") / "file"
    processes = [context.Process(target=_one_of_two, args=(rank, file, PARALLEL, results)) for rank in range(2)]
    for process in processes:
        process.start()
    answers, ended, wrong = {}, 0, False
    while ended < 2 and not wrong:
        name, answer = results.get()
        ended += name is None
        if name is not None:
            answers.setdefault(name, []).append(answer)
            wrong = answer is not None and not answer.startswith(_SKIPPED)
    for process in processes:
        if wrong:
            process.terminate()
        process.join()
    patch.undo()
    return answers


@pytest.mark.parametrize("name", PARALLEL)
def test_data_parallel(name, data_parallel):
    answers = data_parallel.get(name)
    assert answers, "not reached: another network ended the processes"
    for answer in answers:
        if answer and answer.startswith(_SKIPPED):
            pytest.skip(answer.removeprefix(_SKIPPED))
        assert answer is None


def test_fully_sharded(tmp_path):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        gradients = []
        for model in pair():
            fsdp.fully_shard(model, mesh=mesh)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            backward(model)
            gradients.append({key: g.full_tensor() for key, g in gradients_of(model).items()})
            optimizer.step()
        assert_all_close(*gradients)
    finally:
        torch.distributed.destroy_process_group()


def test_gradient_scaler_under_autocast():
    results = []
    for model in pair(torch.float32):
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
        for bad in (False, True):  # the scaler leaves out a step whose gradients are not finite
            optimizer.zero_grad()
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(X.float()).float().square().mean()
            scaler.scale(loss * (float("inf") if bad else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            same = all(torch.equal(p, before[name]) for name, p in model.named_parameters())
            assert same == bad
        results.append((scaler.get_scale(), {name: p.detach() for name, p in model.named_parameters()}))
    assert results[0][0] == results[1][0] == 512.0
    assert_all_close(results[0][1], results[1][1], 2e-3)


def test_functional_call():
    model, converted = pair()
    gradients = []
    for m in (model, converted):
        parameters = {name: (p.detach() * 1.5).requires_grad_() for name, p in m.named_parameters()}
        state = {**parameters, **{name: b.clone() for name, b in m.named_buffers()}}
        torch.func.functional_call(m, state, (X,)).square().sum().backward()
        gradients.append({name: p.grad for name, p in parameters.items()})
        assert all(p.grad is None for p in m.parameters())
        assert not torch.equal(state["1.running_mean"], m[1].running_mean)  # the buffers that were passed have moved
    assert_all_close(*gradients)


def test_average_of_weights():
    averages = []
    for model in pair():
        average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5),
                                                      use_buffers=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
            average.update_parameters(model)
        averages.append({**average.state_dict(), "out": average.eval()(X).detach()})
    assert_all_close(*averages)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_of_torch(use_reentrant):
    gradients = []
    for model in pair():
        x = X.clone().requires_grad_()
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=use_reentrant).square().sum().backward()
        gradients.append({**gradients_of(model), "x": x.grad})
    assert_all_close(*gradients)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_forward_without_gradients(mode):
    results = []
    for model in pair():
        with mode():
            out = model(X)
        results.append({"out": out.clone(), **{name: b.clone() for name, b in model.named_buffers()}})
    assert_all_close(*results)


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "save"])
def test_copies_train_on(copied):
    _, converted = pair()
    if copied == "deepcopy":
        other = copy.deepcopy(converted)
    elif copied == "pickle":
        other = pickle.loads(pickle.dumps(converted))
    else:
        file = io.BytesIO()
        torch.save(converted, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    backward(converted), backward(other)
    assert_all_close(gradients_of(converted), gradients_of(other), 0)
    palimpsest.revert(other)
    assert [type(m) for m in other.modules()] == [type(m) for m in small().modules()]


class _Images(torch.utils.data.Dataset):
    """A data set whose workers run a converted network."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 4

    def __getitem__(self, i):
        torch.set_num_threads(1)
        with torch.no_grad():
            return self.model(X[i:i + 1])[0]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_loader(start):
    _, converted = pair()
    converted.eval()
    with torch.no_grad():
        want = converted(X)
    loader = torch.utils.data.DataLoader(_Images(converted), batch_size=4, num_workers=1, multiprocessing_context=start)
    got = next(iter(loader))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("strict", [False, True])
def test_export_has_no_operator_of_ours(strict):
    model, converted = pair()
    program = torch.export.export(converted.eval(), (X,), strict=strict)
    assert not any("palimpsest" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(X), model.eval()(X))


@pytest.mark.parametrize("dynamo", [False, True])
def test_onnx_has_no_operator_of_ours(dynamo, tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: scripts/install_networks installs it")
    if dynamo:
        pytest.importorskip("onnxscript", reason="onnxscript is not installed: scripts/install_networks installs it")
    _, converted = pair(torch.float32)
    torch.onnx.export(converted.eval(), (X.float(),), str(tmp_path / "network.onnx"), dynamo=dynamo)
    written = onnx.load(tmp_path / "network.onnx")
    assert {node.domain for node in written.graph.node} <= {"", "ai.onnx"}
    assert "Conv" in {node.op_type for node in written.graph.node}

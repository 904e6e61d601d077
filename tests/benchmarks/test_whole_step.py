"""The benchmark of whole training steps on a tiny network: what it prints and writes, what it refuses. Nothing is timed."""
import json
import threading

import pytest
import torch
from torch import nn

from training_step_support import run, tiny

import whole_step as benchmark  # noqa: E402: training_step_support names its folder
from training_step import gate  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def without_kernels(monkeypatch):
    """torch.compile decides what is saved as its default backend does, and writes no kernels, which would take a minute."""
    backend = torch._dynamo.lookup_backend("aot_eager_decomp_partition")
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, backend=backend, **options: original(model, backend=backend, **options))
    monkeypatch.setattr(torch._inductor, "compile", backend)
    yield
    torch.compiler.reset()


def test_every_form_has_a_time_and_three_counts_of_bytes(monkeypatch, capsys, tmp_path, without_kernels):
    path = tmp_path / "out.json"
    status, printed, _ = run(benchmark, monkeypatch, capsys, "--json", path)
    assert status == 0
    table = json.loads(path.read_text())
    rows = {row["claim"]: row for row in table["rows"]}
    forms = [form for form in benchmark.FORMS if form != "memory_efficient"]  # which only DenseNets have
    assert set(rows) == {f"tiny {what}: {form}" for what in ("step", "peak", "whole", "kept", "error")
                         for form in forms}
    assert table["benchmark"] == "whole_step" and table["batch"] == 4 and table["size"] == 16
    assert {claim: row["limit"] for claim, row in rows.items() if row["limit"] is not None} == {
        "tiny step: ours": 1.0, "tiny peak: ours": 0.62}
    assert all(0 < rows[f"tiny error: {form}"]["measured"]["median"] < 1e-4 for form in forms)
    kept = {form: rows[f"tiny kept: {form}"]["measured"]["median"] for form in forms}
    assert kept["checkpoint"] < kept["eager"] and kept["ours"] < kept["eager"]
    assert kept["torch.compile + checkpoint"] < kept["torch.compile"] > kept[f"torch.compile, budget {benchmark.BUDGET}"]
    # The whole has the parameters, buffers, gradients and momentum beside the peak.
    network = benchmark.NETWORKS["tiny"]()
    state = 3 * benchmark.bytes_of(network.parameters()) + benchmark.bytes_of(network.buffers())
    for form in forms:
        whole, peak = (rows[f"tiny {what}: {form}"]["measured"]["median"] for what in ("whole", "peak"))
        assert whole - peak == pytest.approx(state / 1e6)


def test_counting_the_bytes_of_a_form_does_not_change_what_the_others_are_compared_with(without_kernels):
    torch.manual_seed(0)
    training = benchmark.Forms(tiny(), 4, 16)
    training.optimizer.param_groups[0]["lr"] = 0.5
    before = training.gradients(training.model)
    forms = ["eager", "checkpoint", "ours"]
    assert set(benchmark.prepare("tiny", training, forms)[0]) == set(forms)
    after = training.gradients(training.model)
    assert (after - before).norm() > 2 * benchmark.LARGEST_ERROR * before.norm()


class Twice(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return 2 * self.model(x)


@pytest.mark.parametrize("form", ["torch.compile", "ours"])
def test_other_gradients_of_a_side_of_a_claim_are_an_error(monkeypatch, capsys, without_kernels, form):
    monkeypatch.setitem(benchmark.FORMS, form, Twice)
    status, _, errors = run(benchmark, monkeypatch, capsys, "--forms", form)
    assert status == 1 and errors.splitlines()[-1].startswith(
        f"whole_step: tiny: the gradients of '{form}' differ from those in f64 by ")


def test_a_network_in_f64_that_computes_something_else_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(benchmark.Forms, "gradients_in_f64", lambda self: 2 * self.gradients(self.model).double())
    status, _, errors = run(benchmark, monkeypatch, capsys, "--forms", "eager")
    assert status == 1 and errors.splitlines()[-1].startswith("whole_step: tiny: eager's gradients differ from those in f64 by 5.0e-01")


def test_a_control_with_other_gradients_is_not_timed(monkeypatch, capsys, tmp_path, without_kernels):
    monkeypatch.setitem(benchmark.FORMS, "checkpoint", Twice)
    status, printed, _ = run(benchmark, monkeypatch, capsys, "--forms", "checkpoint;ours", "--json", tmp_path / "out.json")
    assert status == 0 and "the gradients of 'checkpoint' differ from those in f64 by " in printed
    claims = {row["claim"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]}
    assert {claim for claim in claims if "checkpoint" in claim} == {"tiny error: checkpoint"}
    assert {"tiny step: ours", "tiny error: ours"} <= claims


def test_checkpoints_stand_around_each_layer_of_a_dense_block():
    torchvision = pytest.importorskip("torchvision")
    network = torchvision.models.DenseNet(growth_rate=4, block_config=(2, 1), num_init_features=8, bn_size=2, num_classes=3)
    assert benchmark.with_torchvisions_checkpoints(network) is network
    assert all(block.denselayer1.memory_efficient for block in (network.features.denseblock1, network.features.denseblock2))
    benchmark.with_checkpoints(network)
    wrapped = [name for name, module in network.named_modules() if isinstance(module, benchmark.Checkpointed)]
    assert wrapped == ["features.denseblock1.denselayer1", "features.denseblock1.denselayer2", "features.denseblock2.denselayer1"]
    network(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_a_round_waits_for_a_file(tmp_path, capsys):
    path = tmp_path / "go"
    threading.Timer(0.3, path.touch).start()
    wait = gate(path, "tiny")
    wait()
    assert path.exists() and capsys.readouterr().out == f"tiny: waits for {path}\n"
    wait()
    gate(None, "tiny")()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("arguments, said", [
    (["--networks", "resnet51"], "--networks knows tiny; got 'resnet51'"),
    (["--forms", "eager;fast"], "; got 'fast'"),
    (["--batch", "0"], "got '0'"),
    (["--while", "/nowhere/go"], "--while needs a path in a folder that exists, got '/nowhere/go'"),
    (["--build", "/nowhere"], "--build needs a folder with libpalimpsest_ops.so, got '/nowhere'"),
])
def test_wrong_options_are_refused(monkeypatch, capsys, arguments, said):
    status, _, errors = run(benchmark, monkeypatch, capsys, *arguments)
    assert status == 2 and said in errors and errors.count("\n") == 1

"""The benchmark that says where a step's time goes, on a tiny network: its pieces add up. Nothing is timed."""
import json

import pytest
import torch

from training_step_support import run

import step_profile as benchmark  # noqa: E402: training_step_support names its folder

torch.set_num_threads(1)
BN = "torch::autograd::CppNode<palimpsest::ops::abn_detail::(anonymous namespace)::AbnFunction>"
BLOCK = "torch::autograd::CppNode<palimpsest::ops::abn_conv_detail::(anonymous namespace)::AbnConvFunction>"


def test_the_pieces_add_up_to_the_step(monkeypatch, capsys, tmp_path):
    path = tmp_path / "out.json"
    status, printed, _ = run(benchmark, monkeypatch, capsys, "--json", path)
    assert status == 0
    table = json.loads(path.read_text())
    assert table["benchmark"] == "step_profile" and list(table["networks"]) == ["tiny"]
    assert table["rest"] == [benchmark.OTHER, benchmark.REST] and table["limit"] == benchmark.LARGEST_REST
    for side in ("eager", "ours"):
        found = table["networks"]["tiny"][side]
        assert list(found["pieces"]) == list(benchmark.PIECES)
        assert sum(found["pieces"].values()) == pytest.approx(found["step"])
        for piece in (benchmark.FORWARD, benchmark.INPUT, benchmark.NORMALIZATION, benchmark.POOLING, benchmark.LOSS,
                      benchmark.OPTIMIZER, benchmark.REST):
            assert found["pieces"][piece] > 0, (side, piece)
        assert found["without_profiler"]["median"] > 0
    assert f"  {benchmark.NORMALIZATION} " in printed and "  without the profiler " in printed


def test_a_step_whose_time_belongs_to_no_operator_fails_the_claim():
    side = {"step": 100.0, "pieces": {benchmark.OTHER: 2.0, benchmark.REST: 3.0}}
    assert benchmark.holds({"eager": side})
    side["pieces"][benchmark.REST] = 3.1
    assert not benchmark.holds({"eager": side})


@pytest.mark.parametrize("name, piece", [
    ("aten::mkldnn_convolution", benchmark.FORWARD), ("palimpsest::abn_conv_", benchmark.FORWARD),
    ("palimpsest::activate_conv", benchmark.FORWARD), ("palimpsest::dense_block", benchmark.FORWARD),
    ("aten::convolution_backward", benchmark.BACKWARD), (BLOCK, benchmark.BACKWARD),
    ("aten::native_batch_norm_backward", benchmark.NORMALIZATION), ("aten::threshold_backward", benchmark.NORMALIZATION),
    ("palimpsest::abn_forward_", benchmark.NORMALIZATION), (BN, benchmark.NORMALIZATION),
    ("palimpsest::max_pool2d_backward", benchmark.POOLING), ("aten::max_pool2d_with_indices", benchmark.POOLING),
    ("aten::add_", benchmark.ADDITION), ("aten::mul", benchmark.PRODUCTS), ("aten::cat", benchmark.CONCATENATION),
    ("autograd::engine::evaluate_function: CatBackward0", benchmark.CONCATENATION),
    ("aten::_log_softmax_backward_data", benchmark.LOSS), ("aten::addmm", benchmark.LOSS),
    ("Optimizer.step#SGD.step", benchmark.OPTIMIZER), ("Optimizer.zero_grad#SGD.zero_grad", benchmark.OPTIMIZER),
    ("aten::copy_", benchmark.COPIES), (f"autograd::engine::evaluate_function: {BLOCK}", benchmark.REST),
    ("ConvolutionBackward0", benchmark.REST), ("aten::expand", None),
])
def test_the_piece_of_an_operator(name, piece):
    assert benchmark.piece_of(name) == piece


class Event:
    def __init__(self, name, parent, milliseconds):
        self.name, self.cpu_parent, self.self_cpu_time_total, self.id = name, parent, 1e3 * milliseconds, id(self)


def test_the_caller_decides_where_the_name_does_not():
    step = Event(benchmark.STEP, None, 1)
    optimizer = Event("Optimizer.step#SGD.step", step, 2)
    product = Event("autograd::engine::evaluate_function: MulBackward0", step, 4)
    pieces = benchmark.pieces_of([step, optimizer, product, Event("aten::add_", optimizer, 8), Event("aten::sum", product, 16),
                                  Event("aten::unknown", step, 32), Event("aten::add_", None, 64)])
    assert pieces[benchmark.OPTIMIZER] == 10 and pieces[benchmark.PRODUCTS] == 20 and pieces[benchmark.OTHER] == 32
    assert pieces[benchmark.REST] == 1 and sum(pieces.values()) == 63  # what the step does not call is none of its time


def test_the_fastest_step_counts():
    slow, fast = {benchmark.FORWARD: 5.0, benchmark.REST: 0.5}, {benchmark.FORWARD: 4.0, benchmark.REST: 1.0}
    assert benchmark.fastest([slow, fast, slow]) is fast


def test_the_weight_gradient_is_what_backward_takes_more():
    whole = {**dict.fromkeys(benchmark.PIECES, 1.0), benchmark.BACKWARD: 10.0}
    found = benchmark.split(whole, {benchmark.BACKWARD: 4.0})
    assert found[benchmark.INPUT] == 4 and found[benchmark.WEIGHT] == 6 and list(found) == list(benchmark.PIECES)


@pytest.mark.parametrize("arguments, said", [(["--networks", "resnet51"], "--networks knows tiny; got 'resnet51'"),
                                             (["--build", "/nowhere"], "--build needs a folder with libpalimpsest_ops.so")])
def test_wrong_options_are_refused(monkeypatch, capsys, arguments, said):
    status, _, errors = run(benchmark, monkeypatch, capsys, *arguments)
    assert status == 2 and said in errors and errors.count("\n") == 1

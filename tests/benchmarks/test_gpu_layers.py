"""The rows of layers on a GPU, measured on a machine that has none: what they hold, what they refuse, and what they say of a
wrong result. The figures mean nothing here."""
import json
import os
import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests/benchmarks")]
import gpu_time  # noqa: E402
import inplace_abn_package  # noqa: E402
from gpu import device_time, layers, measuring, plan, row_log  # noqa: E402
from gpu_support import context_on_the_cpu, work  # noqa: E402

torch.set_num_threads(1)
torch.ops.load_library(str(BUILD / "libpalimpsest_ops.so"))
SMALL = dict(shape=(4, 8, 6, 5), layout="channels-last", dtype="f32")


@pytest.fixture
def context(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda layer, **_: layer)
    return context_on_the_cpu(monkeypatch)


def rows_of(unit, context):
    return measuring.rows_of(unit, layers.KINDS, context)


def test_a_layer_has_a_row_against_eager_and_one_against_a_copy(context):
    eager, copy = rows_of(work("layer", "name", SMALL, eager=1e9, copy=1e-9), context)
    assert eager["row"] == "name: eager" and eager["opponent_name"].startswith("batch_norm + leaky_relu")
    assert (eager["outcome"], eager["limit"], eager["pass"]) == ("passed", 1e9, True) and eager["ratio"] > 0
    assert (copy["row"], copy["outcome"], copy["pass"]) == ("name: a copy of 5 passes", "failed", False)
    assert copy["opponent"]["median"] == pytest.approx(1e3 * 5 * 4 * 8 * 6 * 5 * 4 / 1e9)


def test_a_row_without_a_limit_claims_nothing(context):
    eager, copy = rows_of(work("layer", "name", SMALL), context)
    assert (eager["outcome"], copy["outcome"]) == ("measured", "measured") and eager["pass"] is None


def test_a_channel_that_fits_on_the_chip_is_read_once():
    for shape, layout, dtype, count in (((64, 256, 56, 56), "channels-last", torch.bfloat16, 8),
                                        ((64, 2048, 7, 7), "channels-last", torch.bfloat16, 5),
                                        ((64, 1024, 14, 14), "NCHW", torch.float32, 5)):
        assert layers.passes(shape, layout, dtype) == count


def test_a_layer_that_is_wrong_is_a_failure_and_is_not_timed(context, monkeypatch):
    right = layers.ours
    monkeypatch.setattr(layers, "ours", lambda x, *rest: right(x, *rest) * 1.001)
    row, = rows_of(work("layer", "name", SMALL), context)
    assert row["outcome"] == "failed" and row["reason"].startswith("ours: output differs from libtorch's in f64 by 1.0e-03")


@pytest.mark.parametrize("kind, name", [("compiled", "torch.compile"), ("host", "batch_norm + leaky_relu_")])
def test_other_opponents(context, kind, name):
    unit = work(kind, "name", SMALL if kind == "compiled" else dict(shape=(2, 4, 3, 3), runs=3), compiled=1e9, host=1e9)
    row, = rows_of(unit, context)
    assert (row["row"], row["opponent_name"], row["outcome"]) == ("name", name, "passed")


def test_a_package_that_is_not_there_or_cannot_or_is_wrong_is_not_run(monkeypatch):
    def refuses(*_):
        raise RuntimeError("no kernel for this dtype\nand more")

    said = []
    for package in ("name a folder", refuses, lambda x, *rest: layers.fresh(2 * x, *rest) * 2):
        row, = rows_of(work("package", "name", SMALL, inplace_abn=0.5), context_on_the_cpu(monkeypatch, package))
        assert row["outcome"] == "not run"
        said.append(row["reason"])
    assert said[:2] == ["name a folder", "no kernel for this dtype"]
    assert said[2].startswith("inplace_abn: output differs from libtorch's in f64 by")
    row, = rows_of(work("package", "name", SMALL, inplace_abn=1e9), context_on_the_cpu(monkeypatch, layers.in_place))
    assert (row["outcome"], row["opponent_name"]) == ("passed", "inplace_abn")


def test_a_nan_stays_in_its_channel(context, monkeypatch):
    row, = rows_of(work("not_a_number", "NaN", dict(shape=(3, 8, 6, 5))), context)
    assert row == {"row": "NaN", "outcome": "passed"}
    right = layers.ours
    monkeypatch.setattr(layers, "ours", lambda *arguments: right(*arguments).nan_to_num())
    row, = rows_of(work("not_a_number", "NaN", dict(shape=(3, 8, 6, 5))), context)
    assert row["outcome"] == "failed" and row["reason"].startswith("NCHW torch.float32: output has 0 NaN, libtorch's layers have")


def test_max_pooling_has_a_row_per_direction(context):
    rows = rows_of(work("pool", "pool", SMALL), context)
    assert [(row["row"], row["opponent_name"], row["outcome"]) for row in rows] == [
        ("pool, forward", "libtorch's", "measured"), ("pool, backward", "libtorch's", "measured")]


def test_a_large_tensor_is_compared_with_its_first_image(context, monkeypatch):
    unit = work("large", "large", SMALL)
    row, = rows_of(unit, context)
    assert (row["row"], row["outcome"]) == ("large: a copy of 8 passes", "measured")
    right = layers.ours

    def wraps(x, *rest):  # as an index of 32 bits would: the last image holds what belongs elsewhere
        z = right(x, *rest)
        return torch.cat([z[:-1], z[-1:] + 1]) if len(x) > 1 else z

    monkeypatch.setattr(layers, "ours", wraps)
    row, = rows_of(unit, context)
    assert row["outcome"] == "failed" and "the output of image 3 is not that of image 0" in row["reason"]


def test_a_side_channel_costs_a_difference(context):
    row, = rows_of(work("side_channel", "side", dict(shape=(2, 8, 4, 4))), context)
    assert (row["row"], row["unit"], row["outcome"]) == ("side", "ms", "measured")


def test_kernels_have_rows_with_their_bandwidth(context, monkeypatch):
    times = {"statistics_kernel": 0.026, "backward_apply_kernel": 0.09, "new_kernel": 0.01}
    monkeypatch.setattr(device_time, "kernel_milliseconds", lambda once, repeats: once() or times)
    first, last, unknown = rows_of(work("kernels", "kernels of name", SMALL), context)
    assert first["row"] == "name: statistics_kernel" and first["opponent_name"] == "1 passes of a copy"
    moved = 4 * 8 * 6 * 5 * 4
    assert first["gigabytes_per_second"] == pytest.approx(moved / 0.026 / 1e6)
    assert last["ratio"] == pytest.approx(0.09 / (1e3 * 3 * moved / 1e9))
    assert unknown["row"] == "name: new_kernel" and "ratio" not in unknown
    monkeypatch.setattr(device_time, "kernel_milliseconds", lambda *_: {})
    row, = rows_of(work("kernels", "kernels of name", SMALL), context)
    assert row["outcome"] == "not run" and row["reason"].startswith("the profiler shows no kernels of ours")


def test_kernels_are_named_and_those_of_others_left_out():
    events = [("void palimpsest::kernels::statistics_kernel<palimpsest::Walk>(Cut)", 20.0),
              ("void palimpsest::kernels::statistics_kernel<palimpsest::Walk>(Cut)", 30.0),
              ("void at::native::vectorized_elementwise_kernel<4>()", 5.0),
              ("void palimpsest::kernels::apply_kernel<bf16>(Cut)", 50.0)]
    assert device_time.medians_of_kernels(events) == {"statistics_kernel": 0.025, "apply_kernel": 0.05}


def test_an_error_of_cuda_ends_the_process_and_others_are_rows(context):
    def lost(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    def broken(*_):
        raise KeyError("x")

    row, = measuring.rows_of(work("broken", "unit"), {"broken": broken}, context)
    assert (row["outcome"], row["reason"]) == ("failed", "KeyError: 'x'")
    with pytest.raises(row_log.DeviceLost) as error:
        measuring.rows_of(work("lost", "unit"), {"lost": lost}, context)
    assert error.value.rows == [{"row": "unit", "outcome": "failed",
                                 "reason": "RuntimeError: CUDA error: an illegal memory access was encountered"}]


class Device:
    """torch.cuda's clock: sleep and work take the time of the device, queueing that of the host."""

    def __init__(self, monkeypatch):
        self.host = self.device = 0.0  # milliseconds; the device is busy until `device`
        self.sleeps = []
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(self))
        monkeypatch.setattr(device_time.time, "perf_counter", lambda: self.host / 1e3)

    def synchronize(self):
        self.host = max(self.host, self.device)

    def sleep(self, cycles):
        self.sleeps.append(cycles / 1e6)
        self.queue(0, cycles / 1e6)  # 1 GHz

    def queue(self, host, device):
        self.host += host
        self.device = max(self.host, self.device) + device


class Event:
    def __init__(self, device):
        self.owner, self.at = device, None

    def record(self):
        self.owner.queue(0, 0)
        self.at = self.owner.device

    def synchronize(self):
        self.owner.synchronize()

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.mark.parametrize("kernels", [4, 500])
def test_the_host_is_hidden_behind_a_sleep_of_its_own_length(monkeypatch, kernels):
    device = Device(monkeypatch)
    clock = device_time.Clock()
    assert clock.cycles_per_ms == pytest.approx(1e6)

    calls = []

    def step():  # the host needs 30 us to queue a kernel of 10 us, and a second to load the kernels
        device.queue(0 if calls else 1000, 0)
        calls.append(None)
        for _ in range(kernels):
            device.queue(0.03, 0.01)

    run = clock.timed(step)
    run(), run()
    assert run() == pytest.approx(0.01 * kernels)
    assert device.sleeps[-1] == pytest.approx(max(1.0, 1.5 * 0.03 * kernels))


def test_a_checkout_is_compiled_and_one_that_does_not_compile_says_why(tmp_path):
    (tmp_path / "inplace_abn").mkdir()
    (tmp_path / "src").mkdir()
    with pytest.raises(ImportError, match="neither a compiled package nor its sources"):
        inplace_abn_package.build(tmp_path, tmp_path / "build", cuda=False)
    (tmp_path / "src/broken.cpp").write_text("#error the wrong compiler\n")
    with pytest.raises(ImportError, match="do not compile: .*the wrong compiler"):
        inplace_abn_package.build(tmp_path, tmp_path / "build", cuda=False)
    assert not (tmp_path / "inplace_abn/_backend.py").exists()


def test_a_package_that_must_be_compiled_needs_the_time(tmp_path):
    _, options, _ = gpu_time.options_of(["--inplace-abn", str(tmp_path)])
    assert gpu_time.package_of(options, row_log.Budget(1)).startswith("it did not fit in the budget: ")
    _, options, _ = gpu_time.options_of([])
    options.inplace_abn = None
    assert gpu_time.package_of(options, row_log.Budget()).startswith("name a folder with the package")


def test_a_run_appends_rows_and_the_next_one_measures_what_is_missing(context, monkeypatch, tmp_path, capsys):
    units = [plan.Work("layers", "layer", name, plan.FIRST, 0, SMALL) for name in ("one", "two")]
    units.append(plan.Work("layers", "layer", "long", plan.FIRST, 1e6, SMALL))
    monkeypatch.setattr(plan, "PLAN", units)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    monkeypatch.setattr(measuring, "Context", lambda *_: context)
    context.budget = row_log.Budget(1e4)
    arguments = ["--build", str(BUILD), "--rows", str(tmp_path / "rows.jsonl"), "--budget", "10000", "--repeats", "2"]
    assert gpu_time.main(arguments) == 3
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines] == ["run", "plan", *5 * ["row"]]
    assert lines[0]["device"] == "a device" and lines[1]["works"] == ["one", "two", "long"]
    assert [line["work"] for line in lines[2:]] == ["one", "one", "two", "two", "long"]
    assert len({line["library"] for line in lines if "library" in line}) == 1
    assert lines[-1]["reason"].startswith("it did not fit in the budget: ")
    capsys.readouterr()
    context.budget = row_log.Budget(1e9)
    assert gpu_time.main(arguments) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and all(" long: " in line for line in said), said


@pytest.mark.parametrize("arguments, line", [
    (["--only", "layers,tests"], "--only takes layers, steps, got 'tests'"),
    (["--importance", "most"], "--importance takes first, second, last, got 'most'"),
    (["--budget", "0"], "argument --budget: a whole number above 0 is needed, got '0'"),
    (["--json", "x"], "unrecognized arguments: --json x"),
    (["--build", "/nowhere"], "no '/nowhere/libpalimpsest_ops.so': scripts/gpu_check builds it"),
    *([(["--build", str(BUILD)], "there is no CUDA device; this benchmark needs one")] * (not torch.cuda.is_available())),
])
def test_a_wrong_option_is_one_line(capsys, arguments, line):
    with pytest.raises(SystemExit) as end:
        gpu_time.main(arguments)
    said = capsys.readouterr()
    assert end.value.code == 2 and said.out == "" and said.err.endswith(f": {line}; --help lists the options\n")
    assert said.err.count("\n") == 1

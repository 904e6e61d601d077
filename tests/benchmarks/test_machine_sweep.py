"""The measurement of one machine: which processes it starts, how it merges their results, what it refuses. The benchmarks are
stand-ins, except where their own options are tested; nothing is timed."""
import json
import os
import pathlib
import stat
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PALIMPSEST_BUILD_DIR", ROOT / "build/release"))
NAMES = ("layer_time", "max_pool_time", "model_step", "densenet_time")
PROCESSORS = len(os.sched_getaffinity(0))
# It runs x86-64-v2 and x86-64-v3, as libtorch does, and writes down its variables.
STAND_IN = f"#!{sys.executable} -IS" + """
import json, os, pathlib, sys
isa, libtorch = os.environ["PALIMPSEST_ISA"], os.environ.get("ATEN_CPU_CAPABILITY", "none")
if isa not in ("x86-64-v2", "x86-64-v3"):
    sys.exit(f"PALIMPSEST_ISA must name an instruction set that runs here (x86-64-v3, x86-64-v2), got '{isa}'")
name = pathlib.Path(sys.argv[0]).name.removeprefix("bench_")
machine = {"instruction_set": isa, "libtorch_instruction_set": {libtorch}, "libtorch": "2.11.0"}
if sys.argv[1:] == ["--describe"]:
    print(json.dumps(machine))
    sys.exit()
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
keys = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
with open(pathlib.Path(sys.argv[0]).parent / "calls", "a") as calls:
    print(name, isa, libtorch, *(os.environ.get(key) for key in keys), arguments["--threads"], arguments.get("--repeats"), file=calls)
row = {"claim": "c", "opponent_name": "o", "ratio": {ratio}, "limit": 1.0, "pass": True}
pathlib.Path(arguments["--json"]).write_text(json.dumps(
    {**machine, "benchmark": name, "threads": int(arguments["--threads"]), "repeats": 3, "rows": [row], "pass": True}))
sys.exit({status})
"""


def stand_in(build, name, libtorch="libtorch.upper()", ratio=0.5, status=0):
    path = build / f"bench_{name}"
    path.write_text(STAND_IN.replace("{libtorch}", libtorch).replace("{ratio}", str(ratio)).replace("{status}", str(status)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def build(tmp_path):
    folder = tmp_path / "build"
    folder.mkdir()
    for name in NAMES:
        stand_in(folder, name)
    return folder


def sweep(build, *arguments):
    return subprocess.run([sys.executable, ROOT / "benchmarks/machine_sweep.py", "--build", build, "--results",
                           build.parent, *map(str, arguments)], capture_output=True, text=True)


def calls(build):
    return (build / "calls").read_text().splitlines()


def content_of(build, name="here"):
    return json.loads((build.parent / f"machines/{name}.json").read_text())


def test_each_set_and_number_of_threads_is_a_process_with_libtorch_at_the_same_set(build):
    done = sweep(build, "--threads", "1", "--isa", "x86-64-v2,x86-64-v3", "--repeats", 3, "--name", "here")
    assert done.returncode == 0, done.stderr
    assert calls(build) == [f"{name} {settings} 1 3" for settings in ("x86-64-v3 avx2 AVX2 AVX2", "x86-64-v2 default SSE41 SSE4_2")
                            for name in NAMES]
    content = content_of(build)
    assert content["machine"]["processors"] == PROCESSORS
    assert [(run["instruction_set"], run["libtorch_instruction_set"], run["benchmark"]) for run in content["runs"]] == [
        (*sets, name) for sets in (("x86-64-v3", "AVX2"), ("x86-64-v2", "DEFAULT")) for name in NAMES]
    assert all(run["rows"] == [{"claim": "c", "opponent_name": "o", "ratio": 0.5, "limit": 1.0, "pass": True}] and run["commit"]
               for run in content["runs"])


def test_without_options_all_sets_that_run_here_are_measured_with_one_and_all_threads(build):
    assert sweep(build, "--name", "here").returncode == 0
    threads = sorted({"1", str(PROCESSORS)})
    assert {tuple(line.split()[i] for i in (1, 5, 6)) for line in calls(build)} == {
        (name, number, "None") for name in ("x86-64-v3", "x86-64-v2") for number in threads}


def test_a_later_run_replaces_its_own_combination_only(build):
    assert sweep(build, "--threads", "1", "--isa", "x86-64-v3", "--name", "here").returncode == 0
    stand_in(build, "layer_time", ratio=0.25)
    done = sweep(build, "--threads", "1", "--isa", "x86-64-v3,x86-64-v2", "--benchmarks", "layer_time", "--name", "here")
    assert done.returncode == 0, done.stderr
    assert [(run["instruction_set"], run["benchmark"], run["rows"][0]["ratio"]) for run in content_of(build)["runs"]] == [
        ("x86-64-v3", "layer_time", 0.25), ("x86-64-v3", "max_pool_time", 0.5), ("x86-64-v3", "model_step", 0.5),
        ("x86-64-v3", "densenet_time", 0.5),
        ("x86-64-v2", "layer_time", 0.25)]


def test_what_was_measured_before_a_failure_stays(build):
    stand_in(build, "max_pool_time", status=1)
    done = sweep(build, "--threads", "1", "--isa", "x86-64-v3", "--name", "here")
    assert done.returncode == 1
    assert done.stderr == "machine_sweep: bench_max_pool_time, x86-64-v3, 1 threads: exit status 1\n"
    assert [run["benchmark"] for run in content_of(build)["runs"]] == ["layer_time"]


@pytest.mark.parametrize("text, said", [
    (json.dumps({"machine": {"processor": "another"}, "runs": []}), "is of another machine"),
    ("{", "is no file of a machine: JSONDecodeError"),
    ("[]", "is no file of a machine: TypeError"),
])
def test_a_file_of_another_machine_or_form_is_left_alone(build, text, said):
    path = build.parent / "machines/here.json"
    path.parent.mkdir()
    path.write_text(text)
    done = sweep(build, "--threads", "1", "--isa", "x86-64-v3", "--name", "here")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"machine_sweep: {path} ") and said in done.stderr
    assert path.read_text() == text and not (build / "calls").exists()


def test_a_run_of_another_version_is_left_alone(build):
    arguments = ("--threads", "1", "--isa", "x86-64-v3", "--benchmarks", "layer_time", "--name", "here")
    assert sweep(build, *arguments).returncode == 0
    path = build.parent / "machines/here.json"
    text = path.read_text().replace('"layer_time"', '"block_time"')
    path.write_text(text)
    done = sweep(build, *arguments)
    assert done.returncode == 1 and done.stderr.startswith(f"machine_sweep: {path} is no file of a machine: ValueError")
    assert done.stderr.count("\n") == 1 and path.read_text() == text


@pytest.mark.parametrize("arguments, said", [
    (["--threads", "0"], f"--threads: whole numbers from 1 to {PROCESSORS}, the processors here, are needed, with commas between them, got '0'"),
    (["--threads", "two"], "got 'two'"),
    (["--threads", "1,"], "got '1,'"),
    (["--threads", f"1,{PROCESSORS + 1}"], f"got '1,{PROCESSORS + 1}'"),
    (["--isa", "x86-64-v9"], "--isa: 'x86-64-v9' is unknown; names with commas between them, of x86-64-v4-bf16, x86-64-v4, x86-64-v3, x86-64-v2, native"),
    (["--isa", ""], "--isa: '' is unknown"),
    (["--isa", "x86-64-v3,x86-64-v4"], "--isa x86-64-v4: PALIMPSEST_ISA must name an instruction set that runs here (x86-64-v3, "
                                       "x86-64-v2), got 'x86-64-v4'"),
    (["--benchmarks", "layer"], "'layer' is unknown; names with commas between them, of layer_time, max_pool_time, model_step, densenet_time"),
    (["--repeats", "0"], "a whole number above 0 is needed, got '0'"),
    (["--name", "../x"], "a-z, 0-9 and _ are allowed, got '../x'"),
    (["--build", "nowhere"], "--build needs a folder with bench_layer_time, got 'nowhere'"),
])
def test_a_wrong_value_is_one_line_and_status_2(build, arguments, said):
    done = sweep(build, *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr
    assert not (build / "calls").exists() and not (build.parent / "machines").exists()


def test_a_libtorch_that_keeps_another_set_is_refused(build):
    stand_in(build, "layer_time", libtorch="'DEFAULT'")
    done = sweep(build, "--isa", "x86-64-v3")
    assert done.returncode == 2
    assert "--isa x86-64-v3: libtorch must run with ATEN_CPU_CAPABILITY=avx2, it says DEFAULT" in done.stderr


@pytest.mark.parametrize("processor, best, name", [
    ("Intel(R) Xeon(R) Processor", "x86-64-v4", "intel_xeon_avx512"),
    ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "x86-64-v3", "intel_xeon_e5_2680_v4_avx2"),
    ("AMD EPYC 9654 96-Core Processor", "x86-64-v4", "amd_epyc_9654_avx512"),
    ("AMD EPYC 9654 96-Core Processor", "x86-64-v4-bf16", "amd_epyc_9654_avx512"),
])
def test_a_file_has_the_name_of_the_processor(monkeypatch, processor, best, name):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import machine_sweep
    assert machine_sweep.machine_name(processor, best) == name


def program(*arguments, **environment):
    return subprocess.run([BUILD / "bench_layer_time", *arguments], capture_output=True, text=True,
                          env={**os.environ, **environment})


def test_a_benchmark_describes_its_threads_and_both_instruction_sets():
    done = program("--threads", "1", "--describe")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["threads"] == 1 and found["libtorch"]
    assert set(found) == {"processor", "threads", "libtorch", "instruction_set", "libtorch_instruction_set"}
    if found["instruction_set"] != "native":
        done = program("--describe", PALIMPSEST_ISA="x86-64-v2", ATEN_CPU_CAPABILITY="default")
        found = json.loads(done.stdout)
        assert (found["instruction_set"], found["libtorch_instruction_set"]) == ("x86-64-v2", "DEFAULT")


@pytest.mark.parametrize("arguments, said", [
    (["--threads", "0"], "--threads: a whole number above 0 is needed, got '0'; --help lists the options"),
    (["--threads", "two"], "got 'two'"),
    (["--threads", "1,2"], "got '1,2'"),
    (["--threads", "-1"], "got '-1'"),
    (["--threads", "99999999999"], "99999999999"),
    (["--repeats", "0"], "--repeats: a whole number above 0 is needed, got '0'"),
])
def test_a_benchmark_refuses_wrong_values(arguments, said):
    done = program(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr


def test_a_benchmark_refuses_an_unknown_instruction_set():
    done = program("--describe", PALIMPSEST_ISA="x86-64-v9")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "PALIMPSEST_ISA must name an instruction set that runs here" in done.stderr and "got 'x86-64-v9'" in done.stderr

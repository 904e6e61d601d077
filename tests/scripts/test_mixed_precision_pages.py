"""The tables of docs/results/mixed_precision.md are what the measurements say, and change with them."""
import json
import pathlib
import shutil
import sys

import pytest

from pages import ROOT, change, run_script

CLASSIFICATION, PROGRAMS = "classification_results.py", "mixed_precision_results.py"


@pytest.fixture
def tree(tmp_path):
    """The scripts with the results that they read and write."""
    shutil.copytree(ROOT / "docs/results", tmp_path / "docs/results")
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    return tmp_path


def run(tree, script, *arguments):
    return run_script(tree / "scripts" / script, *arguments)


def line_of(tree, start):
    page = (tree / "docs/results/mixed_precision.md").read_text()
    return next(line for line in page.splitlines() if line.startswith(start))


@pytest.mark.parametrize("script", [CLASSIFICATION, PROGRAMS])
def test_the_committed_page_is_what_the_committed_measurements_say(script):
    assert run(ROOT, script, "--check") == (0, "")


def test_a_network_beyond_the_spread_is_said_to_fail(tree):
    def far(content):
        f32, mixed = content["variants"]
        f32.update(values=[80.0, 81.0], mean=80.5, spread=1.0)
        mixed.update(values=[70.0, 71.25], mean=70.625, difference=-9.875)
        mixed["pass"] = content["pass"] = False

    change(tree / "docs/results/mixed_precision/googlenet.json", far)
    status, said = run(tree, CLASSIFICATION, "--check")
    assert status == 1 and "run scripts/classification_results.py" in said
    assert run(tree, CLASSIFICATION) == (0, "") and run(tree, CLASSIFICATION, "--check") == (0, "")
    assert "| 80.00 / 81.00 | 70.00 / 71.25 | -9.88 | 1.50: FAIL |" in line_of(tree, "| `googlenet`")


def test_what_the_seeds_reach_and_how_far_curves_lie_apart(tree):
    def known(content):
        runs = {(run["setting"], run["seed"]): run for run in content["runs"]}
        losses = {("f32", 1): 1.0, ("f32", 2): 3.0, ("f16 storage, loss scale", 1): 2.0, ("f16 storage, loss scale", 2): 2.5}
        for key, loss in losses.items():
            runs[key]["loss"] = [[step, 9.0] for step in range(1, 5)] + [[step, loss] for step in range(5, 9)]
        runs["f32", 1]["final"]["metrics"]["character_error_rate"] = 0.5
        runs["f16 storage, no loss scale", 2].update(diverged=True, final=None)

    change(tree / "docs/results/mixed_precision/speech.json", known)
    assert run(tree, PROGRAMS) == (0, "")
    line = line_of(tree, "| `speech`")
    assert "| 0.25; 2 |" in line and "| 50.00 / " in line and " / diverges |" in line


def program(path, says, status):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport pathlib, sys\npathlib.Path(sys.argv[-1]).write_text({says!r})\n"
                    f"open({str(path)!r} + '.calls', 'a').write(' '.join(sys.argv[1:-1]) + '\\n')\nsys.exit({status})\n")
    path.chmod(0o755)


def test_only_what_is_lacking_is_trained(tree):
    path = tree / "docs/results/mixed_precision/dcgan.json"
    lines = path.read_text().splitlines()
    f32 = [line.rstrip(",") for line in lines if '"setting": "f32"' in line]
    path.write_text('{"runs": [\n' + ",\n".join(f32) + "]}\n")
    seeds = range(len(f32) + 1, 3)
    assert run(tree, PROGRAMS) == (0, "")
    assert "| not measured | not measured | dynamic | 1 | not measured |" in line_of(tree, "| `dcgan`")
    final = json.dumps({"metrics": {"distance": 0.125}, "activation_gradients": {"values": 0, "zero": 0}})
    stand_in = tree / "build/examples/mixed_precision/dcgan"
    program(stand_in, '{"step": 1, "loss_discriminator": 2.5}\n' + final + "\n", 0)
    assert run(tree, PROGRAMS, "--run", tree / "build", "dcgan") == (0, "")
    calls = sorted(pathlib.Path(f"{stand_in}.calls").read_text().splitlines())
    wanted = [("", seed) for seed in seeds] + [(f"--precision f16-pseudo --loss-scale {scale} ", seed)
                                               for scale in ("1", "dynamic") for seed in (1, 2)]
    assert calls == sorted(f"{flags}--seed {seed} --json" for flags, seed in wanted)
    assert "| 0.125 / 0.125 | 0.125 / 0.125 | dynamic |" in line_of(tree, "| `dcgan`")


def test_a_training_that_breaks_is_no_result(tree):
    path = tree / "docs/results/mixed_precision/dcgan.json"
    path.unlink()
    program(tree / "build/examples/mixed_precision/dcgan", "", 1)
    status, said = run(tree, PROGRAMS, "--run", tree / "build", "dcgan")
    assert status == 2 and "dcgan.json" in said and not path.exists()


def test_a_network_without_a_file_is_said_not_to_be_measured(tree):
    (tree / "docs/results/mixed_precision/alexnet.json").unlink(missing_ok=True)
    assert run(tree, CLASSIFICATION) == (0, "")
    assert "| 3 | not measured |" in line_of(tree, "| `alexnet`")


@pytest.mark.parametrize("script, name", [(CLASSIFICATION, "googlenet"), (PROGRAMS, "ssd")])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_file_of_another_form_is_refused(tree, script, name, content):
    (tree / f"docs/results/mixed_precision/{name}.json").write_text(content)
    before = (tree / "docs/results/mixed_precision.md").read_text()
    status, said = run(tree, script)
    assert status == 2 and said.count("\n") == 1
    assert (tree / "docs/results/mixed_precision.md").read_text() == before


def test_a_missing_record_of_a_program_is_named(tree):
    path = tree / "docs/results/mixed_precision/ssd.json"
    path.unlink()
    status, said = run(tree, PROGRAMS)
    assert status == 2 and said.count("\n") == 1
    assert f"cannot read {path}" in said and "scripts/mixed_precision_results.py --run writes it" in said


@pytest.mark.parametrize("script", [CLASSIFICATION, PROGRAMS])
@pytest.mark.parametrize("arguments", [["--chek"], ["--run"], ["--run", "build", "data", "alexnett"]])
def test_wrong_arguments_are_answered_with_the_usage(tree, script, arguments):
    status, said = run(tree, script, *arguments)
    assert status == 2 and f"usage: {script} [--check | --run BUILD" in said

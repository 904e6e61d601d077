"""docs/results/mixed_precision.md changes with its measurements, and `pages train` makes them."""
import json
import pathlib
import sys

from page_support import change, line_of, pages


def write(results):
    assert pages("mixed_precision", "--results", results) == (0, "")


def line(results, start):
    return line_of(results / "mixed_precision.md", start)


def test_a_network_beyond_the_spread_is_said_to_fail(results):
    def far(content):
        f32, mixed = content["variants"]
        f32.update(values=[80.0, 81.0], mean=80.5, spread=1.0)
        mixed.update(values=[70.0, 71.25], mean=70.625, difference=-9.875)
        mixed["pass"] = content["pass"] = False

    change(results / "mixed_precision/googlenet.json", far)
    assert pages("mixed_precision", "--check", "--results", results)[0] == 1
    write(results)
    assert "| 80.00 / 81.00 | 70.00 / 71.25 | -9.88 | 1.50: FAIL |" in line(results, "| `googlenet`")


def test_the_figures_of_the_seeds_and_the_distances_of_the_curves(results):
    def known(content):
        runs = {(run["setting"], run["seed"]): run for run in content["runs"]}
        losses = {("f32", 1): 1.0, ("f32", 2): 3.0, ("f32", 3): 2.0, ("f16 storage, loss scale", 1): 2.0,
                  ("f16 storage, loss scale", 2): 2.5, ("f16 storage, loss scale", 3): 2.25}
        for key, loss in losses.items():
            runs[key]["loss"] = [[step, 9.0] for step in range(1, 5)] + [[step, loss] for step in range(5, 9)]
        runs["f32", 1]["final"]["metrics"]["character_error_rate"] = 0.5
        runs["f16 storage, no loss scale", 2].update(diverged=True, final=None)

    change(results / "mixed_precision/speech.json", known)
    write(results)
    speech = line(results, "| `speech`")
    assert "| 0.25; 1.5 |" in speech and "| 50.00 / " in speech and " / diverges / " in speech


def program(path, says, status):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport pathlib, sys\npathlib.Path(sys.argv[-1]).write_text({says!r})\n"
                    f"open({str(path)!r} + '.calls', 'a').write(' '.join(sys.argv[1:-1]) + '\\n')\nsys.exit({status})\n")
    path.chmod(0o755)


def test_only_missing_runs_are_trained(results, tmp_path):
    path = results / "mixed_precision/dcgan.json"
    first = json.loads(path.read_text())["runs"][0]
    assert (first["setting"], first["seed"]) == ("f32", 1)
    path.write_text(json.dumps({"runs": [first]}))
    write(results)
    assert line(results, "| `dcgan`").count("| not measured |") >= 3
    final = json.dumps({"metrics": {"distance": 0.125}, "activation_gradients": {"values": 0, "zero": 0}})
    stand_in = tmp_path / "build/examples/mixed_precision/dcgan"
    program(stand_in, '{"step": 1, "loss_discriminator": 2.5}\n' + final + "\n", 0)
    assert pages("train", "programs", tmp_path / "build", "dcgan", "--results", results) == (0, "")
    calls = sorted(pathlib.Path(f"{stand_in}.calls").read_text().splitlines())
    settings = ["--precision f16-pseudo --loss-scale 1 ", "--precision f16-pseudo --loss-scale dynamic ", "--precision bf16 ",
                "--precision f16 --loss-scale dynamic "]
    wanted = [("", 2), ("", 3)] + [(flags, seed) for flags in settings for seed in (1, 2, 3)]
    assert calls == sorted(f"{flags}--seed {seed} --json" for flags, seed in wanted)
    three = "0.125 / 0.125 / 0.125"
    assert f"| {three} | {three} | {three} | {three} | dynamic |" in line(results, "| `dcgan`")


def test_a_program_beyond_the_spread_is_said_to_fail(results):
    def far(content):
        for run in content["runs"]:
            scaled = run["setting"] == "f16 storage, loss scale"
            run["final"]["metrics"]["distance"] = 0.2 + 0.01 * run["seed"] + 0.05 * scaled

    change(results / "mixed_precision/dcgan.json", far)
    write(results)
    assert line(results, "| `dcgan`").count(": FAIL |") == 1 and "| 0.210 / 0.220" in line(results, "| `dcgan`")


def test_a_training_that_breaks_is_no_result(results, tmp_path):
    path = results / "mixed_precision/dcgan.json"
    path.unlink()
    program(tmp_path / "build/examples/mixed_precision/dcgan", "", 1)
    assert pages("train", "programs", tmp_path / "build", "dcgan", "--results", results) == (1, "")
    assert not path.exists() and "| not measured | not measured |" in line(results, "| `dcgan`")


def test_a_training_that_breaks_is_status_1_where_the_page_can_be_written(results, tmp_path):
    path = results / "mixed_precision/dcgan.json"
    change(path, lambda content: content["runs"].pop())
    program(tmp_path / "build/examples/mixed_precision/dcgan", "", 1)
    assert pages("train", "programs", tmp_path / "build", "dcgan", "--results", results) == (1, "")


def test_a_network_without_a_file_is_said_not_to_be_measured(results):
    (results / "mixed_precision/alexnet.json").unlink(missing_ok=True)
    write(results)
    assert "| 3 | not measured |" in line(results, "| `alexnet`")

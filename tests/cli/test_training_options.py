"""Accumulation, clipping, averages, AdamW, factors and frozen layers, the best checkpoint and early stop, from the command line."""
import json
import tomllib

import numpy as np
import pytest
import safetensors.numpy

from cli_support import TINY, TINY_CLASSIFIER, USAGE, fails, image_folder, succeeds

ALL = ("--epochs 3 --evaluate-every 1 --accumulate 2 --ema-decay 0.9 --freeze body.layer1 --clip-norm 0.5 --optimizer adamw "
       "--lr-factors head=3,cls=2 --label-smoothing 0.1 --keep-best loss --patience 9 --no-decay-bias").split()


def log(run, kind):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["type"] == kind]


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run with all of these settings."""
    folder = tmp_path_factory.mktemp("averaged")
    succeeds("train", *TINY, *ALL, "--output", folder / "run")
    return folder / "run"


def test_the_run_has_what_the_settings_ask_for(averaged):
    assert {path.name for path in averaged.iterdir()} == {
        "checkpoint.safetensors", "best.safetensors", "log.jsonl", "config.toml", "evaluation.safetensors", "step_memory.safetensors"}
    config = tomllib.loads((averaged / "config.toml").read_text())
    assert config["train"]["freeze"] == ["body.layer1"] and config["optimizer"]["lr_factors"] == ["head=3", "cls=2"]
    assert "momentum" not in config["optimizer"] and config["train"]["keep_best"] == "loss"
    steps, evaluations = log(averaged, "step"), log(averaged, "evaluation")
    assert all(line["gradient_norm"] > 0 for line in steps)
    losses = [line["loss"] for line in evaluations]
    assert [line["best"] for line in evaluations] == [loss < min(losses[:i], default=9e9) for i, loss in enumerate(losses)]
    tensors = safetensors.numpy.load_file(averaged / "checkpoint.safetensors")
    assert not any(key.startswith("palimpsest.exp_avg.body.layer1.") for key in tensors)
    assert any(key.startswith("palimpsest.exp_avg_sq.cls.") for key in tensors)
    assert "AdamW" in succeeds("info", averaged).stdout


def test_a_run_in_parts_resumes_to_the_same_bytes(averaged, folder):
    succeeds("train", *TINY, *ALL, "--output", folder / "run", "--max-steps", "3")
    succeeds("train", "--resume", "--output", folder / "run", "--max-steps", "0", "--threads", "1")
    for name in ("checkpoint.safetensors", "best.safetensors"):
        got, want = (safetensors.numpy.load_file(run / name) for run in (folder / "run", averaged))
        assert got.keys() == want.keys() and all(np.array_equal(got[key], want[key]) for key in want), name


def test_eval_predict_and_export_take_the_averages_unless_asked_for_the_others(averaged, folder):
    last = log(averaged, "evaluation")[-1]
    of_averages, trained = (json.loads(succeeds("eval", averaged, "--json", *flags).stdout)
                            for flags in ((), ("--without-average",)))
    assert of_averages["loss"] == pytest.approx(last["loss"], rel=1e-6) and trained["loss"] != of_averages["loss"]
    checkpoint = safetensors.numpy.load_file(averaged / "checkpoint.safetensors")
    for flags, prefix in (((), "palimpsest.ema."), (("--without-average",), "")):
        succeeds("export", averaged, *flags, "--output", folder / "w.safetensors", "--overwrite")
        exported = safetensors.numpy.load_file(folder / "w.safetensors")
        assert all(np.array_equal(exported[key], checkpoint.get(prefix + key, checkpoint[key])) for key in exported)
        assert not any(key.startswith("palimpsest.") for key in exported)
    succeeds("eval", averaged / "best.safetensors")
    succeeds("train", *TINY, "--max-steps", "1", "--weights", averaged, "--output", folder / "tuned")
    fails(USAGE, "eval", folder / "w.safetensors", "--without-average", says=["--without-average", "no averages", "ema-decay"])


@pytest.mark.parametrize("strategy", ["standard", "inplace_1", "inplace_2", "store_y", "checkpoint"])
def test_frozen_layers_and_statistics_keep_their_values_under_every_strategy(folder, strategy):
    run = ("train", *TINY, "--dtype", "f64", "--strategy", strategy)
    succeeds(*run, "--freeze", "body.layer2", "--freeze-norm", "--max-steps", "2", "--output", folder / "run")
    succeeds(*run, "--lr", "1e-30", "--freeze-norm", "--max-steps", "1", "--output", folder / "still")
    got, start = (safetensors.numpy.load_file(folder / name / "checkpoint.safetensors") for name in ("run", "still"))
    for key in start:
        if key.startswith("palimpsest."):
            continue
        kept = key.startswith("body.layer2.") or "running_" in key or "num_batches" in key
        assert np.allclose(got[key], start[key], rtol=0, atol=1e-20) == kept, key


def test_one_image_trains_a_segmentation_network_with_frozen_statistics(folder):
    succeeds("train", *TINY, "--batch", "1", "--freeze-norm", "--max-steps", "1", "--output", folder / "run")


def test_a_classifier_stops_early_and_says_so_when_it_is_resumed(folder):
    data = image_folder(folder / "data")
    command = ["train", *TINY_CLASSIFIER, "--data-root", data, "--lr", "1e-30", "--evaluate-every", "1", "--epochs", "9",
               "--keep-best", "metric", "--patience", "1", "--class-weights", "1,2.5", "--freeze-norm", "--ema-decay", "0.5"]
    told = succeeds(*command, "--output", folder / "run").stderr
    assert "stopped early at step 4: no better metric than" in told and "of step 2 in 1 evaluation" in told
    end, = log(folder / "run", "end")
    assert end["step"] == 4 and end["epoch"] == 2 and end["reason"].startswith("no better metric than")
    succeeds("report", folder / "run", "--output", folder / "page.html")
    page = (folder / "page.html").read_text()
    assert "Ended early: 4 steps, in epoch 2; no better metric than" in page and "Unfinished" not in page
    again = succeeds("train", "--resume", "--output", folder / "run").stderr
    assert len(log(folder / "run", "end")) == 1
    assert "stopped early at step 4" in again and "--patience N with N > 1" in again
    succeeds("train", "--resume", "--output", folder / "run", "--patience", "2")
    assert log(folder / "run", "step")[-1]["step"] == 6
    end, = log(folder / "run", "end")
    assert end["step"] == 6


def test_a_run_in_parts_finds_the_best_checkpoint_of_the_whole(folder):
    command = ["train", *TINY, "--max-steps", "0", "--epochs", "4", "--evaluate-every", "1", "--keep-best", "metric", "--patience", "3"]
    succeeds(*command, "--output", folder / "whole")
    per_epoch = log(folder / "whole", "evaluation")[0]["step"]
    assert per_epoch > 1  # so that a part can end within an epoch
    told = succeeds(*command, "--max-steps", "1", "--output", folder / "parts").stderr
    assert "there is no best.safetensors yet: the evaluation where --max-steps ends a run" in told
    assert "best" not in log(folder / "parts", "evaluation")[0]
    succeeds("train", "--resume", "--max-steps", str(per_epoch + 1), "--output", folder / "parts")
    succeeds("train", "--resume", "--max-steps", "0", "--output", folder / "parts")
    whole, parts = ({line["step"]: line["best"] for line in log(folder / name, "evaluation") if "best" in line}
                    for name in ("whole", "parts"))
    assert whole == parts
    for name in ("best.safetensors", "checkpoint.safetensors"):  # the best one may be of a part, with its --max-steps
        got, want = (safetensors.numpy.load_file(folder / run / name) for run in ("parts", "whole"))
        assert got.keys() == want.keys() and all(np.array_equal(got[key], want[key]) for key in want), name
    assert (folder / "whole/checkpoint.safetensors").read_bytes() == (folder / "parts/checkpoint.safetensors").read_bytes()


def test_the_best_checkpoint_is_found_again_under_another_schedule(folder):
    """Nothing changes in these trainings, so that no evaluation is better than the first that is compared."""
    command = ["train", *TINY, "--max-steps", "0", "--evaluate-every", "3", "--keep-best", "metric", "--lr", "1e-30", "--freeze-norm"]
    succeeds(*command, "--epochs", "2", "--output", folder / "longer")
    first = (folder / "longer/best.safetensors").read_bytes()
    succeeds("train", "--resume", "--epochs", "3", "--output", folder / "longer")
    assert [line["best"] for line in log(folder / "longer", "evaluation")] == [True, False]
    assert (folder / "longer/best.safetensors").read_bytes() == first
    per_epoch = log(folder / "longer", "evaluation")[0]["step"] // 2

    succeeds(*command, "--epochs", "2", "--max-steps", str(per_epoch), "--output", folder / "oftener")
    assert not (folder / "oftener/best.safetensors").exists()
    succeeds("train", "--resume", "--evaluate-every", "1", "--max-steps", "0", "--output", folder / "oftener")
    assert [line.get("best") for line in log(folder / "oftener", "evaluation")] == [None, True]
    assert (folder / "oftener/best.safetensors").exists()


def test_overwrite_replaces_the_best_checkpoint_too_or_keeps_it(averaged, folder):
    for path in averaged.iterdir():
        (folder / "run").mkdir(exist_ok=True)
        (folder / "run" / path.name).write_bytes(path.read_bytes())
    before = {path.name: path.read_bytes() for path in (folder / "run").iterdir()}
    fails(USAGE, "train", *TINY, "--overwrite", "--freeze", "bdy", "--output", folder / "run", says=["freeze", "bdy"])
    assert {path.name: path.read_bytes() for path in (folder / "run").iterdir()} == before
    succeeds("train", *TINY, "--overwrite", "--max-steps", "1", "--output", folder / "run")
    assert not (folder / "run/best.safetensors").exists()


def test_compare_measures_the_step_in_parts(folder):
    peaks = {}
    for parts in ("1", "4"):
        succeeds("compare", *TINY, "--batch", "8", "--accumulate", parts, "--optimizer", "adamw", "--ema-decay", "0.9", "--freeze-norm",
                 "--max-steps", "1", "--output", folder / parts)
        results = json.loads((folder / parts / "results.json").read_text())
        peaks[parts] = [run["kept_bytes"] for run in results["runs"]]
    assert all(one > 3 * four > 0 for one, four in zip(peaks["1"], peaks["4"]))


WRONG = [
    ("--accumulate 5", ["--accumulate", "--batch", "4", "5"]),
    ("--accumulate 0", ["--accumulate", ">= 1", "0"]),
    ("--ema-decay 1", ["--ema-decay", "[0, 1)", "1"]),
    ("--optimizer adam", ["--optimizer", "'adam'", "did you mean 'adamw'"]),
    ("--keep-best los", ["--keep-best", "'los'", "did you mean 'loss'"]),
    ("--freeze body.layer9", ["freeze", "'body.layer9'", "did you mean 'body.layer"]),
    ("--lr-factors clss=10", ["lr_factors", "'clss'", "did you mean 'cls'", "outermost"]),
    ("--lr-factors cls:10", ["LAYER=FACTOR", "cls:10"]),
    ("--freeze cls --lr-factors cls=10", ["lr_factors", "'cls'", "no effect", "frozen"]),
    ("--class-weights 1,2", ["class_weights", "one number per class", "2 numbers"]),
    ("--classes 3 --class-weights 1,2", ["--class-weights", "one number per class", "3", "2 numbers"]),
    ("--class-weights 1,x", ["--class-weights", "a list of numbers", "1,x"]),
    ("--classes 11 --class-weights 1e31" + 10 * ",1", ["class_weights must be 0 or from 1e-30 to 1e30", "1e+31"]),
    ("--class-weights 1,-1", ["--class-weights", ">= 0", "-1"]),
    ("--label-smoothing 1", ["--label-smoothing", "[0, 1)", "1"]),
    ("--clip-norm -1", ["--clip-norm", ">= 0", "-1"]),
]


@pytest.mark.parametrize("flags, says", WRONG)
def test_a_wrong_value_is_one_line_and_leaves_nothing(folder, flags, says):
    fails(USAGE, "train", *TINY, *flags.split(), "--output", folder / "run", says=says)
    assert not (folder / "run/checkpoint.safetensors").exists()


def test_another_optimizer_cannot_continue_a_run(averaged, folder):
    (folder / "run").mkdir()
    for path in averaged.iterdir():
        (folder / "run" / path.name).write_bytes(path.read_bytes())
    fails(USAGE, "train", "--resume", "--output", folder / "run", "--optimizer", "sgd", "--epochs", "5",
          says=['--optimizer must stay "adamw"', 'got "sgd"'])

"""The command benchmarks/pages/pages: each page agrees with its measurements, and a wrong call is one line."""
import json

import pytest

from page_support import ROOT, line_of, pages, processor_name

MEASUREMENTS = {
    "camvid": ["memory/deeplabv3_resnet18.json", "training/camvid.json", "training/camvid_seeds.json"],
    "cifar10": [],
    "densenet": ["densenet_time.json", "densenet_bytes.json", "densenet_depth.json", "densenet_accuracy.json"],
    "distributed": ["synchronization_time.json"],
    "machines": ["machines/intel_xeon_avx512.json"],
    "mixed_precision": ["mixed_precision/ssd.json", "mixed_precision/googlenet.json"],
    "numerics": ["numerics.json"],
    "paper": ["block_time.json", "kept_bytes.json", "model_step.json", "equal_memory.json",
              "memory/deeplabv3_resnet18.json"],
    "step_profile": ["step_profile.json"],
    "whole_step": ["whole_step.json"],
}
ALL = [(page, name) for page, names in MEASUREMENTS.items() for name in names]
MAY_BE_MISSING = [("camvid", "training/camvid_seeds.json"), ("machines", "machines/intel_xeon_avx512.json"),
                  *(("mixed_precision", name) for name in MEASUREMENTS["mixed_precision"]), ("paper", "memory/deeplabv3_resnet18.json"),
                  ("whole_step", "whole_step.json")]


def path_of(page, results):
    return (results.parent if page in ("numerics", "distributed") else results) / f"{page}.md"


@pytest.mark.parametrize("page", MEASUREMENTS)
def test_the_committed_page_is_what_the_committed_measurements_give(page):
    assert pages(page, "--check") == (0, "")


def changed(text):
    """The text of a page with another table, or where nothing was measured with another word for it."""
    return text.replace("| --- |", "| ---- |", 1) if "| --- |" in text else text.replace("Not measured.", "Measured.", 1)


@pytest.mark.parametrize("page", MEASUREMENTS)
def test_a_changed_page_is_found_and_written_again(results, page):
    committed = path_of(page, results).read_text()
    path_of(page, results).write_text(changed(committed))
    status, said = pages(page, "--check", "--results", results)
    assert status == 1 and said.count("\n") == 1
    assert f"{path_of(page, results)} does not agree with its measurements: run benchmarks/pages/pages {page}" in said
    assert pages(page, "--results", results) == (0, "")
    assert path_of(page, results).read_text() == committed


def test_without_a_name_every_page_is_written(results):
    committed = {page: path_of(page, results).read_text() for page in MEASUREMENTS}
    for page in MEASUREMENTS:
        path_of(page, results).write_text(changed(committed[page]))
    status, said = pages("--check", "--results", results)
    assert status == 1 and said.count("\n") == len(MEASUREMENTS)
    assert pages("--results", results) == (0, "")
    assert {page: path_of(page, results).read_text() for page in MEASUREMENTS} == committed


@pytest.mark.parametrize("page, name", [one for one in ALL if one not in MAY_BE_MISSING])
def test_a_missing_measurement_is_named_with_the_command_that_writes_it(results, page, name):
    (results / name).unlink()
    status, said = pages(page, "--results", results)
    assert status == 2 and said.count("\n") == 1
    assert f"cannot read {results / name}: No such file or directory; `" in said and "` writes it" in said


@pytest.mark.parametrize("page, name", ALL)
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_measurement_of_another_form_is_refused(results, page, name, content):
    before = path_of(page, results).read_text()
    (results / name).write_text(content)
    status, said = pages(page, "--results", results)
    assert status == 2 and said.count("\n") == 1
    assert path_of(page, results).read_text() == before


@pytest.mark.parametrize("page", ["mixed_precision", "numerics"])
def test_a_page_without_its_marks_is_an_error_of_one_line(results, page):
    path_of(page, results).write_text("no marks")
    status, said = pages(page, "--results", results)
    assert status == 2 and said.count("\n") == 1 and "needs one line <!-- " in said


@pytest.mark.parametrize("arguments, said", [
    (["--chek"], "unrecognized arguments: --chek"),
    (["papr"], "got 'papr', wanted camvid, cifar10, claims, correctness, densenet, distributed, gpu, machines, mixed_precision, numerics, paper, step_profile, whole_step"),
    (["train"], "the following arguments are required: table, BUILD"),
    (["train", "everything", "build"], "invalid choice: 'everything'"),
    (["train", "programs", "build", "sdd"], "got 'sdd', wanted ssd, speech, translation, language_model, dcgan, denoise"),
    (["train", "classification", "build"], "classification needs DATA"),
    (["train", "classification", "build", "data", "alexnett"], "got 'alexnett', wanted alexnet, "),
    (["take", "time", "name", "folder"], "invalid choice: 'time'"),
])
def test_a_wrong_call_is_one_line_and_status_2(arguments, said):
    status, line = pages(*arguments)
    assert status == 2 and line.count("\n") == 1
    assert said in line and "--help lists the options" in line


def test_of_a_comparison_the_parts_that_hold_anywhere_are_taken(tmp_path):
    run = {"name": "standard", "kept_bytes": 4, "peak_bytes": 8, "largest_batch": 2, "seconds_per_step": 0.25, "loss": 1.5,
           "mean_iou": 0.5, "losses": [2.0, 1.5], "evaluations": [{"epoch": 1, "mean_iou": 0.5}]}
    comparison = {"setup": {"model": "m", "data": "segmentation_folder /home/me/camvid", "batch": "1 image", "training": "t",
                            "machine": "here", "trained on": "standard: 1 image"}, "memory_bytes": 8, "runs": [run, {**run, "name": "inplace_2"}]}
    folder, results = tmp_path / "compared", tmp_path / "results"
    folder.mkdir()
    results.mkdir()
    (folder / "results.json").write_text(json.dumps(comparison))
    (folder / "loss.svg").write_text("losses")
    for part in ("memory", "training"):
        assert pages("take", part, "small", folder, "--results", results) == (0, "")
    assert (results / "training/small.svg").read_text() == "losses"
    memory, training = (json.loads((results / part / "small.json").read_text()) for part in ("memory", "training"))
    assert memory["runs"][1] == {"name": "inplace_2", "kept_bytes": 4, "peak_bytes": 8, "largest_batch": 2}
    assert memory["setup"] == {"model": "m", "batch": "1 image", "trained on": "standard: 1 image"} and memory["memory_bytes"] == 8
    assert training["setup"]["data"] == "segmentation_folder PATH/TO/camvid"
    assert training["runs"][0] == {key: run[key] for key in ("name", "loss", "mean_iou", "losses", "evaluations")}


def test_what_is_taken_has_its_machine_and_its_commit(tmp_path, monkeypatch):
    (tmp_path / "exchange.json").write_text('[{"trained": "relu", "evaluated": "relu", "top1": 0.5}]')
    (tmp_path / "results.json").write_text('{"setup": {"training": "6 epochs"}, "runs": []}')
    monkeypatch.setenv("PALIMPSEST_COMMIT", "0123456789")
    for arguments, machine in (([], processor_name()), (["--machine", "two cores"], "two cores")):
        assert pages("take", "exchange", "small", tmp_path, "--results", tmp_path, *arguments) == (0, "")
        taken = json.loads((tmp_path / "training/small.json").read_text())
        assert (taken["machine"], taken["commit"]) == (machine, "0123456789")


@pytest.mark.parametrize("page", MEASUREMENTS)
def test_a_page_names_the_machine_and_the_commit_of_its_measurements(results, page):
    named = [results / name for name in MEASUREMENTS[page]] or [results / "training/cifar10_densenet.json"]
    for path in named:
        content = json.loads(path.read_text())
        parts = next((content[key] for key in ("rows", "runs") if "commit" in content.get(key, [{}])[0]), [content])
        for part in parts:
            part["commit"] = "0123456789"
        path.write_text(json.dumps(content))
    assert pages(page, "--results", results) == (0, "")
    text = path_of(page, results).read_text()
    if page == "machines":
        assert "`bench_layer_time`: commit 0123456789" in text
        return
    _, section = text.split("\n## Where it was measured\n")
    for path in named:
        row = line_of(path_of(page, results), f"| `{path.relative_to(path_of(page, results).parent)}` |")
        assert row in section and row.split("|")[3].strip() == "0123456789"


def test_a_folder_without_a_comparison_is_named(tmp_path):
    status, said = pages("take", "memory", "small", tmp_path / "nowhere", "--results", tmp_path)
    assert status == 2 and f"cannot read {tmp_path}/nowhere/results.json" in said


@pytest.mark.parametrize("part", ["memory", "training"])
def test_no_committed_comparison_has_a_time_or_a_path_of_a_machine(part):
    for path in (ROOT / "docs/results" / part).glob("*.json"):
        assert "seconds" not in path.read_text() and "/data" not in path.read_text(), path

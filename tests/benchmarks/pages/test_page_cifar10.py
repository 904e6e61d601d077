"""docs/results/cifar10.md says what was measured and what was not."""
import json

from page_support import line_of, pages, processor_name

ACTIVATIONS = ("relu", "leaky_relu")


def log_of(folder):
    """The log of a training of two epochs of two steps."""
    folder.mkdir(parents=True)
    lines = [{"type": "step", "step": step, "epoch": (step + 1) // 2, "loss": 4.0 - step} for step in (1, 2, 3)]
    lines += [{"type": "bad_image", "step": 3, "reason": "cannot read"}]
    lines += [{"type": "evaluation", "step": 2 * epoch, "epoch": epoch, "loss": 1.5 / epoch, "top1": 0.25 * epoch, "top5": 0.5}
              for epoch in (1, 2)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_training_is_taken_from_its_log(results, tmp_path):
    assert pages("take", "curve", "cifar10_densenet", log_of(tmp_path / "run"), "--results", results) == (0, "")
    run, = json.loads((results / "training/cifar10_densenet.json").read_text())["runs"]
    assert run["losses"] == [{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": 1.0}]
    assert [e["top1"] for e in run["evaluations"]] == [0.25, 0.5]
    assert pages("cifar10", "--results", results) == (0, "")
    said = "25.00 after 1 | 50.00 after 2 | 1.000, 0.750 |"
    assert f" | {processor_name()} | {said}" in line_of(results / "cifar10.md", "| DenseNet-BC-40")
    pages("take", "curve", "cifar10_densenet", tmp_path / "run", "--results", results, "--machine", "two cores")
    pages("cifar10", "--results", results)
    assert f"| two cores | {said}" in line_of(results / "cifar10.md", "| DenseNet-BC-40")
    assert "Accuracy and loss" in (results / "training/cifar10.svg").read_text()


def test_the_exchange_of_activations_is_taken_with_its_training(results, tmp_path):
    rows = [{"trained": a, "evaluated": b, "loss": 1.0, "top1": 0.5 + 0.25 * (a == b), "top5": 1.0}
            for a in ACTIVATIONS for b in ACTIVATIONS]
    (tmp_path / "exchange.json").write_text(json.dumps(rows))
    (tmp_path / "results.json").write_text(json.dumps({"setup": {"training": "6 epochs, SGD"}, "runs": []}))
    assert pages("take", "exchange", "exchanged_activations", tmp_path, "--results", results) == (0, "")
    assert pages("cifar10", "--results", results) == (0, "")
    page = (results / "cifar10.md").read_text()
    assert "6 epochs, SGD." in page and "| `relu` | 75.00 | 50.00 |" in page and "| `leaky_relu` | 50.00 | 75.00 |" in page


def test_what_is_missing_is_said_not_to_be_measured(results):
    for name in ("cifar10_densenet", "cifar10_resnet_preact", "exchanged_activations"):
        (results / f"training/{name}.json").unlink(missing_ok=True)
    assert pages("cifar10", "--results", results) == (0, "")
    page = (results / "cifar10.md").read_text()
    assert page.count("| not measured |") == 2 and "\nNot measured.\n" in page and ".svg" not in page


def test_a_folder_without_a_log_is_named(results, tmp_path):
    status, said = pages("take", "curve", "cifar10_densenet", tmp_path / "nowhere", "--results", results)
    assert status == 2 and f"cannot read {tmp_path}/nowhere/log.jsonl" in said and said.count("\n") == 1

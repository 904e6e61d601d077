"""The parts of a comparison (`palimpsest compare`) that docs/results holds: counted bytes, the course of a training, the
exchange of activations; and the course of one training (`palimpsest train`).

Figures and charts with seconds stay out: a benchmark measures time, in interleaved runs on an idle machine.
"""
import json
import pathlib
import statistics

from result_page import Unreadable, read
from support import commit, processor_name


def memory(results):
    """The byte counts, which do not depend on the machine."""
    setup = {key: results["setup"][key] for key in ("model", "batch", "trained on") if key in results["setup"]}
    return {"setup": setup, "memory_bytes": results["memory_bytes"],
            "runs": [{key: run[key] for key in ("name", "kept_bytes", "peak_bytes", "largest_batch")}
                     for run in results["runs"]]}


def training(results):
    """Losses and evaluations."""
    setup = dict(results["setup"])
    kind, _, root = setup["data"].partition(" ")
    if kind.endswith("_folder"):  # the path of the data is this machine's
        setup["data"] = f"{kind} PATH/TO/{pathlib.Path(root).name}"
    return {"setup": setup, "runs": [{key: run[key] for key in ("name", "loss", "mean_iou", "losses", "evaluations")}
                                     for run in results["runs"]]}


def read_comparison(folder):
    return read(folder / "results.json", f"palimpsest compare --output {folder}")


def exchange(folder):
    """The accuracy of every pair of activations, in training and in evaluation."""
    rows = read(folder / "exchange.json", f"palimpsest reproduce table1_relu --small --output {folder}")
    return {"training": read_comparison(folder)["setup"]["training"], "rows": rows}


def curve(folder):
    """Mean loss of each epoch, and the evaluations, of a training."""
    path = folder / "log.jsonl"
    try:
        records = [json.loads(line) for line in path.read_text().splitlines()]
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror}; `palimpsest train --output {folder}` writes it") from None
    except ValueError as error:
        raise Unreadable(f"{path} is no log: {error}") from None
    losses = {}
    for record in records:
        if record["type"] == "step":
            losses.setdefault(record["epoch"], []).append(record["loss"])
    return {"runs": [{"losses": [{"epoch": epoch, "loss": statistics.fmean(values)} for epoch, values in losses.items()],
                      "evaluations": [{key: record[key] for key in ("epoch", "loss", "top1", "top5")}
                                      for record in records if record["type"] == "evaluation"]}]}


# part: its content, read from the output folder of a command; the folder of docs/results; the chart that goes with it
PARTS = {"memory": (lambda folder: memory(read_comparison(folder)), "memory", None),
         "training": (lambda folder: training(read_comparison(folder)), "training", "loss.svg"),
         "curve": (curve, "training", None),
         "exchange": (exchange, "training", None)}


def take(results, part, name, folder, machine=None):
    """Writes NAME.json into the part's folder, and its chart as NAME.svg, from the output folder of a command, which ran on
    `machine` (none: on this one) and is of the sources that lie here, or of those that PALIMPSEST_COMMIT names."""
    choose, group, chart = PARTS[part]
    content = {**choose(folder), "machine": machine or processor_name(), "commit": commit()}
    target = results / group
    target.mkdir(exist_ok=True)
    if chart:
        try:
            (target / f"{name}.svg").write_text((folder / chart).read_text())
        except OSError as error:
            raise Unreadable(f"cannot copy {folder / chart}: {error.strerror}") from None
    key = "rows" if "rows" in content else "runs"
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in content.items() if name != key)
    lines = ",\n".join(json.dumps(line) for line in content[key])
    (target / f"{name}.json").write_text(f"{{{head}\"{key}\": [\n{lines}\n]}}\n")

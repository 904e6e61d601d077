"""The parts of a comparison (`palimpsest compare`) that docs/results holds: counted bytes, and the course of a training.

Figures and charts with seconds stay out: a benchmark measures time, in interleaved runs on an idle machine.
"""
import json
import pathlib

from result_page import Unreadable, read


def memory(results):
    """The byte counts, which do not depend on the machine."""
    return {"setup": {key: results["setup"][key] for key in ("model", "batch")}, "memory_bytes": results["memory_bytes"],
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


PARTS = {"memory": (memory, None), "training": (training, "loss.svg")}  # part: its content, its chart


def take(results, part, name, folder):
    """Writes RESULTS/PART/NAME.json, and its chart as NAME.svg, from the output folder of a comparison."""
    choose, chart = PARTS[part]
    content = choose(read(folder / "results.json", f"palimpsest compare --output {folder}"))
    target = results / part
    target.mkdir(exist_ok=True)
    if chart:
        try:
            (target / f"{name}.svg").write_text((folder / chart).read_text())
        except OSError as error:
            raise Unreadable(f"cannot copy {folder / chart}: {error.strerror}") from None
    head = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items() if key != "runs")
    runs = ",\n".join(json.dumps(run) for run in content["runs"])
    (target / f"{name}.json").write_text(f"{{{head}, \"runs\": [\n{runs}\n]}}\n")

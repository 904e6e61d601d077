"""Where measurements come from: the machine and the commit that a file of docs/results records, and the last section of a
page, which names both for each of its files."""
import os

from result_page import read, table

NOT_RECORDED = "not recorded"
HEADING = "## Where it was measured\n"
NOTE = "The commit is that of the sources which were measured."


def runs_of(content):
    """The parts of a file that were measured with one setting each: of a machine, its runs; else the whole file."""
    if not isinstance(content, dict):
        return [{}]
    if isinstance(content.get("machine"), dict):
        return [{"processor": content["machine"]["processor"], **run} for run in content["runs"]]
    return [content]


def setting_of(run):
    """["2 threads", "x86-64-v4"], with what the run has."""
    threads = [f"{run['threads']} thread" + ("s" if run["threads"] != 1 else "")] if "threads" in run else []
    return threads + ([run["instruction_set"]] if "instruction_set" in run else [])


def recorded(runs, *keys):
    """What the runs, or if they do not say it their parts, say of the first of the keys that they have: all that differ."""
    parts = [part for run in runs for name in ("rows", "runs", "variants") for part in run.get(name) or [] if isinstance(part, dict)]
    for some in (runs, parts):
        for key in keys:
            if any(isinstance(one.get(key), str) for one in some):
                return ", ".join(dict.fromkeys(str(one.get(key, NOT_RECORDED)) for one in some))
    return NOT_RECORDED


def machine_of(runs):
    """"processor, 2 threads, x86-64-v4" of one run, the processor alone of several."""
    return ", ".join([recorded(runs, "processor", "device", "machine"), *(setting_of(runs[0]) if len(runs) == 1 else [])])


def with_section(page, text, paths):
    """Returns `text`, that of the file `page`, with a last section: machine and commit of the files at `paths`."""
    rows = []
    for path in sorted(set(paths)):
        runs = runs_of(read(path))
        rows.append([f"`{os.path.relpath(path, page.parent)}`", machine_of(runs), recorded(runs, "commit")])
    body = text.split(f"\n{HEADING}")[0].rstrip()
    return f"{body}\n\n{HEADING}\n{NOTE}\n\n{table(['file', 'machine', 'commit'], rows)}\n" if rows else f"{body}\n"

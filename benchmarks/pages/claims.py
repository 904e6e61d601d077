"""docs/results/claims.md: the claims against an opponent that do not hold, then all files of results with their machines and
commits. Made from all JSON files, in folders too."""
from origins import machine_of, recorded, runs_of, setting_of
from result_page import Unreadable, read, table

TITLE = "docs/results/claims.md: which claims hold, which do not, and on which machine each was measured"

PAGE = """# Claims

A claim says that ours takes at most a share, the limit, of an opponent's time or bytes. Each program of `make bench` prints
its claims with their opponents, `make bench THREADS=1,2` those of other machines (`machines/`); `scripts/gpu_check` does so on
a GPU. `benchmarks/pages/pages claims` writes this page from the JSON files beside it.

## What does not hold

{failed}

## Where each file was measured

The commit is that of the sources which were measured. A file without numbers makes no such claim.

{files}
"""


def claims(run):
    """The rows of a run that claim something and were measured; none if there are no such rows."""
    return [row for row in run.get("rows") or [] if isinstance(row, dict) and row.get("limit") is not None
            and isinstance(row.get("pass"), bool) and isinstance(row.get("ratio"), float)]


def failures(name, runs):
    """Rows of the table of claims that do not hold."""
    rows = []
    for run in runs:
        setting = f" ({', '.join(setting_of(run))})" if len(runs) > 1 else ""
        rows += [[f"`{name}`{setting}", row.get("claim") or row["row"], row.get("opponent_name", ""), f"{row['ratio']:.3f}",
                  f"{row['limit']:.2f}"] for row in claims(run) if not row["pass"]]
    return rows


def file_row(name, runs):
    """A row of the table of files."""
    rows = [row for run in runs for row in claims(run)]
    counts = [str(len(rows)), str(sum(not row["pass"] for row in rows))] if rows else ["", ""]
    return [f"`{name}`", machine_of(runs), recorded(runs, "commit"), *counts]


def write(results):
    found = {str(path.relative_to(results)): runs_of(read(path)) for path in sorted(results.rglob("*.json"))}
    found = {name: runs for name, runs in found.items() if runs}
    if not any(claims(run) for runs in found.values() for run in runs):
        raise Unreadable(f"{results} has no JSON file with claims; `make bench` writes them")
    failed = [row for name, runs in found.items() for row in failures(name, runs)]
    files = [file_row(name, runs) for name, runs in found.items()]
    return {results / "claims.md": PAGE.format(
        failed=table(["file", "claim", "opponent", "ratio", "limit"], failed, 2) if failed else "Every claim holds.",
        files=table(["file", "machine", "commit", "claims", "do not hold"], files, 2))}

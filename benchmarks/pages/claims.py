"""docs/results/claims.md: every claim that was measured against an opponent: those that do not hold first, then the files with
their machines. Made from all JSON files that have rows with a limit."""
from result_page import Unreadable, read, table

TITLE = "docs/results/claims.md: which claims hold, which do not, and on which machine each was measured"

PAGE = """# Claims

A claim says that ours takes at most a share, the limit, of an opponent's time or bytes. Each program of `make bench` prints
its claims with their opponents; `scripts/gpu_check` does so on a GPU. `benchmarks/pages/pages claims` writes this page from
the JSON files beside it.

## What does not hold

{failed}

## Where each file was measured

{files}
"""


def claims(content):
    """The rows of a file that claim something and were measured; none if the file has no such rows."""
    rows = content.get("rows") if isinstance(content, dict) else None
    return [row for row in rows or [] if isinstance(row, dict) and row.get("limit") is not None
            and isinstance(row.get("pass"), bool) and isinstance(row.get("ratio"), float)]


def machine_of(content):
    """"processor, 2 threads, x86-64-v4", with what the file has."""
    parts = [content.get("processor") or content.get("device") or "not recorded"]
    if "threads" in content:
        parts.append(f"{content['threads']} thread" + ("s" if content["threads"] != 1 else ""))
    if "instruction_set" in content:
        parts.append(content["instruction_set"])
    return ", ".join(map(str, parts))


def write(results):
    found = {path.name: read(path) for path in sorted(results.glob("*.json"))}
    found = {name: (content, claims(content)) for name, content in found.items() if claims(content)}
    if not found:
        raise Unreadable(f"{results} has no JSON file with claims; `make bench` writes them")
    failed = [[f"`{name}`", row.get("claim") or row["row"], row.get("opponent_name", ""), f"{row['ratio']:.3f}", f"{row['limit']:.2f}"]
              for name, (_, rows) in found.items() for row in rows if not row["pass"]]
    files = [[f"`{name}`", machine_of(content), content.get("commit", "not recorded"), str(len(rows)),
              str(sum(not row["pass"] for row in rows))] for name, (content, rows) in found.items()]
    return {results / "claims.md": PAGE.format(
        failed=table(["file", "claim", "opponent", "ratio", "limit"], failed, 2) if failed else "Every claim holds.",
        files=table(["file", "machine", "commit", "claims", "do not hold"], files, 2))}

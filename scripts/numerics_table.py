#!/usr/bin/env python3
"""Writes the tables of docs/numerics.md, between its two marks, from what bench_numerics measured.

numerics_table.py [--check] [JSON] [PAGE]   defaults docs/results/numerics.json and docs/numerics.md. --check writes
nothing and compares. Exit status: 0 done, or the page is as the file says; 1 with --check, it is not; 2 a wrong option,
a file is missing or is not what it should be.
"""
import json
import pathlib

import result_page

DTYPES = ("f32", "f16", "bf16")
HARD = ("small weight", "large mean", "large bias")


def number(value):
    """1.2e-07 as 1.2e-7."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|---|---|" + "---:|" * (len(header) - 2)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def tables(measured):
    """Both tables: every number of the ordinary data, and the gradient of x of the hard kinds."""
    by_pair = {}
    for row in measured:
        by_pair.setdefault((row["activation"], row["strategy"]), {})[row["data"], row["dtype"]] = row
    ordinary = [[f"`{activation}`", f"`{strategy}`"] +
                [number(kinds["ordinary", dtype][what]) for dtype in DTYPES for what in ("z", "dx", "dweight")]
                for (activation, strategy), kinds in by_pair.items()]
    hard = [[f"`{activation}`", f"`{strategy}`"] +
            [number(kinds[data, dtype]["dx"]) for data in HARD for dtype in DTYPES]
            for (activation, strategy), kinds in by_pair.items()]
    names = ["activation", "strategy"]
    return ("\nOrdinary data: z, dx and dweight.\n\n" +
            table(names + [f"{dtype} {what}" for dtype in DTYPES for what in ("z", "dx", "dweight")], ordinary) +
            "\nHard data: dx.\n\n" +
            table(names + [f"{data}, {dtype}" for data in HARD for dtype in DTYPES], hard) + "\n")


def main(arguments):
    check = "--check" in arguments
    paths = [pathlib.Path(argument) for argument in arguments if argument != "--check"]
    if len(paths) > 2 or any(str(path).startswith("-") for path in paths):
        raise ValueError("usage: numerics_table.py [--check] [JSON] [PAGE]")
    source, page = paths + [pathlib.Path("docs/results/numerics.json"), pathlib.Path("docs/numerics.md")][len(paths):]
    wanted = result_page.between_marks(page, "numerics", tables(json.loads(source.read_text())["rows"]))
    return 0 if result_page.write(__file__, {page: wanted}, check) else 1


if __name__ == "__main__":
    result_page.exit_with(__file__, main)

"""The tables of docs/numerics.md, between its two marks, from the measurements of bench_numerics (numerics.json)."""
from result_page import between_marks, read, table, text_of

TITLE = "docs/numerics.md: the error of every dtype, activation and strategy against f64"
DTYPES = ("f32", "f16", "bf16")
HARD = ("small weight", "large mean", "large bias")


def number(value):
    """1.2e-07 as 1.2e-7."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def tables(measured):
    """Two tables: z, dx and dweight on ordinary data, and dx on the hard kinds."""
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
    columns = [f"{dtype} {what}" for dtype in DTYPES for what in ("z", "dx", "dweight")]
    hard_columns = [f"{data}, {dtype}" for data in HARD for dtype in DTYPES]
    return (f"\nOrdinary data: z, dx and dweight.\n\n{table(names + columns, ordinary, len(columns))}\n"
            f"\nHard data: dx.\n\n{table(names + hard_columns, hard, len(hard_columns))}\n\n")


def write(results):
    page = results.parent / "numerics.md"
    return {page: between_marks(page, text_of(page), "numerics", tables(read(results / "numerics.json")["rows"]))}

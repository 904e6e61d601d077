"""docs/results/correctness.md: published defects of batch normalization, and what torch and ours do today. Made from
correctness.json (a CPU) and correctness_NAME.json (GPUs)."""
from result_page import NOT_MEASURED, read, table

TITLE = "docs/results/correctness.md: published defects of batch normalization, today in torch and in ours"
RESULTS = ("z", "dx", "dweight", "dbias", "mean", "var")

PAGE = """# Published defects of batch normalization

Each case has the shape, dtype, layout and values of a published report, or was found here. `benchmarks/correctness.py` runs
it with `torch.nn.BatchNorm` and with our layer, compares both with the definition in f64, and writes `correctness.json`;
`benchmarks/pages/pages correctness` writes this page.

Errors are in units. One unit is the cost of rounding the terms of a result once: the epsilon of their dtype times the size
of the terms. z, dx and dweight come from values in x's dtype; dbias, mean and var are sums of given values, in the
parameters' dtype: 1.2e-7 in f32. A result is right up to {limit:g} units. A number in bold is beyond, and makes its case
wrong. "As reported" says whether today's layer still does what the report is about, in the results that it is about: a case
may be wrong in another result. Where x has 16 bits, an excess of mean or var of some hundred units hides in the rounding of
z.

{sections}"""

SECTION = """## {device}

libtorch {libtorch}. {summary}

{cases}
"""

NO_GPU = f"""## GPUs

{NOT_MEASURED[0].upper()}{NOT_MEASURED[1:]}. Most of the reports are of GPUs: `python benchmarks/correctness.py --device cuda --json
docs/results/correctness_NAME.json` runs the same cases there.
"""


def link(issue):
    """pytorch#1 stands for pytorch/pytorch#1."""
    if not issue:
        return "found here"
    repository, number = issue.split("#")
    owner = repository if "/" in repository else f"{repository}/{repository}"
    return f"[{issue}](https://github.com/{owner}/issues/{number})"


def cell(units, limit):
    if units is None:
        return "**NaN**"
    text = f"{units:.2g}" if units < 100 else f"{units:.0f}"
    return text if units <= limit else f"**{text}**"


def rows_of(row):
    for side, found in row["sides"].items():
        first = side == next(iter(row["sides"]))
        units = [cell(found["units"][name], row["limit"]) if name in found["units"] else "" for name in RESULTS]
        yield [f"{link(row['issue'])}: {row['reported']}" if first else "", row["case"] if first else "", side, *units,
               "as x" if found["layout_of_x"] else "**another**", "right" if found["right"] else "**wrong**",
               {None: "", False: "no", True: "**yes**"}[found["as_reported"]]]


def section(found):
    rows = found["rows"]
    wrong = {side: sum(not row["sides"][side]["right"] for row in rows) for side in rows[0]["sides"]}
    of_issues = [row for row in rows if row["issue"]]
    reported = sum(row["sides"]["torch"]["as_reported"] for row in of_issues)
    summary = (", ".join(f"{count} of {len(rows)} cases are wrong with {side}" for side, count in wrong.items()) +
               f". Of the {len(of_issues)} cases of reports, {reported} " + ("is" if reported == 1 else "are") +
               " still as reported with torch.")
    header = ["report", "case", "layer", *RESULTS, "layout of dx", "", "as reported"]
    return SECTION.format(device=found["processor"], libtorch=found["libtorch"], summary=summary,
                          cases=table(header, [line for row in rows for line in rows_of(row)]))


def write(results):
    found = [read(results / "correctness.json")]
    found += [read(path, "benchmarks/correctness.py --device cuda") for path in sorted(results.glob("correctness_*.json"))]
    sections = [section(one) for one in found] + ([NO_GPU] if len(found) == 1 else [])
    return {results / "correctness.md": PAGE.format(limit=found[0]["rows"][0]["limit"], sections="\n".join(sections))}

"""docs/results/gpu.md: what scripts/gpu_check measured on GPUs. Made from gpu_NAME.json, one per GPU."""
from result_page import NOT_MEASURED, read, table

TITLE = "docs/results/gpu.md: layers, steps and the program on a GPU"

PAGE = """# On a GPU

`scripts/gpu_check` builds, tests and measures on a machine with a GPU ([gpu_check.md](../gpu_check.md)) and writes
`gpu_NAME.json`; `benchmarks/pages/pages gpu` writes this page from these files. All sides of a row run in one process, in
turn, on libtorch's caching allocator; times are medians of the device's time. A limit is a claim of the project. A row
beyond its limit is a finding to work on.

{sections}"""

SECTION = """## {device}

{tests}
A copy on the device {copy}.

### Claims

{claims}

### Rows without a claim

{others}

### Kernels

One launch each. A pass reads or writes a tensor once; the last column is the time over that of a copy that moves as many
bytes. In two launches apply begins while the sums end: its time includes the wait for them.

{kernels}

### The program

`palimpsest train` for one epoch of some steps, with libtorch's layers (`standard`) and in place (`inplace_2`), and the
largest batch that `palimpsest compare` finds. The time of a step ends when the next one begins: it includes the wait for images.

{program}

{left}"""


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def row_of(row, with_limit):
    unit = row["unit"]
    cells = [row["row"], row["opponent_name"], f"{number(row['opponent']['median'])} {unit}",
             f"{number(row['measured']['median'])} {unit}", f"{row['ratio']:.3f}"]
    return cells + ([f"{row['limit']:.2f}", "holds" if row["pass"] else "**fails**"] if with_limit else [])


def section(found):
    rows = found["rows"]
    tests = [row for row in rows if row["piece"] in ("tests", "sanitizer")]
    compared = [row for row in rows if "ratio" in row]
    is_kernel = {id(row): row["row"].endswith("_kernel") for row in rows}
    claims = [row for row in compared if row.get("limit")]
    others = [row for row in compared if not row.get("limit") and row["piece"] != "program" and not is_kernel[id(row)]]
    kernels = [row for row in rows if is_kernel[id(row)]]
    program = [row for row in rows if row["piece"] == "program" and "ratio" in row]
    copy = [row["measured"]["median"] for row in rows if row["row"] == "a copy on the device" and "measured" in row]
    broken = [f"- failed: {row['row']}: {row['reason']}" for row in rows if row["outcome"] == "failed" and "reason" in row]
    not_run = [f"- not run: {row}: {why}" for row, why in found["not_run"].items()]
    not_run += [f"- did not fit into the time: {row}" for row in found["did_not_fit"]]
    run = [row for row in tests if row["outcome"] in ("passed", "failed")]
    passed = sum(row["outcome"] == "passed" for row in run)
    sanitizers = [row["row"] for row in run if row["piece"] == "sanitizer"]
    head = ["measured", "opponent", "opponent's", "ours", "ratio"]
    return SECTION.format(
        device=found["device"],
        tests=f"{passed} of {len(run)} tests passed"
              f"{f', {len(tests) - len(run)} did not run' if len(run) < len(tests) else ''}. compute-sanitizer: "
              f"{', '.join(sanitizers) or NOT_MEASURED}." if tests else f"Tests: {NOT_MEASURED}.",
        copy=f"moves {copy[0] / 1e3:.2f} TB/s, read and written" if copy else f"was {NOT_MEASURED}",
        claims=table([*head, "limit", ""], [row_of(row, True) for row in claims], 5),
        others=table(head, [row_of(row, False) for row in others], 3),
        kernels=table(["kernel", "us", "GB/s", "of a copy"],
                      [[row["row"], f"{1e3 * row['measured']['median']:.1f}",
                        number(row["gigabytes_per_second"]) if "gigabytes_per_second" in row else "",
                        f"{row['ratio']:.2f}" if "ratio" in row else ""] for row in kernels], 3),
        program=table(head, [row_of(row, False) for row in program], 3) if program else f"{NOT_MEASURED}.",
        left="\n".join(["Everything ran."] if not broken + not_run else broken + not_run) + "\n")


def write(results):
    files = sorted(results.glob("gpu_*.json"))
    sections = "\n".join(section(read(path, "scripts/gpu_check")) for path in files)
    return {results / "gpu.md": PAGE.format(sections=sections or f"No GPU: {NOT_MEASURED}.\n")}

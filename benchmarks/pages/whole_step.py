"""docs/results/whole_step.md and its chart: whole training steps, with what a user would take otherwise. Made from
whole_step.json."""
import html

from panels import text, ticks
from result_page import NETWORK_NAMES, Unreadable, read, table

TITLE = "docs/results/whole_step.md: time and memory of whole training steps, beside torch.compile and checkpoints"

COMMAND = "python benchmarks/whole_step.py --json docs/results/whole_step.json"
CHART = "whole_step.svg"

FORMS = {
    "eager": "the network as it is; its activations are in place",
    "torch.compile": "`torch.compile(model)`: Inductor, C++",
    "checkpoint": "`torch.utils.checkpoint` around each residual block, or each layer of a dense block",
    "memory_efficient": "torchvision's option of that name: checkpoints around a part of each layer of a dense block",
    "torch.compile + checkpoint": "`torch.compile` of the network with the checkpoints",
    "torch.compile, budget 0.5": "`torch.compile` with `activation_memory_budget = 0.5`: it keeps about half, and backward "
                                 "computes the rest again",
    "ours": "`palimpsest.convert(model)`",
    "ours + torch.compile": "`torch.compile` of the converted network",
}

PAGE = """# Whole training steps, ours and what a user would take otherwise

A step is forward, cross entropy, backward and SGD with momentum, in f32 and channels-last, of torchvision's networks.
`benchmarks/pages/pages whole_step` writes this page from `whole_step.json`, which
`{command}` writes.

{forms}

{content}"""

CONTENT = """The machine is {processor}, {threads} threads, no GPU, libtorch {libtorch}; a step has {batch} images of {size}x{size}. All
forms of a network train the same parameters in one process, on the same threads, with a malloc that retains freed blocks.
Times are medians and quartiles of {repeats} interleaved steps. Bytes are those of tensors and do not depend on the machine.

"Peak" is the most bytes that live at a time, less the state: parameters, buffers, gradients and momentum. "Whole" has the
state, too. "Kept" is what forward keeps for backward. "Error" is that of all gradients of the first step against the
network in f64: the norm of the difference, divided by the norm. A form is not timed if its error is more than 0.02 and
twice eager's. The claim: ours takes no more time than torch.compile, and at most {limit:.2f} of its peak.

{claims}

![time and peak memory of a step](whole_step.svg)

{sections}"""

SECTION = """## {name}

{table}
"""


def forms_of(measured):
    """{network: {form: {"step", "peak", "whole", "kept", "error": row}}}, in the order of the file. A form with wrong
    gradients has "error" alone."""
    networks = {}
    for row in measured["rows"]:
        head, form = row["claim"].split(": ", 1)
        name, what = head.rsplit(" ", 1)
        networks.setdefault(name, {}).setdefault(form, {})[what] = row
    if not networks:
        raise Unreadable("whole_step.json has no rows")
    return networks


def timed(forms):
    return {form: row for form, row in forms.items() if "step" in row}


def form_table(forms):
    rows = []
    for form, row in forms.items():
        error = f"{row['error']['measured']['median']:.0e}"
        if "step" not in row:
            rows.append([form, "wrong gradients", *[""] * 7, error])
            continue
        step = row["step"]["measured"]
        cells = [form, f"{step['median']:.0f} ({step['low']:.0f} to {step['high']:.0f})", f"{row['step']['ratio']:.2f}"]
        for what in ("peak", "whole", "kept"):
            cells += [f"{row[what]['measured']['median']:.0f}", f"{row[what]['ratio']:.2f}"]
        rows.append([*cells, error])
    header = ["form", "step, ms", "ratio", "peak, MB", "ratio", "whole, MB", "ratio", "kept, MB", "ratio", "error"]
    return table(header, rows, numbers=9) + "\n\nRatios are to torch.compile."


def claims_of(networks):
    lines = []
    for name, forms in networks.items():
        for row in timed(forms).values():
            if row["peak"]["limit"] is not None:
                holds = "holds" if row["step"]["pass"] and row["peak"]["pass"] else "FAIL"
                lines.append(f"- {NETWORK_NAMES.get(name, name)}: {row['step']['ratio']:.2f} of the time, {row['peak']['ratio']:.2f} of the "
                             f"peak: {holds}")
    return "\n".join(lines)


def described(forms):
    return table(["form", "what it is"], [[form, what] for form, what in FORMS.items() if form in forms])


# The chart: a panel per network, below one another; light colours and, for readers of dark pages, those of io/svg.h.
WIDTH, HEIGHT, TOP = 760, 300, 58
KINDS = (("PyTorch", "#d9730d", "#f0883e"), ("PyTorch, with checkpoints or a budget", "#15803d", "#4ade80"),
         ("ours", "#1d4ed8", "#3b82f6"))
OTHERS = (("#1f2937", "#e5e7eb"), ("#6b7280", "#9ca3af"), ("#e5e7eb", "#374151"))
STYLE = "@media (prefers-color-scheme: dark) {\n" + "".join(
    f'[{attribute}="{light}"]{{{attribute}:{dark}}}\n' for light, dark in (*(kind[1:] for kind in KINDS), *OTHERS)
    for attribute in ("fill", "stroke")) + 'rect[fill="white"]{fill:#111827}\n}'


def kind_of(form):
    return 2 if "ours" in form else 1 if form not in ("eager", "torch.compile") else 0


def width_of(label):
    return 6.8 * len(label)  # DejaVu, the widest of the usual fonts


def place(points):
    """Where the labels of points (low, x, high, y, label) stand: [(x, y)] of the left end of each base line. Labels overlap
    neither one another nor a point with its spread, if there is room."""
    size, boxes = 12, [(min(low, x - 5), y - 5, max(high, x + 5), y + 5) for low, x, high, y, _ in points]
    found = []
    for (low, x, high, y, label), (left_end, _, right_end, _) in zip(points, list(boxes)):
        width = width_of(label)
        ways = [(right_end + 4, y + 4), (left_end - 4 - width, y + 4)]
        ways += [(x + dx - width / 2, y + dy) for dy in (-10, 19, -24, 33) for dx in (0, width / 2, -width / 2)]

        def overlap(way):
            left, base = way
            box = (left, base - size, left + width, base + 3)
            outside = max(0, left + width - (WIDTH - 8)) + max(0, 60 - left)
            return 100 * outside + sum(max(0, min(box[2], b[2]) - max(box[0], b[0])) * max(0, min(box[3], b[3]) - max(box[1], b[1]))
                                       for b in boxes)

        left, base = min(ways, key=overlap)
        boxes.append((left, base - size, left + width, base + 3))
        found.append((left, base))
    return found


def panel(name, forms, top):
    spreads = [row["step"]["measured"] for row in forms.values()]
    xs = ticks(min(s["low"] for s in spreads) / 1e3, max(s["high"] for s in spreads) / 1e3)
    ys = ticks(0, max(row["peak"]["measured"]["median"] for row in forms.values()) / 1e3)
    x0, x1, y0, y1 = 64, WIDTH - 24, top + HEIGHT - 50, top + 36

    def x(milliseconds):
        return x0 + (milliseconds / 1e3 - xs[0]) / (xs[-1] - xs[0]) * (x1 - x0)

    def y(megabytes):
        return y0 + (megabytes / 1e3 - ys[0]) / (ys[-1] - ys[0]) * (y1 - y0)
    svg = [text(x0, top + 22, NETWORK_NAMES.get(name, name), size=14, more=' font-weight="bold"')]
    for tick in ys:
        svg.append(f'<line x1="{x0}" y1="{y(1e3 * tick):.1f}" x2="{x1}" y2="{y(1e3 * tick):.1f}" stroke="#e5e7eb"/>')
        svg.append(text(x0 - 8, y(1e3 * tick) + 4, f"{tick:g}", "end"))
    for tick in xs:
        svg.append(f'<line x1="{x(1e3 * tick):.1f}" y1="{y0}" x2="{x(1e3 * tick):.1f}" y2="{y0 + 5}" stroke="#1f2937"/>')
        svg.append(text(x(1e3 * tick), y0 + 19, f"{tick:g}", "middle"))
    svg.append(f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y0}" stroke="#1f2937"/>')
    svg.append(text((x0 + x1) / 2, y0 + 38, "time of a step, s", "middle", 12, "#6b7280"))
    middle = (y0 + y1) / 2
    svg.append(text(18, middle, "peak above the state, GB", "middle", 12, "#6b7280", f' transform="rotate(-90 18 {middle:.1f})"'))
    points = []
    for form, row in forms.items():
        color, step, at = KINDS[kind_of(form)][1], row["step"]["measured"], y(row["peak"]["measured"]["median"])
        svg.append(f'<line x1="{x(step["low"]):.1f}" y1="{at:.1f}" x2="{x(step["high"]):.1f}" y2="{at:.1f}" stroke="{color}" '
                   'stroke-width="1.5"/>')
        svg.append(f'<circle cx="{x(step["median"]):.1f}" cy="{at:.1f}" r="5" fill="{color}"/>')
        points.append((x(step["low"]), x(step["median"]), x(step["high"]), at, form))
    for form, (left, base) in zip(forms, place(points)):
        svg.append(text(left, base, form, size=12, color=KINDS[kind_of(form)][1]))
    return svg


def chart(networks):
    height = TOP + HEIGHT * len(networks)
    title = "Time and peak memory of a training step: down and left is better"
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" '
           f'aria-label="{html.escape(title)}" font-family="Helvetica, Arial, \'Liberation Sans\', sans-serif">',
           f"<style>{STYLE}</style>", f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
           text(64, 24, title, size=16, more=' font-weight="bold"')]
    left = 64
    for kind, color, _ in KINDS:
        svg += [f'<circle cx="{left + 5}" cy="44" r="5" fill="{color}"/>', text(left + 16, 48, kind)]
        left += 40 + width_of(kind)
    for i, (name, forms) in enumerate(networks.items()):
        svg += panel(name, timed(forms), TOP + HEIGHT * i)
    return "\n".join(svg + ["</svg>"]) + "\n"


def write(results):
    path = results / "whole_step.json"
    if not path.exists():
        return {results / "whole_step.md": PAGE.format(command=COMMAND, forms=described(FORMS), content="Not measured.\n")}
    measured = read(path, COMMAND)
    networks = forms_of(measured)
    limit = next(row["limit"] for row in measured["rows"] if " peak: " in row["claim"] and row["limit"] is not None)
    sections = "\n".join(SECTION.format(name=NETWORK_NAMES.get(name, name), table=form_table(forms)) for name, forms in networks.items())
    content = CONTENT.format(**{key: measured[key] for key in ("processor", "threads", "libtorch", "repeats", "batch", "size")},
                             limit=limit, claims=claims_of(networks), sections=sections)
    forms = described({form for of_network in networks.values() for form in of_network})
    return {results / "whole_step.md": PAGE.format(command=COMMAND, forms=forms, content=content), results / CHART: chart(networks)}

"""Several small charts of a value over steps or epochs in one SVG file."""
import html
import math

COLORS = ["#d9730d", "#1d4ed8", "#15803d"]  # the first colours of io/svg.h
WIDTH, HEIGHT, COLUMNS, LEGEND = 400, 250, 2, 30  # size of a panel, panels per row, height of the legend


def ticks(low, high):
    """About four round positions between low and high."""
    raw = (high - low) / 4 or 1
    power = 10 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= raw)
    return [step * k for k in range(math.floor(low / step), math.ceil(high / step) + 1)]


def text(x, y, content, anchor="start", size=12, color="#1f2937", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{color}"{more}>{html.escape(content)}</text>'


def panel(title, curves, left, top, unit):
    """One chart of curves (color, [(step, value or None)]). The highest 2 % of the values are cut off."""
    points = [p for _, curve in curves for p in curve if p[1] is not None]
    values, last = sorted(p[1] for p in points), max(p[0] for p in points)
    xs, ys = ticks(0, last), ticks(min(0, values[0]), values[int(0.98 * (len(values) - 1))])
    x0, x1, y0, y1 = left + 48, left + WIDTH - 16, top + HEIGHT - 34, top + 34

    def x(v):
        return x0 + v / last * (x1 - x0)

    def y(v):
        return y0 + (min(v, ys[-1]) - ys[0]) / (ys[-1] - ys[0]) * (y1 - y0)
    svg = [text(x0, top + 20, title, size=14, more=' font-weight="bold"')]
    for tick in ys:
        svg.append(f'<line x1="{x0}" y1="{y(tick):.1f}" x2="{x1}" y2="{y(tick):.1f}" stroke="#e5e7eb"/>')
        svg.append(text(x0 - 6, y(tick) + 4, f"{tick:g}", "end", 11))
    for tick in xs:
        if tick <= last:
            svg.append(text(x(tick), y0 + 16, f"{tick:g}", "middle", 11))
    svg.append(text((x0 + x1) / 2, y0 + 30, unit, "middle", 11, "#6b7280"))
    for color, curve in curves:
        drawn = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve if loss is not None)
        svg.append(f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="1.3"/>')
    return svg


def chart(labels, panels, name="Training loss", unit="steps"):
    """labels: the meaning of each color, in the order of COLORS; panels: (title, curves) as `panel` takes them; name: of the
    picture, for those who do not see it; unit: of the horizontal axis."""
    width, height = WIDTH * COLUMNS, HEIGHT * math.ceil(len(panels) / COLUMNS) + LEGEND
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           f'role="img" aria-label="{html.escape(name)}" font-family="Helvetica, Arial, \'Liberation Sans\', sans-serif">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, (label, color) in enumerate(zip(labels, COLORS)):
        left = 48 + 240 * i
        svg.append(f'<line x1="{left}" y1="16" x2="{left + 20}" y2="16" stroke="{color}" stroke-width="3"/>')
        svg.append(text(left + 26, 20, label))
    for i, (title, curves) in enumerate(panels):
        svg += panel(title, curves, WIDTH * (i % COLUMNS), LEGEND + HEIGHT * (i // COLUMNS), unit)
    return "\n".join(svg + ["</svg>"]) + "\n"

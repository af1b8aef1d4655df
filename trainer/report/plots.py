"""Plots as SVG: line charts in the colours of the report's style sheet, and heat maps."""

import html
import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

Points = list[tuple[float, float]]

_WIDTH, _HEIGHT = 480, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 12, 10, 26
_MOST_POINTS, _MOST_TICKS = 400, 7
_LOGARITHMIC_FROM = 8.0  # the ratio of the highest to the lowest value


def line_chart(
    title: str,
    lines: dict[str, Points],
    mark_lowest: bool = False,
    over: str = "training steps",
    at: str = "step",
) -> Markup:
    """Lines over steps, or over something else, as a figure with its legend.

    Empty where no line has a finite value.

    The axis of values is logarithmic where they spread widely, as perplexities do.
    """
    finite = {name: [p for p in points if math.isfinite(p[1])] for name, points in lines.items()}
    lines = {name: _thinned(points) for name, points in finite.items() if points}
    if not lines:
        return Markup()
    steps = [step for points in lines.values() for step, _ in points]
    values = [value for points in lines.values() for _, value in points]
    logarithmic = min(values) > 0 and max(values) / min(values) > _LOGARITHMIC_FROM
    low, high = min(values) if logarithmic else min(0, *values), max(values)
    x = _axis(0, max(*steps, 1), _LEFT, _WIDTH - _RIGHT)
    y = _axis(low, high, _HEIGHT - _BOTTOM, _TOP, logarithmic)

    marks = []
    for value in _ticks(low, high, logarithmic):
        marks.append(
            f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text class="of-values" x="{_LEFT - 8}" y="{y(value):.1f}">{value:,.10g}</text>'
        )
    for step in _ticks(0, max(*steps, 1)):
        marks.append(
            f'<text class="of-steps" x="{x(step):.1f}" y="{_HEIGHT - 6}">{step:,.10g}</text>'
        )
    legend = []
    for number, (name, points) in enumerate(lines.items()):
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
        marks.append(f'<polyline class="line line-{number}" points="{path}"/>')
        step, value = min(points, key=lambda p: p[1]) if mark_lowest else points[-1]
        which = "lowest" if mark_lowest else "last"
        told = f"{which} {value:.4g} at {at} {step:,.10g}"
        marks.append(
            f'<circle class="dot line-{number}" cx="{x(step):.1f}" cy="{y(value):.1f}" r="4">'
            f"<title>{html.escape(name)}: {told}</title></circle>"
        )
        legend.append(f'<li class="line-{number}"><b>{html.escape(name)}</b> {told}</li>')
    scale = ", logarithmic" if logarithmic else ""
    return Markup(
        f'<figure class="chart"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)} over {over}">{"".join(marks)}</svg>'
        f"<figcaption><p>{html.escape(title)} over {over}{scale}</p>"
        f"<ul>{''.join(legend)}</ul></figcaption></figure>"
    )


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[tuple[float, str]]],
    title: str,
) -> Markup:
    """A table as an SVG file: every cell is shaded by its value, the highest one has an edge.

    Args:
        rows, columns: their names.
        cells: for every row and column a value and a text, which may have several lines.
        title: str. What stands above.
    """
    wide, high, left, above = 92, 46, 92, 70
    width, height = left + len(columns) * wide + 12, above + len(rows) * high + 12
    marks = [(width / 2, 24, title)]
    marks += [(left + (i + 0.5) * wide, above - 10, name) for i, name in enumerate(columns)]
    marks += [(left / 2, above + (i + 0.6) * high, name) for i, name in enumerate(rows)]
    values = [value for row in cells for value, _ in row]
    low, spread = min(values), max(values) - min(values) or 1.0
    body = '<rect width="100%" height="100%" fill="#fff"/>'
    for number, (value, text) in enumerate(cell for row in cells for cell in row):
        y, x = divmod(number, len(columns))
        x, y = left + x * wide, above + y * high
        edge = ' stroke="#b4622a" stroke-width="3"' if number == values.index(max(values)) else ""
        body += (
            f'<rect x="{x + 2}" y="{y + 2}" width="{wide - 4}" height="{high - 4}" fill="#0b6e69" '
            f'fill-opacity="{0.05 + 0.55 * (value - low) / spread:.3f}"{edge}/>'
        )
        marks += [(x + wide / 2, y + 20 + 16 * i, line) for i, line in enumerate(text.split("\n"))]
    body += "".join(f'<text x="{x}" y="{y:g}">{html.escape(text)}</text>' for x, y, text in marks)
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="13" '
        f'text-anchor="middle">{body}</svg>\n'
    )


def _thinned(points: Points) -> Points:
    """Every n-th point, with the last and the lowest."""
    stride = math.ceil(len(points) / _MOST_POINTS)
    lowest = min(range(len(points)), key=lambda i: points[i][1])
    kept = {*range(0, len(points), stride), lowest, len(points) - 1}
    return [points[i] for i in sorted(kept)]


def _axis(
    low: float, high: float, begin: float, end: float, logarithmic: bool = False
) -> Callable[[float], float]:
    """The place of a value between `begin` and `end`."""
    by = math.log if logarithmic else float
    low, high = by(low), by(high)
    return lambda value: begin + (end - begin) * ((by(value) - low) / (high - low or 1.0))


def _ticks(low: float, high: float, logarithmic: bool = False) -> list[float]:
    """A few round values from `low` to `high`."""
    if logarithmic:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1, 2, 5), (1,)):
            ticks = [d * 10.0**power for power in powers for d in digits]
            ticks = [tick for tick in ticks if low <= tick <= high]
            if len(ticks) <= _MOST_TICKS:
                break
        return ticks[:: math.ceil(len(ticks) / _MOST_TICKS)]
    if high == low:
        return [low]
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(d * size for d in (1, 2, 5, 10) if d * size >= rough)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]

"""Plots as SVG: line charts in the colours of the report's style sheet, and heat maps."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainer.report import templates

Points = list[tuple[float, float]]

_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 468, 10, 244  # of the plane in line_chart.html
_MOST_POINTS, _MOST_TICKS = 400, 7
_LOGARITHMIC_FROM = 8.0  # the ratio of the highest to the lowest value


def line_chart(
    title: str,
    lines: dict[str, Points],
    mark_lowest: bool = False,
    over: str = "training steps",
    at: str = "step",
) -> str:
    """Lines over steps, or over something else, as a figure with its legend.

    Empty where no line has a finite value.

    The axis of values is logarithmic where they spread widely, as perplexities do.
    """
    finite = {name: [p for p in points if math.isfinite(p[1])] for name, points in lines.items()}
    lines = {name: _thinned(points) for name, points in finite.items() if points}
    if not lines:
        return ""
    steps, values = zip(*(point for points in lines.values() for point in points), strict=True)
    logarithmic = min(values) > 0 and max(values) / min(values) > _LOGARITHMIC_FROM
    low, high = min(values) if logarithmic else min(0, *values), max(values)
    x = _axis(0, max(*steps, 1), _LEFT, _RIGHT)
    y = _axis(low, high, _BOTTOM, _TOP, logarithmic)
    drawn = []
    for name, points in lines.items():
        step, value = min(points, key=lambda p: p[1]) if mark_lowest else points[-1]
        which = "lowest" if mark_lowest else "last"
        label = f"{which} {value:.4g} at {at} {step:,.10g}"
        drawn.append({"name": name, "points": points, "dot": (step, value), "label": label})
    ticks = {"rows": _ticks(low, high, logarithmic), "columns": _ticks(0, max(*steps, 1))}
    data = {"lines": drawn, "x": x, "y": y, "logarithmic": logarithmic, **ticks}
    return templates.render("line_chart.html", title=title, over=over, **data)


class HeatTable(NamedTuple):
    """A table of a heat map: a value and a text, of one or more lines, for every cell."""

    heading: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[tuple[float, str]]  # row by row


def heat_map(tables: Sequence[HeatTable], title: str) -> str:
    """Tables one below the other as an SVG file; cells are shaded, the highest has an edge."""
    drawn, top = [], 40
    for table in tables:
        values = [value for value, _ in table.cells]
        best = divmod(values.index(max(values)), len(table.columns))
        limits = {"low": min(values), "high": max(values), "best": best}
        drawn.append({**table._asdict(), **limits, "top": top})
        top += 82 + 46 * len(table.rows)
    width = 104 + 92 * max(len(table.columns) for table in tables)
    return templates.render("heat_map.svg", tables=drawn, title=title, width=width, height=top)


def _thinned(points: Points) -> Points:
    """Every n-th point, with the last and the lowest."""
    stride = math.ceil(len(points) / _MOST_POINTS)
    lowest = min(range(len(points)), key=lambda i: points[i][1])
    kept = {*range(0, len(points), stride), lowest, len(points) - 1}
    return [points[i] for i in sorted(kept)]


def _axis(
    low: float, high: float, begin: float, end: float, logarithmic: bool = False
) -> Callable[[float], float]:
    """The coordinate of a value between `begin` and `end`."""
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

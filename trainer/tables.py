"""Tables of scores, as HTML: groups of rows, the first of them this run's."""

import html
from collections.abc import Iterable, Sequence

MISSING = "&ndash;"
PAPER = "The paper (Mao et al. 2015)"
# The metrics of captions in the paper's tables, in their order.
METRICS = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    "cider": "CIDEr",
    "rouge_l": "ROUGE-L",
    "meteor": "METEOR",
}


def table(columns: Sequence[str], groups: Iterable[tuple[str, str]]) -> str:
    """A table of groups of rows, each (heading, rows); a group without a heading has none."""
    heads = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    bodies = "".join(
        f'<tbody class="{_kind(number, heading)}">'
        f"{_heading(heading, len(columns) + 1)}{rows}</tbody>"
        for number, (heading, rows) in enumerate(groups)
    )
    return (
        f'<div class="wide"><table class="scores"><thead><tr><th></th>{heads}</tr></thead>'
        f"{bodies}</table></div>"
    )


def row(kind: str, name: str, cells: Iterable[str | None], place: str = "") -> str:
    """A row of finished cells.

    Args:
        kind: str. `own`, or of the paper `same` and `other`: on the same data or not.
        name: str. What the row is about.
        cells: HTML; `None` where there is no value.
        place: str. Where or how it was measured.
    """
    label = f"<span>{html.escape(name)}</span> <small>{html.escape(place)}</small>"
    values = "".join(f"<td>{MISSING if cell is None else cell}</td>" for cell in cells)
    return f'<tr class="{kind}"><th>{label}</th>{values}</tr>'


def share(value: float) -> str:
    """A score between 0 and 1 as the paper prints it: .205."""
    return f"{value:.3f}".removeprefix("0")


def _kind(number: int, heading: str) -> str:
    return "ours" if heading and number == 0 else "others"


def _heading(text: str, columns: int) -> str:
    return f'<tr><th colspan="{columns}">{html.escape(text)}</th></tr>' if text else ""

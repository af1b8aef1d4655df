"""The ranks of hypotheses before and after reranking, as HTML with inline SVG."""

import dataclasses
import html
from collections.abc import Iterable

from trainer import cards

_ROW, _TOP, _WIDTH = 24, 30, 860
_BEFORE, _AFTER, _TEXT = 34, 150, 172


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The hypotheses of an image in their first order, and in the new one."""

    image_id: str
    image: bytes | None  # as stored in the records
    captions: tuple[str, ...]
    order: tuple[int, ...]  # places in `captions`, the best first
    scores: tuple[float, ...]  # the consensus of every hypothesis, as in `captions`
    told: str = ""  # what the change is worth


def show(images: Iterable[Ranks]) -> str:
    """A figure for every image."""
    return "".join(_figure(image) for image in images)


def _figure(image: Ranks) -> str:
    label = " ".join(filter(None, (image.image_id, image.told)))
    return (
        f'<figure class="ranks"><div>{cards.picture(image.image_id, image.image)}'
        f'<figcaption class="meta">{html.escape(label)}</figcaption></div>{_slopes(image)}</figure>'
    )


def _slopes(image: Ranks) -> str:
    """Lines from the rank before to the rank after, with the captions in their new order."""
    marks = [
        f'<text x="{_BEFORE}" y="16" text-anchor="middle" opacity=".7">before</text>'
        f'<text x="{_AFTER}" y="16" text-anchor="middle" opacity=".7">after</text>'
    ]
    for after, before in enumerate(image.order):
        here, there = _middle(before), _middle(after)
        first = after == 0
        colour, width = ("var(--accent, #0b6e69)", 3) if first else ("currentColor", 1)
        caption = html.escape(image.captions[before]) or "(empty)"
        marks.append(
            f'<path d="M{_BEFORE + 14} {here}C{_BEFORE + 60} {here} {_AFTER - 60} {there} '
            f'{_AFTER - 14} {there}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'opacity="{1 if first else 0.45}"/>'
            f'<text x="{_BEFORE}" y="{here + 5}" text-anchor="middle">{before + 1}</text>'
            f'<text x="{_AFTER}" y="{there + 5}" text-anchor="middle">{after + 1}</text>'
            f'<text x="{_TEXT}" y="{there + 5}" fill="{colour}" '
            f'font-weight="{600 if first else 400}">{caption} '
            f'<tspan opacity=".6">{image.scores[before]:.3f}</tspan></text>'
        )
    height = _TOP + _ROW * len(image.order)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="100%" font-size="14" fill="currentColor" '
        f'role="img" aria-label="ranks before and after">{"".join(marks)}</svg>'
    )


def _middle(rank: int) -> float:
    return _TOP + _ROW * (rank + 0.5)

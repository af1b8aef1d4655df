"""The examples of a report: pictures with what the model and people say of them."""

import base64
import dataclasses
import html
import math
from collections.abc import Sequence

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.vision import images

_ENDS, _BETWEEN, _UNSCORED = 12, 4, 24  # how many examples of each kind are shown
_THUMBNAIL = (480, 320)  # the most rows and columns
_NO_CANDIDATE = -1e30  # the log-probability of filler in an n-best list is below


@dataclasses.dataclass(frozen=True)
class Example:
    """An image and what the model says of it."""

    image_id: str
    image: bytes | None  # as stored in the records
    references: tuple[str, ...]
    captions: tuple[str, ...]  # best first
    log_probs: tuple[float, ...]
    words: tuple[str, ...]  # of the best caption, with the end sign
    word_log_probs: tuple[float, ...]
    evidence: tuple[float, ...]  # log p(w|h,I) - log p(w|h, no image), in nats
    cider: float | None


def show(examples: Sequence[Example]) -> str:
    groups = chosen(examples)
    if not groups:
        return ""
    legend = _legend() if any(e.words for _, some in groups for e in some) else ""
    return legend + "".join(
        f'<h3>{heading}</h3><div class="cards">{"".join(map(_card, some))}</div>'
        for heading, some in groups
    )


def chosen(examples: Sequence[Example]) -> list[tuple[str, list[Example]]]:
    """The examples to show, under their headings; none is shown twice."""
    scored = sorted((e for e in examples if e.cider is not None), key=lambda e: -e.cider)
    unscored = [e for e in examples if e.cider is None][:_UNSCORED]
    best = scored[: min(_ENDS, math.ceil(len(scored) / 2))]
    worst = scored[max(len(best), len(scored) - _ENDS) :]
    middle = scored[len(best) : len(scored) - len(worst)]
    count = min(_BETWEEN, len(middle))
    between = [middle[(2 * i + 1) * len(middle) // (2 * count)] for i in range(count)]
    groups = [
        ("Best by CIDEr", best),
        ("In between", between),
        ("Worst by CIDEr, the worst first", worst[::-1]),
        ("Without a score" if scored else "The first images", unscored),
    ]
    return [(heading, some) for heading, some in groups if some]


def _card(example: Example) -> str:
    figures = [] if example.cider is None else [f"<b>CIDEr {example.cider:.2f}</b>"]
    figures += [f"<span>log P {value:.2f}</span>" for value in example.log_probs[:1]]
    figures += [f"<span>{html.escape(example.image_id)}</span>"]
    references = "".join(f"<li>{html.escape(text)}</li>" for text in example.references)
    return f"""<article class="card">
{picture(example.image_id, example.image)}
<p class="caption">{_caption(example)}</p>
<p class="meta">{" ".join(figures)}</p>
{f'<ul class="references">{references}</ul>' if references else ""}
{_other_captions(example)}
</article>
"""


def picture(image_id: str, image: bytes | None) -> str:
    """A stored image as a small picture, or a sentence that there is none."""
    if image is None:
        return '<p class="no-picture">no picture in the records</p>'
    try:
        pixels = images.decode(image)
    except tf.errors.InvalidArgumentError:
        return '<p class="no-picture">the picture cannot be decoded</p>'
    scale = min(1.0, *(most / side for most, side in zip(_THUMBNAIL, pixels.shape, strict=False)))
    height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
    small = tf.cast(tf.round(images.resize(pixels, height, width)), tf.uint8)
    data = base64.b64encode(tf.io.encode_jpeg(small, quality=82).numpy()).decode()
    return (
        f'<img src="data:image/jpeg;base64,{data}" width="{width}" height="{height}" '
        f'alt="{html.escape(image_id)}">'
    )


def _caption(example: Example) -> str:
    if not any(example.captions[:1]):
        return '<span class="empty">no caption</span>'
    if not example.words:
        return html.escape(example.captions[0])
    words = zip(example.words, example.word_log_probs, example.evidence, strict=True)
    return " ".join(_shaded(word, log_prob, evidence) for word, log_prob, evidence in words)


def _shaded(word: str, log_prob: float, evidence: float) -> str:
    told = f"evidence {evidence:+.2f} nats, probability {math.exp(log_prob):.3f}"
    kind, text = ("word end", "end") if word == schema.END else ("word", html.escape(word))
    return (
        f'<span class="{kind}" style="--shade:{_shade(evidence):.3f}" title="{told}">{text}</span>'
    )


def _shade(evidence: float) -> float:
    """How strongly a word is shaded, 0..1: the same for the same evidence in every report."""
    return 1 - math.exp(-evidence / 2) if evidence > 0 else 0.0


def _legend() -> str:
    swatches = " ".join(
        f'<span class="word" style="--shade:{_shade(nats):.3f}">'
        f"{nats}, &times;{math.exp(nats):.2g}</span>"
        for nats in (0, 1, 2, 4)
    )
    return (
        '<div class="legend"><p>The shade of a word is its evidence, log p(word | words before, '
        "picture) &minus; log p(word | words before, no picture): how much more probable the "
        "picture makes it. What has no shade, the language model says by itself. Point at a word "
        f"for its figures.</p><p>In nats, and as a factor: {swatches}</p></div>"
    )


def _other_captions(example: Example) -> str:
    others = [
        f"<li><span>{html.escape(text) or '(empty)'}</span> <small>{log_prob:.2f}</small></li>"
        for text, log_prob in list(zip(example.captions, example.log_probs, strict=True))[1:]
        if log_prob > _NO_CANDIDATE
    ]
    if not others:
        return ""
    label = f"{len(others)} more caption{'s' * (len(others) > 1)}, with log P"
    return f"<details><summary>{label}</summary><ol>{''.join(others)}</ol></details>"

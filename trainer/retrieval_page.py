"""The part of a report about search: ranks, the curves of matches, and a few searches."""

import html
from collections.abc import Iterable

from trainer import plots, tables
from trainer.evaluation.retrieval import IMAGE_TO_TEXT, TEXT_TO_IMAGE, Ranking, SearchExample

_COLUMNS = {"r_1": "R@1", "r_5": "R@5", "r_10": "R@10", "median_rank": "Med r"}

# The paper's own models: dataset and features, sentence retrieval, image retrieval.
_PAPER = (
    ("Flickr8K, AlexNet", "14.5 37.2 48.5 11", "11.5 31.0 42.4 15"),
    ("Flickr30K, AlexNet", "18.4 40.2 50.9 10", "12.6 31.2 41.5 16"),
    ("Flickr30K, VggNet", "35.4 63.8 73.7 3", "22.8 50.7 63.1 5"),
    ("MS COCO, VggNet, 1,000 images", "41.0 73.0 83.5 2", "29.0 42.2 77.0 3"),
    ("IAPR TC-12, AlexNet", "20.9 43.8 54.4 8", "13.2 31.2 40.8 21"),
)


def section(ranks: Ranking) -> str:
    """The HTML of the section."""
    ours = "".join(
        tables.row(
            "own", name, [f"{row[key]:.1f}" for key in _COLUMNS], f"{row['queries']:,} queries"
        )
        for name, row in ranks.figures.items()
    )
    theirs = "".join(
        tables.row("other", direction, values.split(), name)
        for direction, place in ((TEXT_TO_IMAGE, 2), (IMAGE_TO_TEXT, 1))
        for name, values in ((row[0], row[place]) for row in _PAPER)
    )
    table = tables.table(list(_COLUMNS.values()), [("This run", ours), (tables.PAPER, theirs)])
    remark = (
        "Sentences are ranked by log P(s|I) &minus; log P(s); the rows differ in what stands for "
        "log P(s): the mean over sampled training images, the mean image, or nothing. "
        "Of an image's sentences the first one found counts. The ranks are exact, and took "
        f"{ranks.softmax_share:.1%} of the softmax rows of scoring every pair."
    )
    chart = plots.line_chart(
        "share of matches found",
        {
            TEXT_TO_IMAGE: ranks.curves[TEXT_TO_IMAGE],
            f"{IMAGE_TO_TEXT}, among the sentences of the 100 nearest images":
                ranks.curves[IMAGE_TO_TEXT],
        },
        over="percent retrieved",
        at="percent",
    )  # fmt: skip
    return (
        f'{table}<p class="remark">{remark}</p><div class="charts">{chart}</div>'
        f"{_searches('Images of a sentence', ranks.searches[TEXT_TO_IMAGE])}"
        f"{_searches('Sentences of an image', ranks.searches[IMAGE_TO_TEXT])}"
    )


def _searches(heading: str, searches: Iterable[SearchExample]) -> str:
    rows = ""
    for query, found in searches:
        items = "".join(
            f"<li>{'<b>' if right else ''}{html.escape(item)}{'</b>' if right else ''} "
            f"<small>{score:.2f}</small></li>"
            for item, score, right in found
        )
        rows += f"<div><dt>{html.escape(query)}</dt><dd><ol>{items}</ol></dd></div>"
    return f'<h3>{heading}</h3><dl class="words searches">{rows}</dl>' if rows else ""

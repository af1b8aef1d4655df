"""The figures that the paper prints: its own models' and those that it compares them with."""

import functools
import json
from typing import Any

from trainer.report import templates

PublishedRow = dict[str, Any]  # table, dataset, model, conditions, own, values as texts, and more


@functools.cache
def _all() -> tuple[PublishedRow, ...]:
    return tuple(json.loads((templates.HERE / "published.json").read_text(encoding="utf-8")))


def rows(table: str, dataset: str | None = None) -> list[PublishedRow]:
    """The rows of a table, in the paper's order; only those of a dataset where it is given."""
    chosen = [dict(row) for row in _all() if row["table"] == table]
    return [row for row in chosen if dataset is None or is_same(dataset, row["dataset"])]


def is_same(dataset: str, published: str) -> bool:
    """Whether a dataset's name, as ours are written, is one that the paper has: coco is MS COCO."""
    return bool(_plain(dataset)) and _plain(dataset) in _plain(published)


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()

"""The one in-memory form of a dataset that every reader returns."""

import collections
import dataclasses
import json
import random
from collections.abc import Sequence

from mrnn_tf import schema
from mrnn_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class CaptionedImage:
    """One image of a dataset with its captions; an image without captions is valid."""

    image_id: str
    split: str
    captions: tuple[str, ...]
    path: str | None = None


def cut_validation(listing: Sequence[CaptionedImage], count: int, seed: int) -> list:
    """The listing with `count` of its captioned training images, drawn by lot, as validation."""
    splits = collections.Counter(image.split for image in listing if image.captions)
    if splits[schema.VAL]:
        raise UserError(
            "`validation` is for a dataset without validation images: this one has some."
        )
    if count >= splits[schema.TRAIN]:
        has = f"the dataset has {splits[schema.TRAIN]} training images with captions"
        raise UserError(f"`validation` must leave images to train on: {has}; got {count}.")
    training = [i.image_id for i in listing if i.split == schema.TRAIN and i.captions]
    chosen = {*random.Random(seed).sample(training, count)}
    return [
        dataclasses.replace(image, split=schema.VAL) if image.image_id in chosen else image
        for image in listing
    ]


class Problems:
    """What is wrong with a dataset, by kind and name: reported, never silently dropped.

    The name is that of an image, or a file and its line.
    """

    def __init__(self):
        self._found = collections.defaultdict(list)  # kind -> (name, detail)

    def add(self, kind: str, name: str, detail: str = "") -> None:
        self._found[kind].append((name, detail))

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def counts(self) -> dict[str, int]:
        return {kind: len(found) for kind, found in sorted(self._found.items())}

    def names(self, kind: str) -> list[str]:
        return [name for name, _ in self._found.get(kind, ())]

    def sentences(self, examples: int = 3) -> list[str]:
        """One line a kind: how many, and the first few by name."""
        lines = []
        for kind in sorted(self._found):
            names = self.names(kind)
            more = ", ..." if len(names) > examples else ""
            lines.append(f"{len(names)} x {kind}: {', '.join(names[:examples])}{more}")
        return lines

    def json_lines(self) -> str:
        """All of them, one JSON object a line."""
        rows = (
            {"problem": kind, "name": name, "detail": detail}
            for kind, found in sorted(self._found.items())
            for name, detail in found
        )
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

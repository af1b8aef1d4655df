"""The one in-memory form of a dataset that every reader returns."""

import collections
import dataclasses


@dataclasses.dataclass(frozen=True)
class CaptionedImage:
    """One image of a dataset with its captions; an image without captions is valid."""

    image_id: str
    split: str
    captions: tuple[str, ...]
    path: str | None = None


class Problems:
    """What is wrong with a dataset, by kind and name: reported, never silently dropped."""

    def __init__(self):
        self._names = collections.defaultdict(list)

    def add(self, kind: str, name: str) -> None:
        self._names[kind].append(name)

    def __len__(self) -> int:
        return sum(len(names) for names in self._names.values())

    def counts(self) -> dict[str, int]:
        return {kind: len(names) for kind, names in sorted(self._names.items())}

    def names(self, kind: str) -> list[str]:
        return list(self._names.get(kind, ()))

    def sentences(self, examples: int = 3) -> list[str]:
        """One line a kind: how many, and the first few by name."""
        lines = []
        for kind, names in sorted(self._names.items()):
            more = ", ..." if len(names) > examples else ""
            lines.append(f"{len(names)} x {kind}: {', '.join(names[:examples])}{more}")
        return lines

"""N-best files: `[{"image_id": 1, "captions": ["a dog runs", ...], "log_probs": [-7.1, ...]}]`.

The best caption is first. A system that has no log-probabilities leaves them out. Ids are kept as
they are; 1 and "1" are the same image.
"""

import dataclasses
import math
from typing import Any

from mrnn_tf.errors import UserError
from mrnn_tf.metrics.coco import ImageId, once_each, read_captions

_WANTED = 'n-best lists are wanted, [{"image_id": 1, "captions": [...], "log_probs": [...]}, ...]'


@dataclasses.dataclass(frozen=True)
class NBest:
    """The hypotheses of an image, best first; there may be none."""

    captions: tuple[str, ...]
    log_probs: tuple[float, ...] | None = None


def read_n_best(path: str) -> dict[ImageId, NBest]:
    """The hypotheses of every image."""
    content = read_captions(path, _WANTED)
    if not isinstance(content, list):
        raise UserError(f"{path} holds no list: {_WANTED}.")
    if not content:
        raise UserError(f"{path} holds no images: there is nothing to rerank.")
    return once_each(path, "list", content, _entry)


def _entry(entry: Any, location: str) -> tuple[ImageId, NBest]:
    match entry:
        case {"image_id": int(image_id) | str(image_id), "captions": list(captions)}:
            pass
        case _:
            raise UserError(f"{location} has no `image_id` and `captions`: {_WANTED}.")
    if not all(isinstance(caption, str) for caption in captions):
        raise UserError(f"{location}: the `captions` of {image_id} must all be texts.")
    log_probs = entry.get("log_probs")
    if log_probs is None:
        return image_id, NBest(tuple(captions))
    numbers = isinstance(log_probs, list) and all(isinstance(p, int | float) for p in log_probs)
    if not numbers or len(log_probs) != len(captions) or not all(map(math.isfinite, log_probs)):
        raise UserError(f"{location}: `log_probs` must be a finite number for every caption.")
    return image_id, NBest(tuple(captions), tuple(map(float, log_probs)))

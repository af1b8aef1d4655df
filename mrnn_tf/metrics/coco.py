"""Captions in the file formats of COCO, which other tools read and write too.

References are `{"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": "a dog"}]}`,
results `[{"image_id": 1, "caption": "a dog"}]`. The id of an image is a number or a text and is
kept as it is; 1 and "1" are the same image.
"""

import collections
import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from mrnn_tf import schema
from mrnn_tf.checksums import check_beside
from mrnn_tf.errors import UserError
from mrnn_tf.files import read_json, write_json

ImageId = int | str
T = TypeVar("T")

_REFERENCES_WANTED = (
    'COCO captions are wanted, {"images": [{"id": 1}, ...], '
    '"annotations": [{"image_id": 1, "caption": "a dog"}, ...]}'
)
_RESULTS_WANTED = 'COCO results are wanted, [{"image_id": 1, "caption": "a dog"}, ...]'


def read_captions(path: str, wanted: str) -> Any:
    """The JSON of a file of captions, which is what `trainer.evaluate` wrote if that wrote it."""
    again = "evaluate again with `python -m trainer.evaluate`, or move the file if you edited it"
    check_beside(path, schema.SCORES_FILE, again)
    return read_json(path, wanted)


def read_references(path: str) -> dict[ImageId, list[str]]:
    """The captions of every listed image; an image without captions has an empty list."""
    content = read_captions(path, _REFERENCES_WANTED)
    match content:
        case {"images": list(images), "annotations": list(annotations)}:
            pass
        case _:
            raise UserError(f"{path} holds {_describe(content)}: {_REFERENCES_WANTED}.")
    if not images:
        raise UserError(f"{path} lists no images: there is nothing to compare with.")
    references, ids = {}, {}
    for index, image in enumerate(images):
        match image:
            case {"id": int(image_id) | str(image_id)}:
                references[ids.setdefault(str(image_id), image_id)] = []
            case _:
                raise UserError(f"{path}: images[{index}] is {_short(image)}: an id is wanted.")
    unknown = []
    for index, annotation in enumerate(annotations):
        image_id, caption = _captioned(annotation, f"{path}: annotations[{index}]")
        if str(image_id) in ids:
            references[ids[str(image_id)]].append(caption)
        else:
            unknown.append(image_id)
    if unknown:
        raise UserError(
            f"{path} has {len(unknown)} annotations of images that its `images` do not list: "
            f"{first_few(unknown)}."
        )
    return references


def read_results(path: str) -> dict[ImageId, str]:
    """The one caption of every image; it may be empty."""
    content = read_captions(path, _RESULTS_WANTED)
    if not isinstance(content, list):
        raise UserError(f"{path} holds {_describe(content)}: {_RESULTS_WANTED}.")
    if not content:
        raise UserError(f"{path} holds no results: there is nothing to score.")
    return once_each(path, "caption", content, _captioned)


def once_each(
    path: str, what: str, entries: list, parse: Callable[[Any, str], tuple[ImageId, T]]
) -> dict[ImageId, T]:
    """What the entries of a file say of every image; refuses one that comes twice."""
    pairs = [parse(entry, f"{path}: [{index}]") for index, entry in enumerate(entries)]
    counts = collections.Counter(str(image_id) for image_id, _ in pairs)
    twice = [image_id for image_id, count in counts.items() if count > 1]
    if twice:
        raise UserError(
            f"{path} has more than one {what} of {len(twice)} images, the first are "
            f"{first_few(twice)}: keep one {what} an image."
        )
    return dict(pairs)


def write_references(path: str, references: Mapping[ImageId, Sequence[str]]) -> None:
    """Writes captions as COCO's own tools read them."""
    pairs = [(image_id, text) for image_id, captions in references.items() for text in captions]
    annotations = [
        {"id": number, "image_id": image_id, "caption": caption}
        for number, (image_id, caption) in enumerate(pairs)
    ]
    images = [{"id": image_id} for image_id in references]
    write_json(path, {"images": images, "annotations": annotations})


def write_results(path: str, results: Mapping[ImageId, str]) -> None:
    """Writes one caption an image."""
    write_json(path, [{"image_id": key, "caption": caption} for key, caption in results.items()])


def first_few(image_ids: Collection[ImageId], count: int = 3) -> str:
    """The first ids for an error's sentence."""
    more = ["..."] if len(image_ids) > count else []
    return ", ".join([*map(str, itertools.islice(image_ids, count)), *more])


def _captioned(entry: Any, location: str) -> tuple[ImageId, str]:
    match entry:
        case {"image_id": int(image_id) | str(image_id), "caption": str(caption)}:
            return image_id, caption
    raise UserError(
        f"{location} is {_short(entry)}: an `image_id` and a text `caption` are wanted."
    )


def _describe(content: Any) -> str:
    if isinstance(content, dict):
        return f"an object with the keys {', '.join(list(content)[:5]) or '(none)'}"
    return "a list" if isinstance(content, list) else _short(content)


def _short(content: Any) -> str:
    try:
        text = json.dumps(content)
    except RecursionError:  # it was read with a little more room
        text = "nested too deeply"
    return text if len(text) <= 60 else f"{text[:60]}..."

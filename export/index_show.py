"""Two searches by a new index, for people: images for a sentence, and sentences for an image."""

import numpy as np
import tensorflow as tf

from export.index_parts import Images
from mrnn_tf import schema
from mrnn_tf.retrieval.index import Index

_RESULTS = 3


def show(directory: str, index: Index, images: Images) -> None:
    """Prints what the servable finds for a caption of an image, and for the image itself."""
    image_id, features, sentence = _example(images)
    loaded = tf.saved_model.load(directory)
    first_sentence = dict(zip(index.owners[::-1].tolist(), reversed(index.captions), strict=True))
    captions = {image: first_sentence.get(row, b"") for row, image in enumerate(index.ids)}

    found = loaded.signatures[schema.SEARCH_IMAGES](sentences=tf.constant([sentence]))
    print(f"\nimages for {_text(sentence)!r}:")
    for score, image in _best(found, schema.IDS):
        print(f"{score:9.3f}  {_text(image)}  {_text(captions[image])}")

    found = loaded.signatures[schema.SEARCH_SENTENCES](features=tf.constant(features))
    print(f"\nsentences for {_text(image_id)}:")
    for score, image, text in _best(found, schema.IDS, schema.SENTENCES):
        print(f"{score:9.3f}  {_text(image)}  {_text(text)}")
    print()


def _example(images: Images) -> tuple[bytes, np.ndarray, bytes]:
    """An image of the last split with its features [1, D], and one of its captions."""
    *_, split = images.info.splits
    for ids, features, captions in images.batches(images.shards(split)):
        for row, of_image in enumerate(captions):
            if of_image:
                return ids[row], features[row : row + 1], of_image[0]
    raise ValueError(f"--show: no image of the split {split!r} has a caption to search by.")


def _best(found: dict[str, tf.Tensor], *names: str) -> list[tuple]:
    columns = [found[name][0, :_RESULTS].numpy().tolist() for name in (schema.SCORES, *names)]
    rows = zip(*columns, strict=True)
    return [row for row in rows if row[0] > np.float32(schema.MISSING_LOG_PROB)]


def _text(content: bytes) -> str:
    return content.decode(errors="replace")

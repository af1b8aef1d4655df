"""Two searches by a new index, for people: images for a sentence, and sentences for an image."""

import numpy as np
import tensorflow as tf

from export.index_parts import Images
from mrnn_tf import schema
from mrnn_tf.retrieval.index import Index

_RESULTS = 3


def show(directory: str, sentence: str, index: Index, images: Images | None) -> None:
    """Prints which images the servable finds for a sentence, and which sentences for the first."""
    loaded = tf.saved_model.load(directory)
    first_sentence = dict(zip(index.owners[::-1].tolist(), reversed(index.captions), strict=True))
    captions = {image: first_sentence.get(row, b"") for row, image in enumerate(index.ids)}

    found = _best(loaded.signatures[schema.SEARCH_IMAGES](tf.constant([sentence])), schema.IDS)
    print(f"\nimages for {sentence!r}:")
    for score, image in found:
        print(f"{score:9.3f}  {_text(image)}  {_text(captions[image])}")
    if not found:
        print("nothing: the model knows none of its words.")

    features = _features(images, found[0][1]) if images and found else None
    if features is not None:
        print(f"\nsentences for {_text(found[0][1])}:")
        answer = loaded.signatures[schema.SEARCH_SENTENCES](tf.constant(features))
        for score, image, text in _best(answer, schema.IDS, schema.SENTENCES):
            print(f"{score:9.3f}  {_text(image)}  {_text(text)}")
    print()


def _features(images: Images, wanted: bytes) -> np.ndarray | None:
    """The features [1, D] of an image; `None` where the dataset does not hold it."""
    for split in images.info.splits:
        for ids, features, _ in images.batches(images.shards(split)):
            if wanted in ids:
                return features[[ids.index(wanted)]]
    return None


def _best(found: dict[str, tf.Tensor], *names: str) -> list[tuple]:
    columns = [found[name][0, :_RESULTS].numpy().tolist() for name in (schema.SCORES, *names)]
    rows = zip(*columns, strict=True)
    return [row for row in rows if row[0] > np.float32(schema.MISSING_LOG_PROB)]


def _text(content: bytes) -> str:
    return content.decode(errors="replace")

"""Two searches by a new index, for people: images for a sentence, and sentences for an image."""

import numpy as np
import tensorflow as tf

from export.index_signatures import IndexServable
from mrnn_tf import schema

_RESULTS = 3


def show(servable: IndexServable, sentence: str) -> None:
    """Prints the images that a sentence finds, and the sentences that the first of them finds."""
    index = servable.index
    print(f"\nimages for {sentence!r}:")
    images = _results(servable.search_images(tf.constant([sentence])), schema.IDS)
    names = [_text(image_id) for image_id in index.ids]
    rows = [names.index(image_id) for _, image_id in images]
    for row, (score, image_id) in zip(rows, images, strict=True):
        own = np.flatnonzero(index.owners == row)
        print(f"{score:9.3f}  {image_id}  {_text(index.captions[own[0]]) if len(own) else ''}")
    if not images:
        print("nothing: the model knows none of its words.")
    elif len(index.captions):
        print(f"\nsentences for {images[0][1]}:")
        answer = servable.sentences_of(tf.constant(index.images[rows[:1]]))
        for score, image_id, text in _results(answer, schema.IDS, schema.SENTENCES):
            print(f"{score:9.3f}  {image_id}  {text}")
    print()


def _results(answer: dict[str, tf.Tensor], *names: str) -> list[tuple]:
    """Scores and texts of the first results of one query."""
    scores = answer[schema.SCORES][0, :_RESULTS].numpy().tolist()
    texts = [map(_text, answer[name][0, :_RESULTS].numpy()) for name in names]
    results = zip(scores, *texts, strict=True)
    return [row for row in results if row[0] > np.float32(schema.MISSING_LOG_PROB)]


def _text(content: bytes) -> str:
    return content.decode(errors="replace")

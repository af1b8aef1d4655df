"""A vector database beside the served index: the same ten, and what a query costs in both.

    python -m export.task --job_dir runs/paper --output models/mrnn
    python -m export.index --model models/mrnn --data data/flickr8k --output models/mrnn_index
    python -m export.index --model models/mrnn --data data/flickr8k --store milvus --uri photos.db
    python benchmarks/store.py --model models/mrnn --index models/mrnn_index --uri photos.db \\
        --queries captions.txt

Both hold the same images; the queries are sentences, one a line. Both searches run in this process,
in turns, one query at a time, and the best round counts.

- How many of the index's ten the store finds, with shortlists of several lengths.
- How many of the exact ten it finds, which scoring every image gives.
- The time of a query, by the parts of it: the vector, the shortlist, the scores.
"""

import time
from collections.abc import Mapping

import numpy as np
import timing
from absl import app, flags

from mrnn_tf import schema
from mrnn_tf.captioner import Captioner
from mrnn_tf.photo_index import Match, PhotoIndex
from mrnn_tf.retrieval import stored
from mrnn_tf.retrieval.milvus import MilvusStore

_MODEL = flags.DEFINE_string("model", None, "A version of the model.", required=True)
_INDEX = flags.DEFINE_string("index", None, "A version of its index.", required=True)
_URI = flags.DEFINE_string("uri", None, "The store with the same images.", required=True)
_QUERIES = flags.DEFINE_string("queries", None, "A file of sentences, one a line.", required=True)
_COUNT = flags.DEFINE_integer("count", 100, "Sentences to search by.")
_EXACT = flags.DEFINE_integer("exact", 10, "Sentences to score every image by; 0: none.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds; the best one counts.")
_K = 10


def main(_) -> None:
    with open(_QUERIES.value) as file:
        sentences = file.read().splitlines()[: _COUNT.value]
    captioner = Captioner.load(_MODEL.value)
    index = PhotoIndex.load(_INDEX.value, captioner)
    with MilvusStore.open(_URI.value) as store:
        _compare(store, captioner, index, sentences)


def _compare(
    store: MilvusStore, captioner: Captioner, index: PhotoIndex, sentences: list[str]
) -> None:
    count, seconds = store.count(), dict.fromkeys(("vector", "scores"), 0.0)
    size = stored.shortlist_size(count)

    def predict(signature: str, inputs: Mapping) -> Mapping[str, np.ndarray]:
        began = time.perf_counter()
        outputs = captioner.predict(signature, inputs)
        part = "vector" if signature == schema.SENTENCE_VECTOR else "scores"
        seconds[part] += time.perf_counter() - began
        return outputs

    def search(queries: list[str], shortlist: int) -> list[list[str]]:
        hits = stored.search(store, predict, queries, _K, shortlist=shortlist)
        return [[image_id for image_id, _ in own] for own in hits]

    print(f"{count:,} images, {len(sentences)} queries, a shortlist of {size} by default")
    served = [_ids(own) for own in index.search(sentences, _K)]
    for shortlist in (size // 2, size, 2 * size, 4 * size):
        found = search(sentences, shortlist)
        same = np.mean([a == b for a, b in zip(found, served, strict=True)])
        print(
            f"  shortlist {shortlist}: {_recall(found, served):.1%} of the index's ten, the very "
            f"same ten in {same:.0%} of the queries"
        )
    if _EXACT.value:
        asked = sentences[: _EXACT.value]
        exact, own = search(asked, count), search(asked, size)
        print(
            f"  the exact ten of {len(asked)} queries: {_recall(own, exact):.1%} in the store, "
            f"{_recall(served[: len(asked)], exact):.1%} in the index"
        )
    sides = {
        "index": lambda: [index.search(sentence, _K) for sentence in sentences[:20]],
        "store": lambda: [search([sentence], size) for sentence in sentences[:20]],
    }
    best = timing.best_seconds(sides, _ROUNDS.value)
    seconds.update(dict.fromkeys(seconds, 0.0))
    began = time.perf_counter()
    sides["store"]()
    whole = time.perf_counter() - began
    parts = ", ".join(f"{part} {taken / whole:.0%}" for part, taken in seconds.items())
    print(
        f"a query in the store takes {best['store'] / best['index']:.1f} times as long as in the "
        f"index ({1e3 * best['index'] / 20:.0f} ms): {parts}, and the shortlist the rest"
    )


def _ids(matches: list[Match]) -> list[str]:
    return [match.path for match in matches]


def _recall(found: list[list[str]], wanted: list[list[str]]) -> float:
    return float(np.mean([len({*a} & {*b}) / len(b) for a, b in zip(found, wanted, strict=True)]))


if __name__ == "__main__":
    app.run(main)

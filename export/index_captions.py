"""Captions of images, ranked by their consensus with the captions of near images in an index."""

import numpy as np
import tensorflow as tf

from export.signatures import Servable, Settings, or_nothing
from mrnn_tf import schema
from mrnn_tf.retrieval.consensus_graph import ConsensusGraph, arrays
from mrnn_tf.retrieval.index import Index
from mrnn_tf.retrieval.ngrams import Corpus
from mrnn_tf.run import Run

NOT_CAPTIONED = -1


class Reranker:
    """A beam search and the captions that its sentences are compared with.

    Args:
        run: Run.
        index: Index.
        settings: Settings, of the beam search.

    Attributes:
        numbers: int32 [I], the number of an image in the corpus, or `NOT_CAPTIONED`.
        corpus: Corpus, of the images that have captions.
        graph: ConsensusGraph, which a SavedModel must own.
    """

    def __init__(self, run: Run, index: Index, settings: Settings):
        self._captioner = Servable(run, None, settings)
        order = np.argsort(index.owners, kind="stable")
        order = order[index.owners[order] >= 0]
        rows, first = np.unique(index.owners[order], return_index=True)
        texts = np.array([each.decode(errors="replace") for each in index.captions], object)
        self.corpus = Corpus.of([texts[some] for some in np.split(order, first[1:])][: len(rows)])
        self.numbers = np.full(len(index.images), NOT_CAPTIONED, np.int32)
        self.numbers[rows] = np.arange(len(rows))
        self.graph = ConsensusGraph(self.corpus.words, arrays(self.corpus))

    def captions(self, features: tf.Tensor, neighbours: tf.Tensor) -> dict[str, tf.Tensor]:
        """Captions [B, N] of images, ranked by the captions of the neighbours [B, k]."""
        found = self._captioner.best_sentences(or_nothing(features))
        captions = self._captioner.vocabulary.sentences(found.ids)
        there = found.log_probs > schema.MISSING_LOG_PROB
        scores = tf.where(there, self.graph.scores(captions, neighbours), schema.MISSING_LOG_PROB)
        scores, order = tf.math.top_k(scores, scores.shape[1])
        return {
            schema.CAPTIONS: tf.gather(captions, order, batch_dims=1),
            schema.LOG_PROBS: tf.gather(found.log_probs, order, batch_dims=1),
            schema.CONSENSUS: scores,
        }

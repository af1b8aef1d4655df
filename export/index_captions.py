"""Captions of images, ranked by their consensus with the captions of near images in an index."""

import numpy as np
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.config import BeamSearch
from mrnn_tf.consensus.neighbours import Neighbourhood
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.reranking import consensus
from mrnn_tf.consensus.similarity import CiderD
from mrnn_tf.inference import Inference
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval.index import Index
from mrnn_tf.run import Run

FEWEST = 2  # captioned images; of fewer there is nothing to whiten


class Reranker(tf.Module):
    """A beam search and the captions that its sentences are compared with.

    Near are those images whose refined features, whitened, are near, and the nearer ones count
    more: the way that reranked best on Flickr8k.

    Args:
        run: Run.
        index: Index, with `FEWEST` captioned images at least.
        search: BeamSearch.
        neighbours: int. Near images that count.

    Attributes:
        captioned: int [C], the images that have captions.
        corpus: Corpus, of their captions.
        neighbourhood: Neighbourhood, of their refined features.
    """

    def __init__(self, run: Run, index: Index, search: BeamSearch, neighbours: int):
        super().__init__(name="reranker")
        self._captioner = [Inference(run, None, search)]  # a list hides what others own
        order = np.argsort(index.owners, kind="stable")
        order = order[index.owners[order] >= 0]
        self.captioned, first = np.unique(index.owners[order], return_index=True)
        texts = np.array([each.decode(errors="replace") for each in index.captions], object)
        self.corpus = Corpus.of([texts[some] for some in np.split(order, first[1:])])
        self._cider = CiderD(self.corpus)
        self.neighbourhood = Neighbourhood(scaled_tanh(index.images[self.captioned]).numpy())
        self._neighbours = neighbours

    def captions(self, features: tf.Tensor, refined: tf.Tensor) -> dict[str, tf.Tensor]:
        """Captions [B, N] of images, given their features [B, D] and the refined ones [B, M]."""
        [captioner] = self._captioner
        found = captioner.best_sentences(features)
        captions = captioner.vocabulary.sentences(found.ids)
        there = found.log_probs > schema.MISSING_LOG_PROB
        near = self.neighbourhood.near(refined, self._neighbours)
        scores = consensus(self._cider, captions, near)
        scores = tf.where(there, scores, schema.MISSING_LOG_PROB)
        scores, order = tf.math.top_k(scores, scores.shape[1])
        return {
            schema.CAPTIONS: tf.gather(captions, order, batch_dims=1),
            schema.LOG_PROBS: tf.gather(found.log_probs, order, batch_dims=1),
            schema.CONSENSUS: scores,
        }

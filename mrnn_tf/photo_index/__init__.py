"""Search among indexed photographs: an index as a Python object."""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import schema, versions
from mrnn_tf.captioner import (
    Captioner,
    Images,
    Signature,
    Unreadable,
    check_count,
    feature_size,
    fingerprints,
    load_signatures,
)
from mrnn_tf.errors import UserError
from mrnn_tf.fingerprints import check_together
from mrnn_tf.photos import Photo
from mrnn_tf.retrieval import milvus
from mrnn_tf.text import Vocabulary


@dataclasses.dataclass(frozen=True)
class Match:
    """An image of an index, by its id there: for photographs of a folder their path.

    `words` are what the words of a prefix add to the score, in their order; else it is empty.
    """

    path: str
    score: float
    words: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class SentenceMatch:
    """A sentence of an index; `path` is the image it was written for, or empty."""

    text: str
    path: str
    score: float


@dataclasses.dataclass(frozen=True)
class RerankedCaption:
    """A caption with its consensus with the captions of similar images."""

    text: str
    log_prob: float
    consensus: float


class PhotoIndex:
    """Finds images by sentences, sentences by images, and similar images.

    `signatures` are those of a SavedModel that `export.index` made. A captioner encodes images;
    without it they are given as features.

    >>> index = mrnn_tf.PhotoIndex.load(index_version)
    >>> index.search("a red picture", k=1)
    [Match(path='...', score=-..., words=())]
    >>> index.similar(photo, k=1)
    [Match(path='...', score=..., words=())]
    """

    def __init__(
        self,
        signatures: dict[str, Signature],
        captioner: Captioner | None = None,
        vocabulary: Vocabulary | None = None,
    ):
        self._signatures, self._vocabulary = signatures, vocabulary
        own = Images(feature_size(signatures[schema.SIMILAR_IMAGES]))
        self._images = captioner.images if captioner else own
        if self._images.feature_size != own.feature_size:
            raise UserError(
                f"`captioner` makes {self._images.feature_size} features, but the index was made "
                f"of {own.feature_size}: load the model that the index was made with."
            )
        if captioner:
            check_together(captioner.fingerprints, fingerprints(signatures))

    @classmethod
    def load(cls, path: str | os.PathLike, captioner: Captioner | None = None) -> "PhotoIndex":
        """Loads a version of an index, `models/mrnn_index/1`, or the newest of a folder of them.

        The captioner is that of the model that the index was made with; by default of the model
        `mrnn` that lies beside the index, where there is one. The address of a store, `photos.db`
        or `http://host:19530`, gives a `StoredPhotoIndex`. What `build` made gives a `FolderIndex`;
        it knows its model.
        """
        from mrnn_tf.photo_index import catalogue, folder, stored  # which import this module

        path = os.fspath(path)
        if milvus.is_address(path):
            return stored.StoredPhotoIndex(path, captioner)
        if catalogue.exists(path):
            return folder.FolderIndex(path, captioner)
        version = versions.newest(path)
        if version is None:
            raise UserError(f"{path} holds no index that `python -m export.index` made.")
        signatures = load_signatures(version, schema.SEARCH_IMAGES)
        if captioner is None:
            models = os.path.dirname(os.path.dirname(version.rstrip("/")))
            beside = versions.newest(tf.io.gfile.join(models, schema.MODEL))
            captioner = Captioner.load(beside) if beside else None
        words = tf.io.gfile.join(version, "assets", schema.VOCABULARY_FILE)
        return cls(signatures, captioner, Vocabulary.load(words))

    @classmethod
    def build(
        cls, path: str | os.PathLike, folder: str | os.PathLike, captioner: Captioner | None = None
    ) -> "PhotoIndex":
        """Makes or updates an index of the photographs in a folder and below.

        The index is written to `path`, which may lie anywhere; nothing is written to the folder.
        Stopped at any moment, the same call goes on where it was. By default the captioner is that
        of an index that is there already, or else the default pretrained model.

        >>> photos = mrnn_tf.PhotoIndex.build(tmp_path / "index", photo.parent, captioner)
        >>> photos.changes
        Changes(added=1, changed=0, moved=0, removed=0, unreadable=0)
        >>> photos.search("a red picture", k=1)
        [Match(path='...photo.png', score=-..., words=())]
        """
        from mrnn_tf.photo_index.folder import FolderIndex  # which imports this module

        return FolderIndex.build(path, folder, captioner)

    def unknown_words(self, sentence: str) -> list[str]:
        """The words of a sentence that the index does not know: those alone find nothing.

        >>> mrnn_tf.PhotoIndex.load(index_version).unknown_words("red qwertz")
        ['qwertz']
        """
        if self._vocabulary is None:
            raise UserError("`vocabulary` is needed to tell which words are unknown: use `load`.")
        return self._vocabulary.unknown(sentence)

    def search(
        self, sentences: str | Sequence[str], k: int | None = None, *, exact: bool = False
    ) -> list[Match] | list[list[Match]]:
        """The images with the highest log P(sentence | image), best first.

        A list of sentences gives a list of results. A sentence without a word that the model knows,
        or with more words than the index reads (200 by default), finds nothing; `unknown_words`
        tells the former. An exact search is slower, and misses none of the best.
        """
        queries = [sentences] if isinstance(sentences, str) else list(sentences)
        signature = self._newer(schema.SEARCH_IMAGES_EXACT) if exact else schema.SEARCH_IMAGES
        results = self._run(signature, Match, k, sentences=tf.constant(queries, tf.string))
        return results[0] if isinstance(sentences, str) else results

    def search_prefix(self, prefix: str, k: int | None = None) -> list[Match]:
        """The images that fit the first words of a sentence best, with the score of every word."""
        outputs = self._signatures[self._newer(schema.SEARCH_PREFIX)](prefix=tf.constant([prefix]))
        ids, scores, words = (
            outputs[name][0].numpy() for name in (schema.IDS, schema.SCORES, schema.WORD_SCORES)
        )
        check_count("k", k, len(ids))
        return [
            Match(_plain(path), float(score), tuple(np.trim_zeros(own, "b").tolist()))
            for path, score, own in zip(ids, scores, words, strict=True)
            if score > schema.MISSING_LOG_PROB / 2
        ][:k]

    def sentences(
        self, images: Photo | Sequence[Photo], k: int | None = None
    ) -> list[SentenceMatch] | list[list[SentenceMatch] | Unreadable]:
        """The sentences with the highest log P(s | image) - log P(s), best first."""
        return self._about(images, schema.SEARCH_SENTENCES, SentenceMatch, k)

    def similar(
        self, images: Photo | Sequence[Photo], k: int | None = None
    ) -> list[Match] | list[list[Match] | Unreadable]:
        """The nearest images by refined features; the score is minus their distance."""
        return self._about(images, schema.SIMILAR_IMAGES, Match, k)

    def rerank(
        self, images: Photo | Sequence[Photo], k: int | None = None
    ) -> list[RerankedCaption] | list[list[RerankedCaption] | Unreadable]:
        """Captions of images, those first that say what the captions of similar images say."""
        if schema.CAPTION_RERANKED not in self._signatures:
            raise UserError("The index has too few captioned images to rerank captions by.")
        return self._about(images, schema.CAPTION_RERANKED, RerankedCaption, k)

    def _newer(self, signature: str) -> str:
        """A signature that indexes of earlier releases do not have."""
        if signature not in self._signatures:
            raise UserError(
                f"The index has no signature `{signature}`: make it again with `python -m "
                "export.index`."
            )
        return signature

    def _about(self, images, signature: str, result: type, k: int | None) -> list:
        def ask(features: np.ndarray, _) -> list[list]:
            return self._run(signature, result, k, features=tf.constant(features))

        return self._images.answer(images, ask)

    def _run(self, signature: str, result: type, k: int | None, **inputs) -> list[list]:
        """The results of every query; what stands for a missing one is left out."""
        outputs = self._signatures[signature](**inputs)
        columns = [outputs[name].numpy() for name in _COLUMNS[result]]
        check_count("k", k, columns[0].shape[1])
        return [
            [
                result(*map(_plain, row))
                for row in zip(*query, strict=True)
                if row[-1] > schema.MISSING_LOG_PROB / 2
            ][:k]
            for query in zip(*columns, strict=True)
        ]


def _plain(value: bytes | np.floating) -> str | float:
    return value.decode(errors="replace") if isinstance(value, bytes) else float(value)


# The outputs of a signature that the fields of a result come from; the last one is its rank.
_COLUMNS = {
    Match: (schema.IDS, schema.SCORES),
    SentenceMatch: (schema.SENTENCES, schema.IDS, schema.SCORES),
    RerankedCaption: (schema.CAPTIONS, schema.LOG_PROBS, schema.CONSENSUS),
}

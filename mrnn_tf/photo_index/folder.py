"""Search among the photographs of a folder, which an index on disk keeps up with."""

import functools
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mrnn_tf import files, pretrained, schema
from mrnn_tf.captioner import Captioner, load_run
from mrnn_tf.config import MAX_TEXT_WORDS, SAMPLE_SIZE
from mrnn_tf.consensus.neighbours import RefinedSearch
from mrnn_tf.errors import UserError
from mrnn_tf.fingerprints import COMPARED
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.photo_index import Match, PhotoIndex, indexing
from mrnn_tf.photo_index import catalogue as catalogues
from mrnn_tf.photo_index.catalogue import Catalogue
from mrnn_tf.photo_index.indexing import Changes, Watch
from mrnn_tf.photos import Photo
from mrnn_tf.retrieval.centres import Centres
from mrnn_tf.retrieval.marginal import sample_rows
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.search import BY_COUNT, NOTHING, Searcher, listed
from mrnn_tf.retrieval.sentences import pad

K = 10  # results by default
_FOLDER, _MODEL = "folder", "name"


class FolderIndex(PhotoIndex):
    """An index of the photographs in a folder: see `PhotoIndex.build`.

    Paths of results are absolute. Around the photographs themselves sentences are expanded (see
    `retrieval.centres`), so that no training image is needed.

    Attributes:
        changes: what the last `update` found.
    """

    def __init__(self, path: str | os.PathLike, captioner: Captioner | None = None):
        self.path, self.changes, self._given = os.fspath(path), Changes(), captioner
        with Catalogue(self.path) as catalogue:
            self.about = catalogue.about
        self.folder = self.about[_FOLDER]
        self._run = captioner.run if captioner else load_run(self.about[_MODEL])
        _check_model(self.path, self._run.fingerprints, self.about)
        self._vocabulary, self._scorer = self._run.vocabulary, Scorer(self._run.network.model)

    @classmethod
    def build(
        cls, path: str | os.PathLike, folder: str | os.PathLike, captioner: Captioner | None = None
    ) -> "FolderIndex":
        index = cls.open(path, folder, captioner)
        index.update()
        return index

    @classmethod
    def open(
        cls, path: str | os.PathLike, folder: str | os.PathLike, captioner: Captioner | None = None
    ) -> "FolderIndex":
        """The index of a folder as it is; an empty one is made where there is none."""
        path, folder = os.fspath(path), os.path.realpath(folder)
        if not os.path.isdir(folder):
            raise UserError(f"`folder` {folder} is no folder.")
        if not catalogues.exists(path):
            if not indexing.list_photos(folder).files:
                raise UserError(f"`folder` {folder} holds no photographs.")
            captioner = captioner or Captioner.load()
            size = Scorer(captioner.run.network.model).model.multimodal_size
            about = {_FOLDER: folder, _MODEL: pretrained.label(captioner.model)}
            with files.alone_in(path):
                Catalogue.create(path, {**captioner.run.fingerprints, **about}, size)
        index = cls(path, captioner)
        if index.folder != folder:
            raise UserError(f"{path} is the index of {index.folder}, not of {folder}.")
        return index

    def update(self, watch: Watch = lambda done, total: True) -> Changes:
        """Looks for new, changed, moved and removed photographs, and at no other.

        `watch` is told how many photographs of how many are done; where its answer is false, the
        update stops, and the next one goes on.
        """
        if not os.path.isdir(self.folder):
            raise UserError(f"{self.folder} is no folder any more: the index stays as it was.")
        with files.alone_in(self.path), Catalogue(self.path, is_writing=True) as catalogue:
            encode = lambda contents: self._images.encode(contents)  # noqa: E731  when needed
            project = self._scorer.project
            self.changes = indexing.update(catalogue, self.folder, encode, project, watch)
        for name in ("_contents", "_searcher", "_similar"):
            self.__dict__.pop(name, None)
        return self.changes

    def __len__(self) -> int:
        return len(self._contents[0])

    def paths(self) -> list[str]:
        """The paths of the photographs that can be found, sorted."""
        return sorted(map(self._absolute, self._contents[0]))

    def unreadable(self) -> dict[str, str]:
        """The paths of the photographs that could not be read, with the reasons."""
        with Catalogue(self.path) as catalogue:
            return {self._absolute(p): p.reason for p in catalogue.photos() if p.row is None}

    def search(
        self, sentences: str | Sequence[str], k: int | None = None, *, exact: bool = False
    ) -> list[Match] | list[list[Match]]:
        """As `PhotoIndex.search`; `k` is free here."""
        queries = [sentences] if isinstance(sentences, str) else list(sentences)
        ids, is_short = self._vocabulary.short_ids(tf.constant(queries, tf.string), MAX_TEXT_WORDS)
        words = pad(tf.ragged.boolean_mask(ids, is_short).to_list())
        found = iter(self._find(words, k, exact))
        results = [next(found)[0] if is_read else [] for is_read in is_short.numpy()]
        return results[0] if isinstance(sentences, str) else results

    def search_prefix(self, prefix: str, k: int | None = None) -> list[Match]:
        """As `PhotoIndex.search_prefix`."""
        ids, is_short = self._vocabulary.short_ids(tf.constant([prefix]), MAX_TEXT_WORDS)
        words = ids.to_tensor(schema.PAD_ID).numpy()
        if not is_short[0] or not words.size:
            return []
        [(matches, rows)] = self._find(words, k)
        if not matches:
            return []
        scores = self._searcher.word_scores(words, tf.constant([rows], tf.int32)).numpy()[0]
        return [
            Match(match.path, match.score, tuple(own.tolist()))
            for match, own in zip(matches, scores, strict=True)
        ]

    def similar(self, images: Photo | Sequence[Photo], k: int | None = None) -> list:
        """As `PhotoIndex.similar`."""
        return self._images.answer(images, lambda features, _: self._nearest(features, k))

    def sentences(self, images: Photo | Sequence[Photo], k: int | None = None) -> list:
        """Refused: photographs of a folder have no captions."""
        return self._refuse()

    def rerank(self, images: Photo | Sequence[Photo], k: int | None = None) -> list:
        """Refused: photographs of a folder have no captions."""
        return self._refuse()

    def _refuse(self) -> list:
        raise UserError(
            "The photographs of a folder have no captions to find: load an index that "
            "`python -m export.index` made of captioned images."
        )

    def _find(
        self, words: np.ndarray, k: int | None, exact: bool = False
    ) -> list[tuple[list[Match], list[int]]]:
        """The matches of every query int [Q, T], and their rows."""
        k = _checked(k)
        if not len(self) or not len(words):
            return [([], []) for _ in words]
        hits = self._searcher.search_images(words, k, None if exact else BY_COUNT)
        results = []
        for found in hits.found():
            rows = [row for row, _ in found]
            results.append(([self._match(row, score) for row, score in found], rows))
        return results

    def _nearest(self, features: np.ndarray, k: int | None) -> list[list[Match]]:
        k = _checked(k)
        if not len(self):
            return [[] for _ in features]
        refined = scaled_tanh(self._scorer.project(features))
        count = listed(len(self), k, BY_COUNT)
        near, far = self._similar.candidates(refined, max(10 * k, count))
        return [
            [
                self._match(row, -distance)
                for row, distance in zip(rows, distances, strict=True)
                if row != NOTHING
            ]
            for rows, distances in zip(
                near[:, :k].numpy().tolist(), far[:, :k].numpy().tolist(), strict=True
            )
        ]

    def _match(self, row: int, score: float) -> Match:
        return Match(self._absolute(self._contents[0][row]), score)

    def _absolute(self, photo: catalogues.Photo) -> str:
        return os.path.join(self.folder, os.fsdecode(photo.path))

    @functools.cached_property
    def _captioner(self) -> Captioner:
        return self._given or Captioner.load(self.about[_MODEL])

    @property
    def _images(self):
        return self._captioner.images

    @functools.cached_property
    def _contents(self) -> tuple[list[catalogues.Photo], np.ndarray]:
        """The photographs and their projections [I, M]."""
        with Catalogue(self.path) as catalogue:
            return catalogue.read()

    @functools.cached_property
    def _searcher(self) -> Searcher:
        images = self._contents[1]
        sample = images[sample_rows(len(images), SAMPLE_SIZE, seed=0)]
        return Searcher(self._scorer, Centres.of(sample), images)

    @functools.cached_property
    def _similar(self) -> RefinedSearch:
        return RefinedSearch(self._searcher.arrays["images"])


def _checked(k: int | None) -> int:
    if k is not None and k < 1:
        raise UserError(f"`k` must be 1 at least; got {k}.")
    return K if k is None else k


def _check_model(path: str, model: dict[str, str], about: dict[str, str]) -> None:
    """Refuses another model than the one that the index was made with."""
    if any(model[key] != about[key] for key in COMPARED):
        raise UserError(
            f"{path} was made with another model ({about[_MODEL]}, {about[COMPARED[0]]:.12}; this "
            f"one is {model[COMPARED[0]]:.12}): load it with that one, or delete it and make it "
            "again."
        )

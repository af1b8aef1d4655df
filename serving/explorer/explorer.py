"""What the page asks, answered as JSON values: by a server or a model here, and by the folder."""

import math
import os
import stat
from collections.abc import Sequence

import grpc
import numpy as np
import tensorflow as tf
from starlette.exceptions import HTTPException

from mrnn_tf import schema, text
from mrnn_tf.captioner import Captioner
from mrnn_tf.config import MAX_TEXT_WORDS
from mrnn_tf.errors import UserError
from mrnn_tf.escape import printable
from mrnn_tf.fingerprints import check_together
from mrnn_tf.photo_index import Match, indexing
from mrnn_tf.photo_index.folder import FolderIndex
from serving.answers import Row
from serving.channel import MissingSignatureError, ServingError
from serving.client import Client
from serving.explorer.inside import Inside
from serving.explorer.photographs import FOUND, Photographs
from serving.explorer.pictures import Pictures, Recent, photo_name

MAX_CHARACTERS = 2000  # of a text that is typed
_PAGE = 60  # photographs that are shown at once where nothing is searched for
_KNOWN_WORDS = 10_000  # that are remembered
_AVAILABLE = "AVAILABLE"


class Explorer:
    """Answers the page.

    Args:
        client: Client of a server, or `InProcess`.
        captioner: Captioner of the same model, where it is here.
        photographs: Photographs that are indexed here; `None` without a captioner.
        folder: str. The folder of the images of the served index, where none is indexed here.
    """

    def __init__(
        self,
        client: Client,
        captioner: Captioner | None = None,
        photographs: Photographs | None = None,
        folder: str | None = None,
    ):
        self.client, self.captioner, self.photographs = client, captioner, photographs
        self.pictures = Pictures(self._encode, self.folder)
        self.inside = Inside(client, captioner)
        self._folder, self._words = folder, Recent(_KNOWN_WORDS)
        self._versions: dict | None = None  # that were served last
        self._mismatch = ""  # why the index is not of the model

    @property
    def _index(self) -> FolderIndex | None:
        """What can be searched of the folder now; an empty one is there, and false."""
        return self.photographs.index if self.photographs else None

    def folder(self) -> str | None:
        """The folder of the photographs that are shown."""
        return (self.photographs and self.photographs.folder) or self._folder

    def state(self) -> dict:
        """Who answers, and how far the photographs are indexed."""
        server = {"address": self.client.server, "is_here": self.captioner is not None}
        try:
            versions = self.client.status()
            is_served = _AVAILABLE in versions[schema.MODEL].values()
            if is_served and versions != self._versions:
                self._take(versions)
            none = f"{self.client.server} serves no model yet."
            server["error"] = self._mismatch if is_served else none
        except ServingError as error:
            versions, server["error"] = {}, str(error)
        server["versions"] = versions
        has_index = _AVAILABLE in versions.get(schema.INDEX, {}).values()
        has_photographs = self._index is not None
        return {
            "server": server,
            "has_index": has_index,
            "can_search": has_index or has_photographs,
            "can_index": self.photographs is not None,
            "photographs": self.photographs.state() if self.photographs else None,
        }

    def _take(self, versions: dict) -> None:
        """Forgets what other versions said, and compares the model and the index."""
        if self._versions is not None:
            self.pictures.forget()
            self._words.clear()
        self._mismatch = ""
        if _AVAILABLE in versions[schema.INDEX].values():
            try:
                check_together(*map(self.client.fingerprints, (schema.MODEL, schema.INDEX)))
            except UserError as error:
                self._mismatch = str(error)
        self._versions = versions

    def captions(self, picture: str, prefix: str) -> dict:
        """The captions of a picture that begin with some words, before and after reranking."""
        features = self.pictures.features(picture)[np.newaxis]
        [row] = self.client.beam(features, [_checked(prefix)])
        captions = _captions(row)
        if not captions:
            raise UserError(f"The beginning has more than {MAX_TEXT_WORDS} words.")
        return {"captions": captions, "reranked": None if prefix else self._reranked(features)}

    def _reranked(self, features: np.ndarray) -> list[dict] | None:
        """Captions by consensus; `None` where no index can tell."""
        try:
            [row] = self.client.caption_reranked(features)
        except MissingSignatureError:
            return None
        except ServingError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            return None
        columns = (row[name] for name in (schema.CAPTIONS, schema.LOG_PROBS, schema.CONSENSUS))
        return [
            {"text": caption, "log_prob": log_prob, "consensus": consensus}
            for caption, log_prob, consensus in zip(*columns, strict=True)
        ]

    def next_words(self, picture: str, prefix: str) -> dict:
        """The most probable words after some words; the end token is one of them."""
        features = self.pictures.features(picture)[np.newaxis]
        [row] = self.client.next_words(features, [_checked(prefix)])
        pairs = zip(row[schema.WORDS], row[schema.LOG_PROBS], strict=True)
        return {"words": [{"text": w, "probability": math.exp(p)} for w, p in pairs]}

    def search(self, query: str) -> dict:
        """The photographs that fit what is typed so far, with the score of every word.

        The word that is being typed counts as soon as the model knows it.
        """
        words = _tokenize(_checked(query))
        known = self._known(words)
        is_typing = not query[-1:].isspace()
        pending = words.pop() if words and is_typing and words[-1] not in known else ""
        unknown = [word for word in words if word not in known]
        matches = self._find(" ".join(words)) if len(unknown) < len(words) else []
        found = [{**self._photo(match), "words": list(match.words)} for match in matches]
        return {"words": words, "unknown": unknown, "pending": pending, "photographs": found}

    def _find(self, prefix: str) -> Sequence[Match]:
        if (index := self._index) is not None:
            return index.search_prefix(prefix, FOUND)
        [row] = self.client.search_prefix([prefix])
        columns = (row[name] for name in (schema.IDS, schema.SCORES, schema.WORD_SCORES))
        return [Match(*values) for values in zip(*columns, strict=True)]

    def _known(self, words: Sequence[str]) -> set[str]:
        """Those of the words that the model knows; all of them where nobody can tell."""
        if self.captioner is not None:
            return set(words) & self.inside.vocabulary
        if new := [word for word in words if self._words.get(word) is None]:
            inputs = {schema.SENTENCES: new}
            try:
                answer = self.client.predict(schema.MODEL, schema.SENTENCE_VECTOR, inputs)
            except ServingError:
                return set(words)
            for word, vector in zip(new, answer[schema.VECTORS], strict=True):
                self._words.put(word, bool(vector.any()))
        return {word for word in words if self._words.get(word)}

    def similar(self, picture: str) -> dict:
        """The photographs that look most like a picture, itself left out."""
        features = self.pictures.features(picture)
        if (index := self._index) is not None:
            matches = index.similar(features, FOUND)
        else:
            [row] = self.client.similar_images(features[np.newaxis])
            matches = [Match(*m) for m in zip(row[schema.IDS], row[schema.SCORES], strict=True)]
        found = [self._photo(match) for match in matches]
        return {"photographs": [each for each in found if each["picture"] != picture]}

    def sentences(self, picture: str) -> dict:
        """The sentences of the index that fit a picture best."""
        [row] = self.client.search_sentences(self.pictures.features(picture)[np.newaxis])
        columns = zip(row[schema.SENTENCES], row[schema.IDS], row[schema.SCORES], strict=True)
        return {
            "sentences": [
                {"text": sentence, **self._photo(Match(image, score))}
                for sentence, image, score in columns
            ]
        }

    def photos(self, first: int) -> dict:
        """A page of all photographs."""
        folder = self.folder()
        if folder is None:
            return {"photographs": [], "total": 0}
        if (index := self._index) is not None:
            paths = index.paths()
        else:
            paths = sorted(map(os.fsdecode, indexing.list_photos(folder).files))
        shown = [self._photo(Match(path, 0.0)) for path in paths[first : first + _PAGE]]
        return {"photographs": shown, "total": len(paths)}

    def unreadable(self) -> dict:
        """Why photographs of the folder were left out."""
        reasons = {} if (index := self._index) is None else index.unreadable()
        return {"reasons": [_shown(reason) for reason in reasons.values()]}

    def _photo(self, match: Match) -> dict:
        """A photograph for the page; `picture` is empty where its file is not here.

        `version` is another one when the file is: names are those of files in any folder.
        """
        folder, path = self.folder(), os.fsencode(match.path)
        if folder:
            path = os.path.relpath(os.path.join(os.fsencode(folder), path), os.fsencode(folder))
        version = _version(os.path.join(os.fsencode(folder), path)) if folder else ""
        return {
            "picture": photo_name(path) if version else "",
            "version": version,
            "name": _shown(os.fsdecode(path)),
            "score": match.score,
        }

    def _encode(self, contents: list[bytes]) -> np.ndarray:
        return self.client.encode(contents)[schema.FEATURES]

    def close(self) -> None:
        if self.photographs:
            self.photographs.close()
        self.client.close()


def _captions(row: Row) -> list[dict]:
    """Captions with their words, as the page shows them."""
    names = schema.WORDS, schema.WORD_LOG_PROBS, schema.WORD_EVIDENCE
    rows = [row.get(name) or [[]] * len(row[schema.CAPTIONS]) for name in names]
    return [
        {
            "text": caption,
            "log_prob": log_prob,
            "words": [
                {"text": word, "log_prob": p, "evidence": evidence}
                for word, p, evidence in zip(*words, strict=True)
            ],
        }
        for caption, log_prob, *words in zip(
            row[schema.CAPTIONS], row[schema.LOG_PROBS], *rows, strict=True
        )
    ]


def _version(file: bytes) -> str:
    """What tells a file from its earlier contents and from other files; empty without a file."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return ""
    is_file = stat.S_ISREG(status.st_mode)
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}" if is_file else ""


def _shown(name: str) -> str:
    """The name of a file, which may hold any bytes, as a text."""
    return printable(name).encode(errors="backslashreplace").decode()


def _checked(typed: str) -> str:
    if len(typed) > MAX_CHARACTERS:
        raise HTTPException(413, f"a text may have {MAX_CHARACTERS} characters.")
    return typed


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
def _words(texts: tf.Tensor) -> tf.Tensor:
    """The words of one text, in one call: op by op it takes longer than the search."""
    return text.tokenize_short(texts, MAX_TEXT_WORDS)[0].flat_values


def _tokenize(typed: str) -> list[str]:
    return [word.decode() for word in _words(tf.constant([typed])).numpy()]

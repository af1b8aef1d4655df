"""Captions, scores and next words of photographs: the model as a Python object."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  Its ops are in every export.

from mrnn_tf import photos, pretrained, schema, text, versions
from mrnn_tf.config import MAX_TEXT_WORDS, TOP_K, BeamSearch
from mrnn_tf.errors import UserError
from mrnn_tf.fingerprints import COMPARED
from mrnn_tf.inference import Inference, attached_encoder
from mrnn_tf.photos import Photo
from mrnn_tf.pretrained import packaging
from mrnn_tf.run import Run

AT_ONCE = 32  # images of a batch
UNDECODABLE = "it is damaged, or has more pixels than the model decodes."

# A signature of a SavedModel, or of an `Inference`: named tensors in, named tensors out.
Signature = Callable[..., Mapping[str, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Word:
    """A word with its log P; `evidence` is how much of that it owes to the image, in nats."""

    text: str
    log_prob: float
    evidence: float | None = None


@dataclasses.dataclass(frozen=True)
class Caption:
    """A sentence for an image; its words end with the end token `</s>`."""

    text: str
    log_prob: float
    words: tuple[Word, ...] = dataclasses.field(default=(), repr=False)


@dataclasses.dataclass(frozen=True)
class Score:
    """How well a sentence fits an image; unknown words are charged as `<unk>`."""

    log_prob: float
    perplexity: float
    num_unknown: int
    words: tuple[Word, ...] = dataclasses.field(default=(), repr=False)


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """Stands for the result of an image or a sentence that could not be read; it is false."""

    reason: str

    def __bool__(self) -> bool:
        return False


class Images:
    """Turns images of any kind into features [D], and asks something about these, in batches.

    `encode` is the signature `encode_image`; without it features alone are taken.
    """

    def __init__(self, feature_size: int, encode: Signature | None = None):
        self.feature_size, self._encode = feature_size, encode

    @property
    def can_encode(self) -> bool:
        """Whether the model has an image encoder."""
        return self._encode is not None

    def answer(
        self, images: Photo | Sequence[Photo], ask: Callable[[np.ndarray, list[int]], Sequence]
    ) -> Any:
        """What `ask` makes of the features [B, D] and numbers of images: see `Captioner`."""
        if not is_batch(images):
            [result] = self.answer([images], ask)
            if isinstance(result, Unreadable):
                raise UserError(result.reason)
            return result
        results = []
        for first in range(0, len(images), AT_ONCE):
            batch = self._features(images[first : first + AT_ONCE])
            rows = [row for row, features in enumerate(batch) if isinstance(features, np.ndarray)]
            if rows:
                answers = ask(np.stack([batch[row] for row in rows]), [first + row for row in rows])
                for row, answer in zip(rows, answers, strict=True):
                    batch[row] = answer
            results += batch
        return results

    def _features(self, batch: Sequence[Photo]) -> list[np.ndarray | Unreadable]:
        loaded = [self._load(photo) for photo in batch]
        rows = [row for row, content in enumerate(loaded) if isinstance(content, bytes)]
        if rows:
            encoded = self.encode([loaded[row] for row in rows])
            for row, features in zip(rows, encoded, strict=True):
                photo = batch[row] if isinstance(batch[row], str | os.PathLike) else "the image"
                is_decoded = features.any()
                loaded[row] = features if is_decoded else Unreadable(f"{photo}: {UNDECODABLE}")
        return loaded

    def encode(self, contents: Sequence[bytes]) -> np.ndarray:
        """The features [B, D] of encoded images; zeros where one cannot be decoded."""
        if self._encode is None:
            raise UserError("The model has no image encoder: give features.")
        return self._encode(image_bytes=tf.constant(contents, tf.string))[schema.FEATURES].numpy()

    def _load(self, photo: Photo) -> bytes | np.ndarray | Unreadable:
        try:
            content, size = photos.load(photo), self.feature_size
            if isinstance(content, bytes) and self._encode is None:
                raise UserError("The model has no image encoder: give features.")
            if isinstance(content, np.ndarray) and len(content) != size:
                raise UserError(f"The model takes {size} features, not {len(content)}.")
            return content
        except UserError as error:
            return Unreadable(str(error))
        except OSError as error:
            return Unreadable(f"{photo}: {error.strerror or error}")


class Captioner:
    """Describes images, and tells how well sentences describe them.

    An image is a path, the bytes of a file, a PIL image, uint8 pixels [height, width, 3], or a
    vector of features; a list of them is a batch and gives a list. In a batch, an image that cannot
    be read has an `Unreadable` for its result; alone it raises `UserError`. So does a sentence of
    more words than the model reads, `max_text_words`: 200, unless an export fixed another limit.

    `signatures` are the functions of `Inference.signatures`, or of a SavedModel; `model` is where
    that was loaded from, and `run` the run that it was made from, where it is loaded already.

    >>> captioner = mrnn_tf.Captioner.load(model)
    >>> captions = captioner.caption(photo)
    >>> captions[0]
    Caption(text='...red...', log_prob=-...)
    >>> captions[0].words[-1]
    Word(text='</s>', log_prob=-..., evidence=...)
    """

    def __init__(
        self, signatures: Mapping[str, Signature], model: str = "", run: Run | None = None
    ):
        self._signatures, self.model, self._run = signatures, model, run

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The functions of the model, by name."""
        return self._signatures

    @functools.cached_property
    def images(self) -> Images:
        """What turns images into features."""
        is_run = self._run is not None
        decode = None if is_run else self._signatures[schema.BEAM_DECODE]
        size = self._run.config.feature_size if is_run else feature_size(decode)
        return Images(size, self._signatures.get(schema.ENCODE_IMAGE))

    @functools.cached_property
    def run(self) -> Run:
        """The run that the model was made from, with its weights."""
        return self._run or load_run(self.model)

    @functools.cached_property
    def fingerprints(self) -> dict[str, str]:
        """What tells the model and its encoder from others."""
        return self._run.fingerprints if self._run else fingerprints(self._signatures)

    @functools.cached_property
    def max_text_words(self) -> int:
        """The most words of a sentence or a prefix."""
        if self._run is not None:
            return MAX_TEXT_WORDS
        scores = self._signatures[schema.SENTENCE_LOG_PROB].structured_outputs
        width = scores[schema.WORD_LOG_PROBS].shape[1]  # `None` in exports of earlier releases
        return width - 1 if width else MAX_TEXT_WORDS

    @classmethod
    def load(
        cls, model: str | os.PathLike | None = None, *, top_k: int = TOP_K, **search
    ) -> "Captioner":
        """Loads a pretrained model by its name, by default that of `mrnn_tf.pretrained.DEFAULT`.

        Any other name is a path: of a version that `export.task` made, of a folder of them, whose
        newest is loaded, of a run, or of a folder that `export.pretrained` made. `top_k`, the most
        words that `next_words` returns, and the fields of `BeamSearch` can be chosen, but not of
        a version, which has fixed them.
        """
        path = pretrained.resolve(model)
        version = versions.newest(path)
        if version is not None:
            if search:
                raise UserError(
                    f"`{next(iter(search))}` was fixed when {version} was exported: leave it out."
                )
            return cls(load_signatures(version, schema.BEAM_DECODE), path)
        run = load_run(path)
        inference = Inference(run, attached_encoder(run), BeamSearch(**search), top_k)
        return cls(_Traced(inference), path, run)

    def caption(
        self, images: Photo | Sequence[Photo], prefix: str = "", n: int | None = None
    ) -> list[Caption] | list[list[Caption] | Unreadable]:
        """The `n` best captions of each image, best first; by default all that the search keeps.

        They begin with the words of `prefix`; `log_prob` counts those that follow.
        """
        self._check(prefix)
        return self.images.answer(images, lambda features, _: self._captions(features, prefix, n))

    def score(
        self, images: Photo | Sequence[Photo], sentences: str | Sequence[str]
    ) -> Score | list[Score | Unreadable]:
        """log P and perplexity of sentences, given images.

        One image and one sentence give a `Score`. Otherwise a list is given: of the sentences of
        one image, of the images of one sentence, or of as many pairs of both.

        >>> captioner.score(photo, "a red picture")
        Score(log_prob=-..., perplexity=..., num_unknown=0)
        """
        if isinstance(sentences, str):
            paired = [sentences] * (len(images) if is_batch(images) else 1)
        else:
            paired = list(sentences)
            images = images if is_batch(images) else [self.encode(images)] * len(paired)
            if len(images) != len(paired):
                raise UserError(
                    f"`sentences` must be one for every image; received {len(paired)} for "
                    f"{len(images)} images."
                )
        return self.images.answer(
            images, lambda features, rows: self._scores(features, [paired[row] for row in rows])
        )

    def next_words(
        self, images: Photo | Sequence[Photo], prefix: str = "", k: int | None = None
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]] | Unreadable]:
        """The most probable words after some words, with their probabilities.

        >>> captioner.next_words(photo, "a", k=1)
        [('red', 0...)]
        """
        self._check(prefix)
        return self.images.answer(images, lambda features, _: self._next_words(features, prefix, k))

    def encode(self, images: Photo | Sequence[Photo]) -> np.ndarray | list[np.ndarray | Unreadable]:
        """The features [D] of each image."""
        return self.images.answer(images, lambda features, _: features)

    def predict(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs of any signature of the model; strings come back as bytes."""
        if signature not in self._signatures:
            raise UserError(
                f"The model has no signature `{signature}`: its variant has none, or an earlier "
                "release exported it."
            )
        inputs = {name: tf.constant(value) for name, value in inputs.items()}
        outputs = self._signatures[signature](**inputs)
        return {name: value.numpy() for name, value in outputs.items()}

    def _captions(self, features: np.ndarray, prefix: str, n: int | None) -> list[list[Caption]]:
        batch = self._ask(schema.BEAM_DECODE, features, prefix=[prefix] * len(features))
        check_count("n", n, batch[schema.CAPTIONS].shape[1])
        names = schema.WORDS, schema.WORD_LOG_PROBS, schema.WORD_EVIDENCE
        columns = [batch[name] for name in (schema.CAPTIONS, schema.LOG_PROBS, *names)]
        return [
            [
                Caption(sentence.decode(), float(log_prob), _words(*words))
                for sentence, log_prob, *words in zip(*image, strict=True)
                if log_prob > schema.MISSING_LOG_PROB / 2
            ][:n]
            for image in zip(*columns, strict=True)
        ]

    def _scores(self, features: np.ndarray, sentences: list[str]) -> list[Score | Unreadable]:
        batch = self._ask(schema.SENTENCE_LOG_PROB, features, sentences=sentences)
        names = schema.LOG_PROB, schema.PERPLEXITY, schema.NUM_UNKNOWN
        figures = zip(*(batch[name].tolist() for name in names), strict=True)
        words, is_short = text.tokenize_short(sentences, self.max_text_words)
        rows = zip(figures, words.to_list(), batch[schema.WORD_LOG_PROBS], is_short, strict=True)
        return [
            Score(*row, _words([*tokens, schema.END.encode()], log_probs))
            if is_read
            else Unreadable(f"A sentence must have at most {self.max_text_words} words.")
            for row, tokens, log_probs, is_read in rows
        ]

    def _next_words(self, features: np.ndarray, prefix: str, k: int | None) -> list[list]:
        batch = self._ask(schema.NEXT_WORD, features, prefix=[prefix] * len(features))
        check_count("k", k, batch[schema.WORDS].shape[1])
        return [
            [(w.decode(), float(np.exp(p))) for w, p in zip(words, log_probs, strict=True) if w][:k]
            for words, log_probs in zip(batch[schema.WORDS], batch[schema.LOG_PROBS], strict=True)
        ]

    def _check(self, prefix: str) -> None:
        if not text.tokenize_short([prefix], self.max_text_words)[1][0]:
            raise UserError(
                f"`prefix` must have at most {self.max_text_words} words; received "
                f"{len(prefix.split())} in {len(prefix)} characters."
            )

    def _ask(self, name: str, features: np.ndarray, **texts: list[str]) -> dict[str, np.ndarray]:
        return self.predict(name, {schema.FEATURES: features, **texts})


def load_run(model: str | os.PathLike | None = None) -> Run:
    """The run of a model, named as in `Captioner.load`; it has no image encoder."""
    path = pretrained.resolve(model)
    version = versions.newest(path)
    if version is not None:
        return Run.from_saved_model(version)
    if packaging.is_packaged(path):
        return packaging.load(path)
    if not tf.io.gfile.exists(tf.io.gfile.join(path, schema.CONFIG_FILE)):
        raise UserError(
            f"{path} holds neither a SavedModel of `python -m export.task` nor a run of "
            "`python -m trainer.task`."
        )
    return Run.load(path)


def feature_size(signature: Signature) -> int:
    """The size D of the features [B, D] that are a signature's only matrix."""
    inputs = tf.nest.flatten(signature.structured_input_signature)
    [size] = [spec.shape[1] for spec in inputs if spec.shape.rank == 2]
    return size


def is_batch(images: Photo | Sequence[Photo]) -> bool:
    """Whether these are several images: a list, a tuple, or rows of features [B, D]."""
    if isinstance(images, np.ndarray):
        return images.ndim == 2 and images.dtype.kind == "f"
    return isinstance(images, list | tuple)


def check_count(name: str, count: int | None, most: int) -> None:
    """Refuses more results than a model or an index gives, which was fixed when it was exported."""
    if count is not None and not 1 <= count <= most:
        raise UserError(f"`{name}` must be from 1 to {most}, as was fixed at export; got {count}.")


def fingerprints(signatures: Mapping[str, Signature]) -> dict[str, str]:
    """What tells a model and its encoder from others; empty where an earlier release made it."""
    if schema.MODEL_INFO not in signatures:
        return {}
    values = signatures[schema.MODEL_INFO](keys=tf.constant(COMPARED))[schema.VALUES]
    return dict(zip(COMPARED, (value.decode() for value in values.numpy()), strict=True))


def load_signatures(directory: str, wanted: str) -> Mapping[str, Signature]:
    """The signatures of a SavedModel; refuses one without the `wanted` signature."""
    loaded = versions.load(directory)
    if wanted not in loaded.signatures:
        raise UserError(
            f"{directory} has no signature `{wanted}`; it has {', '.join(loaded.signatures)}."
        )
    return _Signatures(loaded)


class _Traced(Mapping):
    """The signatures of an `Inference`, each traced when it is first asked for."""

    def __init__(self, inference: Inference):
        self._inference, self._functions = inference, {}

    def __getitem__(self, name: str) -> Signature:
        if name not in self._functions:
            self._functions[name] = self._inference.trace(name)
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inference.methods)

    def __len__(self) -> int:
        return len(self._inference.methods)


class _Signatures(dict):
    """The signatures of a SavedModel, which keep alive what they use."""

    def __init__(self, loaded: Any):
        super().__init__(loaded.signatures)
        self._loaded = loaded


def _words(
    words: Sequence[bytes], log_probs: np.ndarray, evidence: np.ndarray | None = None
) -> tuple[Word, ...]:
    evidence = [None] * len(words) if evidence is None else evidence.tolist()
    return tuple(
        Word(word.decode(), log_prob, nats)
        for word, log_prob, nats in zip(words, log_probs.tolist(), evidence, strict=False)
        if word
    )

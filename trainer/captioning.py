"""Captions of every image of a split, by every decoding that an evaluation compares."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf
from tqdm import tqdm

from mrnn_tf import decode, schema
from mrnn_tf.config import BeamSearch
from mrnn_tf.data import pipeline
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.run import Network, Run
from mrnn_tf.text import Vocabulary

GREEDY = "greedy"


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How sentences are decoded."""

    beam: int = 5
    n_best: int = 10
    widths: tuple[int, ...] = (1, 3, 5, 10)
    length_power: float = BeamSearch.length_power
    max_words: int = 20

    @property
    def rows(self) -> tuple[str, ...]:
        """The decodings that are compared: greedy and every width."""
        return GREEDY, *(beam_row(width) for width in sorted({*self.widths, self.beam}))


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The n-best list of an image; missing sentences are left out."""

    captions: tuple[str, ...]
    log_probs: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Captioned:
    """An image with what people and the model say of it."""

    image_id: str
    references: tuple[str, ...]
    rows: dict[str, str]  # the best caption of every decoding; empty where there is none
    beam: Sentences  # of the chosen width
    n_best: Sentences
    words: tuple[str, ...]  # of the best caption, with the end sign
    word_log_probs: tuple[float, ...]
    evidence: tuple[float, ...]


def beam_row(width: int) -> str:
    return f"beam {width}"


def caption_images(
    run: Run, source: pipeline.Source, decoding: Decoding, batch_size: int = 64
) -> list[Captioned]:
    """Captions of a split, in the order of its records."""
    network, model = run.network, run.network.model
    widths = {*decoding.widths, decoding.beam}

    def beam(image, width: int, n_best: int) -> decode.Decoded:
        return decode.beam(
            *decode.begin(model, image),
            BeamSearch(width, decoding.max_words, decoding.length_power),
            n_best,
        )

    @tf.function
    def search(batch):
        image = model.project_image(network.features(batch))
        found = {GREEDY: decode.greedy(*decode.begin(model, image), max_words=decoding.max_words)}
        chosen = beam(image, decoding.beam, decoding.beam)
        found |= {beam_row(width): beam(image, width, 1) for width in widths - {decoding.beam}}
        found[beam_row(decoding.beam)] = chosen
        n_best = beam(image, decoding.n_best, decoding.n_best)
        blank = network.blank(tf.shape(chosen.ids)[0])
        return found, chosen, n_best, decode.evidence(model, blank, chosen)

    captioned = []
    batches = network.images(source, batch_size)
    count = -(-source.info.splits[source.split].images // batch_size)
    for batch in tqdm(batches, "captions", count, unit=" batches", disable=None):
        found, chosen, n_best, evidence = search(batch)
        rows = {name: _texts(run, found[name].ids[:, :1]) for name in decoding.rows}
        chosen_texts, n_best_texts = _texts(run, chosen.ids), _texts(run, n_best.ids)
        words = run.vocabulary.lookup(chosen.ids[:, 0]).numpy()
        lengths = tf.math.count_nonzero(chosen.ids[:, 0], axis=-1).numpy()
        for i, image_id in enumerate(batch["ids"].numpy()):
            length = int(lengths[i])
            captioned.append(
                Captioned(
                    image_id=image_id.decode(),
                    references=tuple(
                        text.decode(errors="replace") for text in batch["captions"][i].numpy()
                    ),
                    rows={name: texts[i][0] for name, texts in rows.items()},
                    beam=_sentences(chosen_texts[i], chosen.log_probs[i]),
                    n_best=_sentences(n_best_texts[i], n_best.log_probs[i]),
                    words=tuple(word.decode() for word in words[i, :length]),
                    word_log_probs=tuple(chosen.word_log_probs[i, 0, :length].numpy().tolist()),
                    evidence=tuple(evidence[i, 0, :length].numpy().tolist()),
                )
            )
    return captioned


def beam_scores(
    network: Network, vocabulary: Vocabulary, source: pipeline.Source, batch_size: int = 64
) -> dict[str, float]:
    """CIDEr and BLEU-4 of the captions of a split, by the default search."""

    @tf.function
    def search(batch):
        image = network.model.project_image(network.features(batch))
        return decode.beam(*decode.begin(network.model, image), BeamSearch(), n_best=1).ids[:, 0]

    references, results = {}, {}
    for batch in network.images(source, batch_size):
        sentences = vocabulary.sentences(search(batch)).numpy()
        rows = zip(batch["ids"].numpy(), sentences, batch["captions"].to_list(), strict=True)
        for image_id, sentence, captions in rows:
            results[image_id.decode()] = sentence.decode()
            references[image_id.decode()] = [text.decode(errors="replace") for text in captions]
    found = metrics.evaluate(references, results, meteor=False).overall
    return {name: found[name] for name in ("cider", "bleu_4")}


def _texts(run: Run, ids: tf.Tensor) -> list[list[str]]:
    return [[text.decode() for text in row] for row in run.vocabulary.sentences(ids).numpy()]


def _sentences(texts: Sequence[str], log_probs: tf.Tensor) -> Sentences:
    pairs = zip(texts, log_probs.numpy().tolist(), strict=True)
    there = [pair for pair in pairs if pair[1] > schema.MISSING_LOG_PROB / 2]
    return Sentences(tuple(text for text, _ in there), tuple(score for _, score in there))

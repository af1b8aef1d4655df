"""The captions of a split by greedy decoding and beam searches, and what they are worth."""

import dataclasses
import math

import tensorflow as tf
from tqdm import tqdm

from mrnn_tf import decode, schema
from mrnn_tf.config import BeamSearch, field
from mrnn_tf.data import pipeline
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.nbest import NBest
from mrnn_tf.run import Network, Run
from mrnn_tf.split import Split
from mrnn_tf.text import Vocabulary
from trainer.loops import Evaluator
from trainer.report.page import Example

GREEDY = "greedy"


@dataclasses.dataclass(frozen=True)
class Decoding(BeamSearch):
    """The chosen beam search, the n-best list, and further widths to compare."""

    n_best: int = field(10, "width of the search for nbest.json, and its sentences", at_least=1)
    widths: tuple[int, ...] = field((1, 3, 5, 10), "further widths to compare", at_least=1)

    @property
    def rows(self) -> dict[str, int]:
        """The rows of the beam searches that are compared, with their widths."""
        return {beam_row(width): width for width in sorted({*self.widths, self.beam})}

    @property
    def headline(self) -> str:
        """The row of the chosen beam."""
        return beam_row(self.beam)


@dataclasses.dataclass(frozen=True)
class Captions:
    """The captions of a split, in the order of its images.

    Attributes:
        best: row -> image id -> the best caption.
        n_best: image id -> its n-best list.
        examples: every image with the sentences of the chosen beam.
    """

    best: dict[str, dict[str, str]]
    n_best: dict[str, NBest]
    examples: list[Example]


def beam_row(width: int) -> str:
    return f"beam {width}"


def caption_split(run: Run, split: Split, decoding: Decoding, batch_size: int = 64) -> Captions:
    """Captions of every image of a split by every decoding."""
    network, model = run.network, run.network.model

    def beam(image, width: int, n_best: int) -> decode.Decoded:
        search = BeamSearch(width, decoding.max_words, decoding.length_power)
        return decode.beam(*decode.begin(model, image), search, n_best)

    @tf.function(input_signature=[tf.TensorSpec([None, split.features.shape[1]], tf.float32)])
    def decode_batch(features):
        image = model.project_image(features)
        greedy = decode.greedy(*decode.begin(model, image), max_words=decoding.max_words)
        compared = {GREEDY: greedy} | {
            row: beam(image, width, decoding.beam if width == decoding.beam else 1)
            for row, width in decoding.rows.items()
        }
        first = tf.nest.map_structure(lambda each: each[:, :1], compared[decoding.headline])
        blank = network.blank(tf.shape(features)[0])
        evidence = decode.evidence(model, blank, first)[:, 0]
        return compared, beam(image, decoding.n_best, decoding.n_best), evidence

    captions = Captions({row: {} for row in (GREEDY, *decoding.rows)}, {}, [])
    starts = range(0, len(split), batch_size)
    for start in tqdm(starts, "captions", unit=" batches", disable=None):
        compared, n_best, evidence = decode_batch(split.features[start : start + batch_size])
        ids = split.ids[start : start + batch_size]
        for row, decoded in compared.items():
            sentences = _sentences(run.vocabulary, decoded.ids[:, 0])
            captions.best[row].update(zip(ids, sentences, strict=True))
        captions.n_best.update(zip(ids, _n_best(run.vocabulary, n_best), strict=True))
        chosen = compared[decoding.headline]
        words = run.vocabulary.lookup(chosen.ids[:, 0]).numpy()
        lengths = tf.math.count_nonzero(chosen.ids[:, 0], axis=-1).numpy()
        word_log_probs, evidence = chosen.word_log_probs[:, 0].numpy(), evidence.numpy()
        for i, sentences in enumerate(_n_best(run.vocabulary, chosen)):
            captions.examples.append(
                Example(
                    image_id=ids[i],
                    references=split.captions[start + i],
                    captions=sentences.captions,
                    log_probs=sentences.log_probs,
                    words=tuple(word.decode() for word in words[i, : lengths[i]]),
                    word_log_probs=tuple(word_log_probs[i, : lengths[i]].tolist()),
                    evidence=tuple(evidence[i, : lengths[i]].tolist()),
                )
            )
    return captions


def perplexity(run: Run, split: Split, batch_size: int = 64) -> dict[str, float]:
    """The perplexity of the reference captions of a split, with and without <unk>."""
    owners = [i for i, captions in enumerate(split.captions) for _ in captions]
    words = run.vocabulary.ids(tf.constant([text for some in split.captions for text in some]))
    order = tf.argsort(words.row_lengths())  # captions of a length need no padding

    def batch(owner: tf.Tensor, words: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        ones = tf.ones_like(owner)[:, tf.newaxis]
        ids = tf.concat([ones * schema.START_ID, words, ones * schema.END_ID], axis=1)
        ids = ids.to_tensor(schema.PAD_ID)
        return {
            schema.FEATURES: tf.gather(split.features, owner),
            schema.WORD_IDS: ids[:, :-1],
            schema.TARGET_IDS: ids[:, 1:],
        }

    dataset = tf.data.Dataset.from_tensor_slices(
        (tf.gather(owners, order), tf.gather(words, order))
    )
    # Without its encoder the network takes the features that the split has already.
    network = Network(run.network.model)
    measured = Evaluator(network, dataset.batch(batch_size).map(batch)).evaluate(tf.constant(-1))
    names = ("perplexity", "perplexity_without_unknown")
    return {name: measured[name] for name in names if math.isfinite(measured[name])}


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
        ids = [image_id.decode() for image_id in batch["ids"].numpy()]
        results |= dict(zip(ids, _sentences(vocabulary, search(batch)), strict=True))
        for image_id, captions in zip(ids, batch["captions"].to_list(), strict=True):
            references[image_id] = [text.decode(errors="replace") for text in captions]
    scores = metrics.evaluate(references, results, meteor=False).overall
    return {name: scores[name] for name in ("cider", "bleu_4")}


def _sentences(vocabulary: Vocabulary, ids: tf.Tensor) -> list[str]:
    return [sentence.decode() for sentence in vocabulary.sentences(ids).numpy()]


def _n_best(vocabulary: Vocabulary, decoded: decode.Decoded) -> list[NBest]:
    """The sentences of every image; missing ones are left out."""
    texts, log_probs = vocabulary.sentences(decoded.ids).numpy(), decoded.log_probs.numpy()
    valid = log_probs > schema.MISSING_LOG_PROB / 2
    return [
        NBest(tuple(text.decode() for text in texts[i][row]), tuple(log_probs[i][row].tolist()))
        for i, row in enumerate(valid)
    ]

"""The captions of a split by greedy decoding and beam searches, and what they are worth."""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from mrnn_tf import decode, schema
from mrnn_tf.captioner import Caption, Captioner
from mrnn_tf.data import pipeline
from mrnn_tf.inference import Inference
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.nbest import NBest
from mrnn_tf.progress import Progress
from mrnn_tf.run import Network, Run
from mrnn_tf.split import Split
from trainer.loops import Evaluator
from trainer.options import Decoding

GREEDY = "greedy"


@dataclasses.dataclass(frozen=True)
class Captions:
    """The captions of a split, in the order of its images."""

    best: dict[str, dict[str, str]]  # row -> image id -> the best caption
    n_best: dict[str, NBest]
    chosen: dict[str, list[Caption]]  # of the chosen beam, with their words


def caption_split(run: Run, split: Split, decoding: Decoding, batch_size: int = 64) -> Captions:
    """Captions of every image of a split by every decoding."""
    model, vocabulary = run.network.model, run.vocabulary
    inference = Inference(run, search=decoding)
    captioner = Captioner(inference.signatures())

    @tf.function(input_signature=[tf.TensorSpec([None, split.features.shape[1]], tf.float32)])
    def decode_batch(features):
        begin = decode.begin(model, model.project_image(features))
        greedy = decode.greedy(*begin, max_words=decoding.max_words)
        best = {GREEDY: vocabulary.sentences(greedy.ids[:, 0])}
        for row, width in decoding.rows.items():
            if row != decoding.headline:
                search = dataclasses.replace(decoding, beam=width)
                compared = inference.best_sentences(features, search=search, n_best=1)
                best[row] = vocabulary.sentences(compared.ids[:, 0])
        search = dataclasses.replace(decoding, beam=decoding.n_best)
        n_best = inference.best_sentences(features, search=search)
        return best, vocabulary.sentences(n_best.ids), n_best.log_probs

    captions = Captions({row: {} for row in (GREEDY, *decoding.rows)}, {}, {})
    for start in Progress(range(0, len(split), batch_size), "captions", unit=" batches"):
        rows = slice(start, start + batch_size)
        best, sentences, log_probs = tf.nest.map_structure(
            lambda tensor: tensor.numpy(), decode_batch(split.features[rows])
        )
        for i, chosen in enumerate(captioner.caption(split.features[rows])):
            image_id = split.ids[start + i]
            for row, texts in best.items():
                captions.best[row][image_id] = texts[i].decode()
            captions.best[decoding.headline][image_id] = chosen[0].text if chosen else ""
            valid = log_probs[i] > schema.MISSING_LOG_PROB / 2
            texts = tuple(sentence.decode() for sentence in sentences[i, valid])
            captions.n_best[image_id] = NBest(texts, tuple(log_probs[i, valid].tolist()))
            captions.chosen[image_id] = chosen
    return captions


def perplexity(run: Run, split: Split, batch_size: int = 64) -> dict[str, float]:
    """The perplexity of the reference captions of a split, with and without <unk>."""
    owners = np.repeat(np.arange(len(split)), list(map(len, split.captions)))
    words = run.vocabulary.ids(tf.constant([t for captions in split.captions for t in captions]))
    order = tf.argsort(words.row_lengths())  # captions of a length need no padding

    def batch(owner: tf.Tensor, words: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        ones = tf.ones_like(owner, tf.int32)[:, tf.newaxis]
        ids = tf.concat([ones * schema.START_ID, words, ones * schema.END_ID], axis=1)
        ids = ids.to_tensor(schema.PAD_ID)
        inputs = {schema.WORD_IDS: ids[:, :-1], schema.TARGET_IDS: ids[:, 1:]}
        return {schema.FEATURES: tf.gather(split.features, owner), **inputs}

    ordered = tf.gather(owners, order), tf.gather(words, order)
    batches = tf.data.Dataset.from_tensor_slices(ordered).batch(batch_size).map(batch)
    # Without its encoder the network takes the features that the split has already.
    measured = Evaluator(Network(run.network.model), batches).evaluate(tf.constant(-1))
    names = ("perplexity", "perplexity_without_unknown")
    return {name: measured[name] for name in names if math.isfinite(measured[name])}


class BeamScores:
    """CIDEr and BLEU-4 of the captions of a split by the default search, as often as asked."""

    def __init__(self, run: Run, source: pipeline.Source, batch_size: int = 64):
        self._run, self._inference = run, Inference(run)
        self._images = run.network.images(source, batch_size)

    def __call__(self) -> dict[str, float]:
        references, results = {}, {}
        for batch in self._images:
            sentences = self._search(batch).numpy()
            rows = zip(batch["ids"].numpy(), sentences, batch["captions"].to_list(), strict=True)
            for image_id, sentence, captions in rows:
                results[image_id.decode()] = sentence.decode()
                references[image_id.decode()] = [text.decode(errors="replace") for text in captions]
        scores = metrics.evaluate(references, results, meteor=False).overall
        return {name: scores[name] for name in ("cider", "bleu_4")}

    @tf.function(reduce_retracing=True)
    def _search(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        best = self._inference.best_sentences(self._run.network.features(batch), n_best=1)
        return self._run.vocabulary.sentences(best.ids[:, 0])

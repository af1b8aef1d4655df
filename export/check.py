"""Proves that an export says what the run says: a fresh process runs it, Python computes it again.

The expected values come from the Keras model itself, row by row and sentences read whole, not from
the functions that were exported.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from export import fresh, warmup
from mrnn_tf import decode, schema
from mrnn_tf.errors import UserError
from mrnn_tf.inference import Inference
from mrnn_tf.vision import images

TOLERANCE = 1e-4
_ROWS = 3
_MISSING = {
    schema.LOG_PROB: schema.MISSING_LOG_PROB,
    schema.LOG_PROBS: schema.MISSING_LOG_PROB,
    schema.PERPLEXITY: -schema.MISSING_LOG_PROB,
}

Tensors = dict[str, np.ndarray]
# From a servable, a signature, its inputs and the outputs found to the outputs that are right.
Expected = Callable[[warmup.Exportable, str, Tensors, Tensors], Tensors]


def check(
    directory: str, servable: warmup.Exportable, names: list[str], expected: Expected
) -> None:
    """Raises `ValueError` where a signature of the export differs from the Python model."""
    calls = warmup.calls(servable, _ROWS, names)
    for (name, inputs), (_, outputs) in zip(calls, _run_fresh(directory, calls), strict=True):
        # Both sides run on the CPU: a GPU rounds products to TF32, by more than the tolerance.
        with tf.device("CPU:0"):
            values = expected(servable, name, inputs, outputs)
        for output, value in values.items():
            if not same(outputs[output], value):
                raise UserError(
                    f"The export's signature `{name}` differs from the run in `{output}`: "
                    f"{outputs[output].tolist()!s:.200} instead of {value.tolist()!s:.200}."
                )


def _run_fresh(directory: str, calls: list[warmup.Call]) -> list[tuple[str, Tensors]]:
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "calls"), Path(folder, "results")
        asked.write_text(fresh.to_json(calls))
        command = [sys.executable, fresh.__file__, directory, str(asked), str(answered)]
        # This process holds the memory of the GPU, so the other one must not see it.
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it was killed"])[-1]
            raise UserError(f"The export does not run in a process of its own: {reason}")
        return fresh.from_json(answered.read_text())


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    if expected.dtype.kind in "OSU":
        return np.array_equal(found.astype(str), expected.astype(str))
    return found.shape == expected.shape and np.allclose(found, expected, TOLERANCE, TOLERANCE)


def expected(inference: Inference, name: str, inputs: Tensors, _: Tensors | None = None) -> Tensors:
    """What a signature of the model should say."""
    if name == schema.SERVING_DEFAULT:
        name = inference.default
    if name == schema.SCORE_IMAGES:
        return {schema.LOG_PROBS: _score_images(inference, *inputs.values())}
    compute = {
        schema.BEAM_DECODE: _beam_decode,
        schema.CAPTION: _caption,
        schema.NEXT_WORD: _next_word,
        schema.SENTENCE_LOG_PROB: _sentence_log_prob,
        schema.SENTENCE_VECTOR: _sentence_vector,
        schema.SCORE_PROJECTIONS: _score_projections,
        schema.ENCODE_IMAGE: _encode_image,
        schema.CAPTION_EXAMPLES: _caption_examples,
        schema.MODEL_INFO: model_info,
    }[name]
    rows = []
    for image, *texts in zip(*inputs.values(), strict=True):
        row = compute(inference, image, *texts)
        lengths = inference.vocabulary.ids(tf.constant(texts, tf.string)).row_lengths()
        if any(lengths > inference.max_text_words):
            row = {
                key: np.full_like(value, _MISSING[key]) if key in _MISSING else np.zeros_like(value)
                for key, value in row.items()
            }
        rows.append(row)
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def _beam_decode(inference: Inference, features: np.ndarray, prefix: str) -> Tensors:
    model = inference.network.model
    image = model.project_image(features[np.newaxis])
    ids = inference.vocabulary.ids([prefix]).to_tensor()
    found = decode.beam(*decode.begin(model, image, ids), inference.search)
    sentences = inference.vocabulary.sentences(found.ids[0]).numpy()
    there = found.log_probs[0].numpy() > schema.MISSING_LOG_PROB
    texts = [f"{prefix} {sentence.decode()}".strip() for sentence in sentences]
    return {
        schema.CAPTIONS: np.where(there, np.array(texts, object), "").astype(str).astype("S"),
        schema.LOG_PROBS: found.log_probs[0].numpy(),
        schema.WORD_LOG_PROBS: found.word_log_probs[0].numpy(),
    }


def _caption(inference: Inference, content: bytes) -> Tensors:
    found = _beam_decode(inference, _encode_image(inference, content)[schema.FEATURES], "")
    return {name: found[name] for name in (schema.CAPTIONS, schema.LOG_PROBS)}


def _caption_examples(inference: Inference, example: bytes) -> Tensors:
    record = tf.train.Example.FromString(example).features.feature
    features = np.array(record[schema.IMAGE_FEATURES].float_list.value, np.float32)
    if not features.size:
        return _caption(inference, record[schema.IMAGE_ENCODED].bytes_list.value[0])
    found = _beam_decode(inference, features, "")
    return {name: found[name] for name in (schema.CAPTIONS, schema.LOG_PROBS)}


def _next_word(inference: Inference, features: np.ndarray, prefix: str) -> Tensors:
    log_probs = _log_softmax(inference, features, inference.vocabulary.ids([prefix])[0])[-1]
    silent = [schema.PAD_ID, schema.START_ID, schema.UNKNOWN_ID]
    log_probs[silent] = -np.inf
    best = np.argsort(-log_probs, kind="stable")[: inference.top_k]
    best = best[np.isfinite(log_probs[best])]
    more = inference.top_k - len(best)
    words = [inference.vocabulary.words[word].encode() for word in best]
    return {
        schema.WORDS: np.array([*words, *[b""] * more]),
        schema.LOG_PROBS: np.append(log_probs[best], np.full(more, schema.MISSING_LOG_PROB)),
    }


def _sentence_log_prob(inference: Inference, features: np.ndarray, sentence: str) -> Tensors:
    ids = inference.vocabulary.ids([sentence])[0].numpy()
    log_probs = _log_softmax(inference, features, ids)
    word_log_probs = log_probs[np.arange(len(ids) + 1), [*ids, schema.END_ID]]
    total, width = word_log_probs.sum(), inference.max_text_words + 1
    return {
        schema.LOG_PROB: np.float32(total),
        schema.PERPLEXITY: np.float32(np.exp(-total / (len(ids) + 1))),
        schema.NUM_WORDS: np.int32(len(ids) + 1),
        schema.NUM_UNKNOWN: np.int32(np.sum(ids == schema.UNKNOWN_ID)),
        schema.WORD_LOG_PROBS: np.append(word_log_probs, np.zeros(width))[:width],
    }


def _score_images(inference: Inference, features: np.ndarray, sentences: np.ndarray) -> np.ndarray:
    """log P [B, S], image by image."""
    rows = []
    for image in features:
        images = np.repeat(image[np.newaxis], len(sentences), axis=0)
        inputs = {schema.FEATURES: images, schema.SENTENCES: sentences}
        rows.append(expected(inference, schema.SENTENCE_LOG_PROB, inputs)[schema.LOG_PROB])
    return np.stack(rows)


def _score_projections(inference: Inference, projection: np.ndarray, sentence: str) -> Tensors:
    log_prob = _log_prob(inference, tf.constant(projection), sentence)
    return {schema.LOG_PROB: log_prob.numpy()}


def _sentence_vector(inference: Inference, sentence: str) -> Tensors:
    """The gradient of log P(s|a) at the mean image; zero where there is nothing to search by."""
    mean = inference.network.mean_projection()
    with tf.GradientTape() as tape:
        tape.watch(mean)
        log_prob = _log_prob(inference, mean, sentence)
    ids = inference.vocabulary.ids([sentence])[0].numpy()
    is_query = (ids > schema.UNKNOWN_ID).any() and len(ids) <= inference.max_text_words
    return {schema.VECTORS: is_query * tape.gradient(log_prob, mean).numpy()}


def _log_prob(inference: Inference, projection: tf.Tensor, sentence: str) -> tf.Tensor:
    """log P of a sentence by a projected image [M]."""
    model, ids = inference.network.model, inference.vocabulary.ids([sentence])[0].numpy()
    h = model.word_part(np.array([[schema.START_ID, *ids]]))
    logits = model.logits_from(h, {"multimodal": projection[tf.newaxis]})
    log_probs = tf.gather(tf.nn.log_softmax(logits[0]), [*ids, schema.END_ID], batch_dims=1)
    return tf.reduce_sum(log_probs)


def _encode_image(inference: Inference, content: bytes) -> Tensors:
    windows = inference.encoder.prepare(images.decode(content, inference.max_pixels))
    windows = tf.nest.map_structure(lambda part: part[tf.newaxis], windows)
    features = inference.encoder.encode(windows)
    encoded = {schema.FEATURES: features[0].numpy()}
    if "multimodal" in inference.network.model.wiring.image_to:
        encoded[schema.REFINED] = inference.network.model.refined(features)[0].numpy()
    return encoded


def model_info(servable: warmup.Exportable, key: str) -> Tensors:
    """What the signature `model_info` of any servable should say of a key."""
    return {schema.VALUES: np.array(servable.info.facts.get(key, "").encode())}


def _log_softmax(inference: Inference, features: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """log P [T + 1, V] of the words after the start sign and after every given word."""
    inputs = {
        schema.FEATURES: features[np.newaxis],
        schema.WORD_IDS: np.array([[schema.START_ID, *ids]]),
    }
    return tf.nn.log_softmax(inference.network.model(inputs)[0]).numpy()

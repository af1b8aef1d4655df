"""Answers of a server: checked before they are believed, then one dictionary per input."""

from collections.abc import Mapping

import numpy as np

from mrnn_tf import schema
from mrnn_tf.errors import UserError
from serving import tensors

Row = dict[str, list | float | int | str]

# The type and the shape of every output. Sizes with the same letter are equal; B is the number of
# inputs.
_TEXTS, _NUMBERS, _WORDS = ("O", "BN"), ("f", "BN"), ("O", "BNT")
_OUTPUTS = {
    schema.CAPTION: {schema.CAPTIONS: _TEXTS, schema.LOG_PROBS: _NUMBERS},
    schema.BEAM_DECODE: {
        schema.CAPTIONS: _TEXTS,
        schema.LOG_PROBS: _NUMBERS,
        schema.WORDS: _WORDS,
        schema.WORD_LOG_PROBS: ("f", "BNT"),
        schema.WORD_EVIDENCE: ("f", "BNT"),
    },
    schema.NEXT_WORD: {schema.WORDS: _TEXTS, schema.LOG_PROBS: _NUMBERS},
    schema.SENTENCE_LOG_PROB: {
        schema.LOG_PROB: ("f", "B"),
        schema.PERPLEXITY: ("f", "B"),
        schema.NUM_WORDS: ("i", "B"),
        schema.NUM_UNKNOWN: ("i", "B"),
        schema.WORD_LOG_PROBS: ("f", "BT"),
    },
    schema.ENCODE_IMAGE: {schema.FEATURES: ("f", "BD"), schema.REFINED: ("f", "BM")},
    schema.SEARCH_IMAGES: {schema.IDS: _TEXTS, schema.SCORES: _NUMBERS},
    schema.SEARCH_IMAGES_EXACT: {schema.IDS: _TEXTS, schema.SCORES: _NUMBERS},
    schema.SEARCH_PREFIX: {
        schema.IDS: _TEXTS,
        schema.SCORES: _NUMBERS,
        schema.WORD_SCORES: ("f", "BNT"),
    },
    schema.SEARCH_SENTENCES: {
        schema.SENTENCES: _TEXTS,
        schema.IDS: _TEXTS,
        schema.SCORES: _NUMBERS,
    },
    schema.SIMILAR_IMAGES: {schema.IDS: _TEXTS, schema.SCORES: _NUMBERS},
    schema.CAPTION_RERANKED: {
        schema.CAPTIONS: _TEXTS,
        schema.LOG_PROBS: _NUMBERS,
        schema.CONSENSUS: _NUMBERS,
    },
    schema.MODEL_INFO: {schema.VALUES: ("O", "B")},
}
# Not every model has these: only some refine features.
_OPTIONAL = {schema.WORD_EVIDENCE, schema.REFINED}


def checked(
    signature: str, outputs: Mapping[str, np.ndarray], inputs: int
) -> dict[str, np.ndarray]:
    """The outputs of a signature, if they are what it must answer to that number of inputs.

    Those of signatures that are not known here are not checked.

    Raises:
        UserError: what is wrong with them.
    """
    if signature not in _OUTPUTS:
        return dict(outputs)
    sizes = {"B": inputs}
    known = {}
    for name, (kind, shape) in _OUTPUTS[signature].items():
        if name not in outputs:
            if name in _OPTIONAL:
                continue
            raise UserError(f"the output {name} is missing.")
        array = known[name] = outputs[name]
        wanted = [sizes.setdefault(size, found) for size, found in zip(shape, array.shape)]  # noqa: B905
        if array.dtype.kind != kind or array.ndim != len(shape) or list(array.shape) != wanted:
            named = ", ".join(str(sizes.get(size, size)) for size in shape)
            dtype = {"O": "string", "f": "float", "i": "int"}[kind]
            raise UserError(
                f"the output {name} must be {dtype} [{named}], and it is "
                f"{'string' if array.dtype == np.object_ else array.dtype} {list(array.shape)}."
            )
    if schema.NUM_WORDS in known:
        counts, most = known[schema.NUM_WORDS], sizes["T"]
        if ((counts < 0) | (counts > most)).any():
            raise UserError(f"the output {schema.NUM_WORDS} must be from 0 to {most}.")
    return known


def to_rows(outputs: Mapping[str, np.ndarray]) -> list[Row]:
    """One dictionary per input, of plain Python values, without padding."""
    rows = []
    for arrays in zip(*outputs.values(), strict=True):
        row = dict(zip(outputs, arrays, strict=True))
        if schema.NUM_WORDS in row:
            row[schema.WORD_LOG_PROBS] = row[schema.WORD_LOG_PROBS][: row[schema.NUM_WORDS]]
        else:
            ranks = row.get(schema.LOG_PROBS, row.get(schema.SCORES))
            kept = ranks > np.float32(schema.MISSING_LOG_PROB)
            row = {name: array[kept] for name, array in row.items()}
        row = {name: tensors.to_python(array) for name, array in row.items()}
        if schema.WORD_SCORES in row:
            scores = row[schema.WORD_SCORES]
            row[schema.WORD_SCORES] = [own[: len(np.trim_zeros(own, "b"))] for own in scores]
        if {schema.WORDS, schema.WORD_LOG_PROBS} <= row.keys():
            lengths = [sum(map(bool, words)) for words in row[schema.WORDS]]
            for name in row.keys() & {schema.WORDS, schema.WORD_LOG_PROBS, schema.WORD_EVIDENCE}:
                row[name] = [words[:end] for words, end in zip(row[name], lengths, strict=True)]
        rows.append(row)
    return rows

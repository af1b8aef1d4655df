"""Tokeniser and vocabulary as TensorFlow ops: one graph for tf.data, Python and SavedModels.

A word is a run of letters, marks, digits and apostrophes that holds a letter or a digit, after
NFKC normalisation and case folding. Apostrophes stay because Flickr's captions spell "man 's" and
COCO's "man's": dropping them would make words such as "s" and "t".
"""

import collections
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_text as tf_text

from mrnn_tf import schema
from mrnn_tf.errors import UserError

_WORD_OR_ANY = r"(?s)('*[\p{L}\p{N}][\p{L}\p{M}\p{N}']*)|."
_CURLY_APOSTROPHES = "[\u2018\u2019\u02bc]"
SETTINGS = {"normalization": "NFKC", "case": "fold", "words": "letters, marks, digits, apostrophes"}


def tokenize(texts: tf.Tensor) -> tf.RaggedTensor:
    """Words of each text: string [B] -> ragged string [B, (words)]."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = tf_text.case_fold_utf8(tf_text.normalize_utf8(texts, "NFKC"))
    texts = tf.strings.regex_replace(texts, _CURLY_APOSTROPHES, "'")
    return tf.strings.split(tf.strings.regex_replace(texts, _WORD_OR_ANY, r"\1 "))


def tokenized(texts: tf.Tensor) -> tf.Tensor:
    """The words of each text, joined by spaces: string of any shape."""
    words = tf.strings.reduce_join(tokenize(tf.reshape(texts, [-1])), axis=-1, separator=" ")
    return tf.reshape(words, tf.shape(texts))


class Vocabulary(tf.Module):
    """Words and their ids; the reserved words of the schema come first.

    >>> vocabulary = Vocabulary.build(["A dog runs.", "A dog!"], min_count=2)
    >>> vocabulary.words
    ('<pad>', '<s>', '</s>', '<unk>', 'a', 'dog')
    >>> vocabulary.ids(["a cat"]).to_list()
    [[4, 3]]
    """

    def __init__(self, words: Sequence[str]):
        super().__init__(name="vocabulary")
        words = tuple(words)
        if words[: len(schema.RESERVED_WORDS)] != schema.RESERVED_WORDS:
            raise UserError(
                f"A vocabulary begins with {' '.join(schema.RESERVED_WORDS)}, one a line; "
                f"received {' '.join(words[:4]) or 'nothing'}."
            )
        if len(set(words)) != len(words):
            twice = next(word for word, n in collections.Counter(words).items() if n > 1)
            raise UserError(f"The vocabulary holds the word {twice!r} twice.")
        self.words = words
        self._words = tf.constant(words)
        pairs = tf.lookup.KeyValueTensorInitializer(self._words, tf.range(len(words)))
        self._ids = tf.lookup.StaticHashTable(pairs, schema.UNKNOWN_ID)

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, captions: Sequence[str], min_count: int = 5) -> "Vocabulary":
        """Words seen at least `min_count` times, most frequent first, ties by the alphabet."""
        counts = collections.Counter()
        for start in range(0, len(captions), 10_000):
            words = tokenize(tf.constant(captions[start : start + 10_000])).flat_values
            counts.update(words.numpy().tolist())
        kept = [word.decode() for word, count in counts.items() if count >= min_count]
        kept.sort(key=lambda word: (-counts[word.encode()], word))
        return cls(schema.RESERVED_WORDS + tuple(kept))

    @classmethod
    def load(cls, path: str) -> "Vocabulary":
        """Reads one word a line; the line's number is the id."""
        if not tf.io.gfile.exists(path):
            raise FileNotFoundError(f"There is no vocabulary at {path}.")
        with tf.io.gfile.GFile(path) as file:
            words = file.read().splitlines()
        try:
            return cls(words)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None

    def save(self, path: str) -> None:
        with tf.io.gfile.GFile(path, "w") as file:
            file.write("".join(f"{word}\n" for word in self.words))

    def ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of the words of each text: string [B] -> ragged int32 [B, (words)]."""
        tokens = tokenize(texts)
        return tokens.with_flat_values(self._ids.lookup(tokens.flat_values))

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        """Words of ids, any shape."""
        return tf.gather(self._words, ids)

    def sentences(self, ids: tf.Tensor) -> tf.Tensor:
        """Sentences of word ids: int [..., T] -> string [...]; reads up to the end token."""
        ended = tf.cumsum(tf.cast(tf.equal(ids, schema.END_ID), tf.int32), axis=-1) > 0
        silent = ended | tf.equal(ids, schema.START_ID) | tf.equal(ids, schema.PAD_ID)
        words = tf.where(silent, "", tf.strings.join([" ", self.lookup(ids)]))
        return tf.strings.strip(tf.strings.reduce_join(words, axis=-1))

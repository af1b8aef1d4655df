"""Tokeniser and vocabulary as TensorFlow ops: one graph for tf.data, Python and SavedModels.

A word is a run of letters, marks, digits and apostrophes that holds a letter or a digit, in lower
case and NFC. Apostrophes stay because Flickr's captions spell "man 's" and COCO's "man's": dropping
them would make words such as "s" and "t".

TF Serving links ICU without its data files, so NFKC and case folding do not run there; NFC and
lower case do, because their tables are compiled in. `_FORMS` makes up for most of the difference:

- Ligatures, ordinals, full-width letters, and full-width, super- and subscript digits become plain
  as by NFKC. Other compatibility forms stay as they are, such as fractions and Roman numerals.
- A sharp s becomes "ss", and a final sigma a plain one, as by case folding.
- Lower case follows the machine's locale: in Turkish, I becomes a dotless i; in Lithuanian, a
  second dot is added below an accent. So ASCII is lowered by itself, and the dot is dropped. The
  Turkish capital dotted I is a plain i in every locale; by case folding it kept its dot as a mark.
- Format characters (soft hyphen, zero-width space, byte order mark) are dropped, as by folding.
"""

import collections
import functools
import itertools
import unicodedata
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_text as tf_text

from mrnn_tf import files, schema
from mrnn_tf.errors import UserError

_WORD_BYTES = 64  # that a text may have for each of its words

_FORMS = {  # patterns in lower case, and what they become
    "[\u2018\u2019\u02bc\uff07]": "'",
    "\u00df": "ss",
    "\u03c2": "\u03c3",
    "([ij\u012f])\u0307": r"\1",
    r"[\p{Cf}\x{034f}\x{fe00}-\x{fe0f}]": "",
}
_nfkc = functools.partial(unicodedata.normalize, "NFKC")
_LIGATURES, _FULL_WIDTH = range(0xFB00, 0xFB07), (*range(0xFF10, 0xFF1A), *range(0xFF41, 0xFF5B))
_RAISED = (0xAA, 0xB2, 0xB3, 0xB9, 0xBA, 0x2070, *range(0x2074, 0x207A), *range(0x2080, 0x208A))
_COMPATIBLE = sorted(map(chr, (*_LIGATURES, *_FULL_WIDTH, *_RAISED)), key=_nfkc)
_FORMS |= {f"[{''.join(forms)}]": plain for plain, forms in itertools.groupby(_COMPATIBLE, _nfkc)}
SETTINGS = {
    "normalization": "NFC, plain forms of ligatures, full-width, super- and subscripts",
    "case": "lower",
    "words": "letters, marks, digits, apostrophes",
}


def tokenize(texts: tf.Tensor) -> tf.RaggedTensor:
    """Words of each text: string [B] -> ragged string [B, (words)]."""
    texts = tf.strings.lower(texts)
    # Most captions are ASCII, which needs nothing else.
    is_ascii = tf.reduce_all(tf.strings.regex_full_match(texts, r"[\x00-\x7f]*"))
    texts = tf.cond(is_ascii, lambda: texts, lambda: _normalize(texts))
    texts = tf.strings.regex_replace(texts, r"[^\p{L}\p{M}\p{N}']+", "  ")
    # Between two spaces, apostrophes and marks alone are no word, and no word begins with a mark.
    no_word = r"(^| )(['\p{M}]+( |$)|['\p{M}]*\p{M})"
    return tf.strings.split(tf.strings.regex_replace(texts, no_word, " "))


def tokenize_short(texts: tf.Tensor, max_words: int) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Words of each text, and whether it is short: a text of more than `max_words` has no words.

    A text of more than 64 bytes for each of `max_words` is too long too, whatever its words are: it
    is not tokenised, which would take minutes for megabytes.
    """
    is_short = tf.strings.length(texts) <= _WORD_BYTES * max_words
    words = tokenize(tf.where(is_short, texts, ""))
    lengths = words.row_lengths()
    is_short &= lengths <= max_words
    kept = tf.boolean_mask(words.flat_values, tf.repeat(is_short, lengths))
    return tf.RaggedTensor.from_row_lengths(kept, tf.where(is_short, lengths, 0)), is_short


def _normalize(texts: tf.Tensor) -> tf.Tensor:
    """Valid UTF-8 in lower case and NFC, without the forms of `_FORMS`."""
    # Control characters are replaced as well: lower case would end a text at a NUL.
    texts = tf.strings.unicode_transcode(
        texts, "UTF-8", "UTF-8", errors="replace", replace_control_characters=True
    )
    texts = tf.strings.lower(texts, encoding="utf-8")
    for form, plain in _FORMS.items():
        texts = tf.strings.regex_replace(texts, form, plain)
    return tf_text.normalize_utf8(texts, "NFC")


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
        words = files.read_text(path).splitlines()
        try:
            return cls(words)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None

    def save(self, path: str) -> None:
        with tf.io.gfile.GFile(path, "w") as file:
            file.write("".join(f"{word}\n" for word in self.words))

    def ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of the words of each text: string [B] -> ragged int32 [B, (words)]."""
        return self._lookup(tokenize(texts))

    def short_ids(self, texts: tf.Tensor, max_words: int) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Ids of the words of each text, and whether it is short: see `tokenize_short`."""
        tokens, is_short = tokenize_short(texts, max_words)
        return self._lookup(tokens), is_short

    def unknown(self, text: str) -> list[str]:
        """The words of a text that are not in the vocabulary.

        >>> Vocabulary.build(["a dog"], min_count=1).unknown("A cat!")
        ['cat']
        """
        words, ids = tokenize([text]), self.ids([text])
        is_unknown = ids.flat_values == schema.UNKNOWN_ID
        return [word.decode() for word in words.flat_values[is_unknown].numpy()]

    def _lookup(self, tokens: tf.RaggedTensor) -> tf.RaggedTensor:
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

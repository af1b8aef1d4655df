import os
import subprocess
import sys

import pytest
import tensorflow as tf

from mrnn_tf import schema, text
from mrnn_tf.errors import UserError

TEXTS = [
    "A man 's dog, RUNNING!",
    "Don\u2019t  stop\tthe ca\u0301fe\u0301 \uff21\uff22",
    "Stra\u00dfe 7-up",
    "' -- '' ...",
    "",
    "<s> </s> \U0001f600",
]
WORDS = [
    ["a", "man", "'s", "dog", "running"],
    ["don't", "stop", "the", "c\u00e1f\u00e9", "ab"],
    ["strasse", "7", "up"],
    [],
    [],
    ["s", "s"],
]


def as_text(ragged):
    return [[word.decode() for word in row] for row in ragged.to_list()]


@pytest.fixture(scope="module")
def vocabulary():
    return text.Vocabulary((*schema.RESERVED_WORDS, "a", "dog", "runs"))


def test_tokenize_eager():
    assert as_text(text.tokenize(TEXTS)) == WORDS


def test_tokenize_in_tf_data():
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(4).map(text.tokenize)
    assert [row for batch in dataset for row in as_text(batch)] == WORDS


def test_ids_in_a_reloaded_saved_model(vocabulary, tmp_path):
    module = tf.Module()
    module.vocabulary = vocabulary
    module.ids = tf.function(
        lambda texts: vocabulary.ids(texts).to_tensor(), [tf.TensorSpec([None], tf.string)]
    )
    tf.saved_model.save(module, str(tmp_path / "m"))
    reloaded = tf.saved_model.load(str(tmp_path / "m"))
    expected = [[4, 5, 6], [4, 3, 0]]
    assert vocabulary.ids(["A dog runs.", "a zebra"]).to_tensor().numpy().tolist() == expected
    assert reloaded.ids(["A dog runs.", "a zebra"]).numpy().tolist() == expected


FORMS = {  # one text of one word each
    "full-width letters": ("\uff24\uff4f\uff47", "dog"),
    "full-width digits": ("\uff11\uff10", "10"),
    "full-width apostrophe": ("man\uff07s", "man's"),
    "ligatures": ("\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06", "fffiflffifflstst"),
    "superscript digits": ("m\u00b2\u2070\u00b9\u00b3\u2074\u2079", "m201349"),
    "subscript digits": ("H\u2082\u2080\u2089", "h209"),
    "ordinals": ("1\u00aa2\u00ba", "1a2o"),
    "curly quotes": ("\u201cmen\u2019s\u201d", "men's"),
    "sharp s": ("Stra\u00dfe", "strasse"),
    "capital sharp s": ("STRA\u1e9eE", "strasse"),
    "final sigma": ("\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c3"),
    "capital dotted I": ("\u0130stanbul", "istanbul"),
    "I and a dot": ("I\u0307stanbul", "istanbul"),
    "dotless i": ("k\u0131z", "k\u0131z"),
    "accents": ("E\u0301te\u0301", "\u00e9t\u00e9"),
    "Kelvin sign": ("\u212a", "k"),
    "Cyrillic": ("\u0421\u041e\u0411\u0410\u041a\u0410", "\u0441\u043e\u0431\u0430\u043a\u0430"),
    "marks": ("\u0928\u092e\u0938\u094d\u0924\u0947", "\u0928\u092e\u0938\u094d\u0924\u0947"),
    "format characters": ("\ufeffsea\u00adside\u200b", "seaside"),
    "variation selector": ("1\ufe0f", "1"),
}  # fmt: skip
SEPARATED = {  # what stands between "a" and "dog"
    "spaces": "\u00a0\u2009\u202f\u3000\u2028\t\r\n",
    "ellipsis": "\u2026",
    "dashes": "\u2013\u2014\uff0d",
    "full-width punctuation": "\uff01\uff0c\u3002",
    "NUL and controls": "\x00\x01\x7f\u0085",
    "emoji": "\U0001f415\u200d\U0001f9ba\ufe0f",
    "quotes without words": " ' \u2019\u2018 '\u0301' '' ",
    "noncharacters": "\ufffe\uffff\U0010ffff\ue000",
    "a mark without a letter": " \u0301",
}
HOSTILE = {  # invalid UTF-8 between "a" and "dog"
    "stray bytes": b"\xff\xfe\x80",
    "truncated": b" \xe2\x82 ",
    "overlong slash and NUL": b"\xc0\xaf\xc0\x80",
    "surrogates": b"\xed\xa0\x80\xed\xb0\x80",
    "beyond Unicode": b"\xf4\x90\x80\x80\xf8\x88\x80\x80\x80",
    "UTF-16 without characters": b"\x00\xd8\x00",
}


@pytest.mark.parametrize("case", FORMS)
def test_forms_of_a_word(case):
    written, word = FORMS[case]
    assert as_text(text.tokenize([written])) == [[word]]


@pytest.mark.parametrize("case", SEPARATED)
def test_what_separates_words(case):
    assert as_text(text.tokenize([f"a{SEPARATED[case]}Dog"])) == [["a", "dog"]]


@pytest.mark.parametrize("case", HOSTILE)
def test_invalid_utf8_separates_words_and_does_not_fail_the_other_rows(case):
    texts = [b"a" + HOSTILE[case] + b"Dog", b"runs"]
    assert as_text(text.tokenize(texts)) == [["a", "dog"], ["runs"]]


def test_a_row_does_not_depend_on_the_others():
    alone = [as_text(text.tokenize([written]))[0] for written in TEXTS]
    assert alone == WORDS


@pytest.mark.parametrize("locale", ["tr_TR.UTF-8", "lt_LT.UTF-8"])
def test_words_do_not_depend_on_the_locale(locale):
    """Where lower case has rules of its own for I and J, alone and with accents."""
    written = "I J \u0130 \u00cc \u00cd\u0303 J\u0301 \u012e\u0301 caf\u00e9"
    program = f"from mrnn_tf import text; print(text.tokenize([{written!r}]).to_list())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env=os.environ | {"LC_ALL": locale, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.strip() == str(text.tokenize([written]).to_list()), done.stderr


def test_build_counts_and_orders_words():
    vocabulary = text.Vocabulary.build(["b b a", "a c c c", "d"], min_count=2)
    assert vocabulary.words == (*schema.RESERVED_WORDS, "c", "a", "b")


def test_sentences_stop_at_the_end_sign(vocabulary):
    ids = tf.constant([[[1, 4, 5, 2, 6], [4, 6, 5, 2, 0]], [[2, 4, 0, 0, 0], [5, 5, 5, 5, 5]]])
    assert vocabulary.sentences(ids).numpy().tolist() == [
        [b"a dog", b"a runs dog"],
        [b"", b"dog dog dog dog dog"],
    ]


def test_save_and_load(vocabulary, tmp_path):
    path = str(tmp_path / "v.txt")
    vocabulary.save(path)
    assert text.Vocabulary.load(path).words == vocabulary.words


def test_bad_vocabularies_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no vocabulary at"):
        text.Vocabulary.load(str(tmp_path / "none.txt"))
    (tmp_path / "foreign.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"foreign.txt.*begins with <pad>"):
        text.Vocabulary.load(str(tmp_path / "foreign.txt"))
    (tmp_path / "latin.txt").write_bytes(b"<pad>\n<s>\n</s>\n<unk>\ncaf\xe9\n")
    with pytest.raises(UserError, match=r"latin\.txt is not a text in UTF-8"):
        text.Vocabulary.load(str(tmp_path / "latin.txt"))
    with pytest.raises(ValueError, match="'dog' twice"):
        text.Vocabulary((*schema.RESERVED_WORDS, "dog", "dog"))

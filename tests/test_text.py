import pytest
import tensorflow as tf

from mrnn_tf import schema, text

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


def test_invalid_utf8_does_not_fail_the_other_rows():
    assert as_text(text.tokenize([b"a \xff\xfe dog", b"runs"])) == [["a", "dog"], ["runs"]]


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
    with pytest.raises(ValueError, match="'dog' twice"):
        text.Vocabulary((*schema.RESERVED_WORDS, "dog", "dog"))

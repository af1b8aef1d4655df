import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tiny

from mrnn_tf import schema, text
from mrnn_tf.data import pipeline, records


@pytest.fixture(scope="module")
def vocabulary(tiny_data):
    return text.Vocabulary.load(f"{tiny_data}/{schema.VOCABULARY_FILE}")


@pytest.fixture
def source(tiny_data, vocabulary):
    return pipeline.Source(tiny_data, "train", vocabulary)


def rows(batches):
    """Captions of batches as comparable tuples."""
    return [tuple(row) for batch in batches for row in batch[schema.TARGET_IDS].numpy().tolist()]


def sentence(row):
    return row[: row.index(schema.END_ID) + 1]


def test_every_caption_comes_once_an_epoch(source):
    batches = pipeline.training_batches(source, 12, seed=1, shuffle_buffer=1000)
    seen = collections.Counter(sentence(row) for row in rows(itertools.islice(batches, 12)))
    once = collections.Counter(
        sentence(row) for row in rows(pipeline.evaluation_batches(source, 5))
    )
    assert sum(once.values()) == 72
    assert seen == {row: 2 * count for row, count in once.items()}


def test_a_batch_holds_inputs_targets_and_features_of_one_caption(source, vocabulary):
    for batch in itertools.islice(pipeline.training_batches(source, 8, seed=0), 6):
        words, targets = batch[schema.WORD_IDS].numpy(), batch[schema.TARGET_IDS].numpy()
        assert (words[:, 0] == schema.START_ID).all()
        np.testing.assert_array_equal(words[:, 1:], targets[:, :-1])
        assert ((targets == schema.END_ID).sum(axis=1) == 1).all()
        assert (targets != schema.PAD_ID).any(axis=0).all()  # no column of nothing but padding
        for features, text_ in zip(
            batch[schema.FEATURES].numpy(), vocabulary.sentences(targets).numpy(), strict=True
        ):
            colour, thing = features[:3].argmax(), features[3:7].argmax()
            assert f"{tiny.COLOURS[colour]} {tiny.THINGS[thing]}" in text_.decode()


def test_the_seed_decides_the_order(source):
    def first(seed):
        options = {"seed": seed, "shuffle_buffer": 100, "deterministic": True}
        return rows(itertools.islice(pipeline.training_batches(source, 6, **options), 8))

    assert first(3) == first(3)
    assert first(3) != first(4)


def test_epochs_differ(source):
    batches = iter(pipeline.training_batches(source, 12, seed=1, deterministic=True))
    epochs = [rows(itertools.islice(batches, 6)) for _ in range(2)]
    assert epochs[0] != epochs[1]


def test_an_iterator_resumes_from_its_checkpoint(source, tmp_path):
    def begin():
        return iter(pipeline.training_batches(source, 6, seed=5, deterministic=True))

    iterator = begin()
    for _ in range(17):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "it"))
    expected = rows(itertools.islice(iterator, 30))
    resumed = begin()
    tf.train.Checkpoint(iterator=resumed).read(path).assert_consumed()
    assert rows(itertools.islice(resumed, 30)) == expected


def test_workers_share_the_global_batch(source):
    def first(**options):
        batches = pipeline.training_batches(source, 8, seed=2, **options)
        return [batch[schema.TARGET_IDS].numpy() for batch in itertools.islice(batches, 5)]

    alone, parts = first(deterministic=True), [first(workers=2, worker=index) for index in range(2)]
    for whole, even, odd in zip(alone, *parts, strict=True):
        np.testing.assert_array_equal(whole[0::2], even)
        np.testing.assert_array_equal(whole[1::2], odd)
    with pytest.raises(ValueError, match="multiple of 3 workers"):
        pipeline.training_batches(source, 8, seed=2, workers=3)


def test_long_captions_are_counted_left_out_of_training_and_whole_in_evaluation(source):
    assert pipeline.count_long(source, max_words=6) == 24
    assert pipeline.count_long(source, max_words=10) == 0
    training = rows(itertools.islice(pipeline.training_batches(source, 8, 0, max_words=6), 12))
    assert max(len(sentence(row)) for row in training) == 7
    longest = max(len(sentence(row)) for row in rows(pipeline.evaluation_batches(source, 8)))
    assert longest == 11


def test_padding_is_under_a_tenth_of_the_words(tmp_path):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.normal(11, 4, 600).round(), 3, 30).astype(int)
    directory = str(tmp_path)
    [path] = records.shard_paths(directory, "train", 1)
    with tf.io.TFRecordWriter(path) as writer:
        for i, length in enumerate(lengths):
            writer.write(records.serialize(str(i), ["dog " * length], np.zeros(1)))
    records.DatasetInfo(
        "lengths",
        {"train": records.SplitCounts(600, 600, 1)},
        ("features",),
        None,
        1,
        {},
        None,
        {},
        "",
        "",
    ).save(directory)
    source = pipeline.Source(directory, "train", text.Vocabulary((*schema.RESERVED_WORDS, "dog")))
    words = padding = 0
    for batch in pipeline.training_batches(source, 16, seed=0).take(200):
        pads = int((batch[schema.TARGET_IDS].numpy() == schema.PAD_ID).sum())
        padding += pads
        words += batch[schema.TARGET_IDS].shape.num_elements() - pads
    assert 0 < padding / words < 0.1


def test_images_come_with_their_raw_captions(tiny_data, vocabulary):
    source = pipeline.Source(tiny_data, "val", vocabulary)
    batches = list(pipeline.image_batches(source, 5))
    assert [len(batch["ids"]) for batch in batches] == [5, 5, 2]
    assert batches[0]["ids"].numpy()[0] == b"val-0.jpg"
    assert batches[0]["captions"].to_list()[0][0] == b"A red dog."
    assert batches[0]["features"].shape == (5, tiny.FEATURE_SIZE)


def test_a_split_without_captions_and_a_store_that_is_not_there_are_refused(tmp_path, vocabulary):
    directory = str(tmp_path)
    [path] = records.shard_paths(directory, "test", 1)
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(records.serialize("a.jpg", [], np.zeros(1)))
    records.DatasetInfo(
        "bare", {"test": records.SplitCounts(1, 0, 1)}, ("features",), None, 1, {}, None, {}, "", ""
    ).save(directory)
    source = pipeline.Source(directory, "test", vocabulary)
    assert len(list(pipeline.image_batches(source, 4))) == 1
    with pytest.raises(ValueError, match="holds no captions"):
        pipeline.evaluation_batches(source, 4)
    with pytest.raises(ValueError, match="holds features but no images: prepare it with --store"):
        pipeline.Source(directory, "test", vocabulary, stores="images")


def test_shuffled_images_cover_an_epoch_resume_and_are_shared(source, tmp_path):
    def begin(**options):
        return iter(pipeline.training_images(source, 4, seed=3, deterministic=True, **options))

    def ids(iterator, batches):
        return [batch["ids"].numpy().tolist() for batch in itertools.islice(iterator, batches)]

    iterator = begin()
    epochs = [list(itertools.chain(*ids(iterator, 6))) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert len(set(epochs[0])) == 24
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "it"))
    expected = ids(iterator, 10)
    resumed = begin()
    tf.train.Checkpoint(iterator=resumed).read(path).assert_consumed()
    assert ids(resumed, 10) == expected
    [whole], [odd] = ids(begin(), 1), ids(begin(workers=2, worker=1), 1)
    assert odd == whole[1::2]
    batch = next(begin())
    assert batch["captions"].shape == (4, 3) and batch["captions"].dtype == tf.string
    with pytest.raises(ValueError, match="multiple of 3 workers"):
        pipeline.training_images(source, 4, seed=0, workers=3)


def test_captions_come_image_by_image(tiny_data):
    captions = list(pipeline.captions(tiny_data, "val"))
    assert len(captions) == 12
    assert tiny.captions_of(0, 0) in captions


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize(
    "read",
    [
        lambda source: pipeline.training_batches(source, 2, seed=0).take(3),
        lambda source: pipeline.training_images(source, 2, seed=0).take(3),
        lambda source: pipeline.evaluation_batches(source, 2),
        lambda source: pipeline.image_batches(source, 2),
    ],
    ids=["training", "training images", "evaluation", "images"],
)
def test_features_that_are_not_finite_are_refused_by_name(tmp_path, vocabulary, read, value):
    data = tiny.write(str(tmp_path), (("train", 3),), shards=1)
    [path] = records.shard_paths(data, "train", 1)
    rows = [row for row in tf.data.TFRecordDataset(path).as_numpy_iterator()]
    features = np.ones(tiny.FEATURE_SIZE, np.float32)
    features[7] = value
    with tf.io.TFRecordWriter(path) as writer:
        for row in [*rows[:2], records.serialize("of 2 [x].jpg", ["a red dog"], features)]:
            writer.write(row)
    records.DatasetInfo.load(data).save(data)
    source = pipeline.Source(data, "train", vocabulary)
    sentence = r"holds NaN or infinity in the features of of 2 \[x.*: prepare it again"
    with pytest.raises(ValueError, match=sentence), records.naming_corruption(data):
        list(read(source))


def test_an_id_that_is_not_utf8_does_not_fail_the_others(tmp_path):
    data = tiny.write(str(tmp_path / "data"), (("val", 2),), shards=1)
    [path] = records.shard_paths(data, "val", 1)
    foreign = records.serialize("X.jpg", ["a dog"], np.ones(12)).replace(b"X.jpg", b"\xff.jpg")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(foreign)
        writer.write(records.serialize("b.jpg", ["a cat"], np.ones(12)))
    tiny.edit(f"{data}/{schema.DATASET_FILE}")
    read = list(pipeline.captions_by_id(data, "val"))
    assert read == [("\ufffd.jpg", ["a dog"]), ("b.jpg", ["a cat"])]

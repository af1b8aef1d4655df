"""One reader of images: for evaluations and for the parts of an index."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

from mrnn_tf.data import records
from mrnn_tf.run import Run
from mrnn_tf.split import FeatureReader, Split


@pytest.fixture(scope="module")
def run(tiny_job):
    return Run.load(tiny_job)


def test_a_split_is_read_whole_or_its_first_images(run, tiny_data):
    split = Split.read(run, tiny_data, "train")
    assert len(split) == 24 and split.features.shape == (24, 12)
    assert split.has_captions and {len(own) for own in split.captions} == {3}
    few = Split.read(run, tiny_data, "train", limit=5)
    assert few.ids == split.ids[:5] and few.captions == split.captions[:5]
    np.testing.assert_array_equal(few.features, split.features[:5])
    assert Split.read(run, tiny_data, "train", limit=99).ids == split.ids


def test_chosen_rows_are_read_in_order(run, tiny_data):
    split, reader = Split.read(run, tiny_data, "train"), FeatureReader(run, tiny_data)
    rows = np.array([1, 8, 23])
    [(ids, features, captions)] = reader.batches(reader.shards("train"), rows)
    assert [image_id.decode() for image_id in ids] == [split.ids[row] for row in rows]
    np.testing.assert_array_equal(features, split.features[rows])
    assert captions[2][0].decode() == split.captions[23][0]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused_by_name(run, tmp_path, value):
    data = tiny.write(str(tmp_path / "data"), (("val", 3),))
    [path, *_] = records.DatasetInfo.load(data).shards(data, "val")
    features = np.ones(12, np.float32)
    features[7] = value
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(records.serialize("bad.jpg", ["a dog"], features))
    records.DatasetInfo.load(data).save(data)
    with pytest.raises(ValueError, match=r"holds NaN or infinity in the features of bad\.jpg"):
        Split.read(run, data, "val")

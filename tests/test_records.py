import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tiny

from mrnn_tf import schema
from mrnn_tf.data import records
from mrnn_tf.errors import UserError


def test_a_record_survives_the_round_trip(tiny_data):
    info = records.DatasetInfo.load(tiny_data)
    features = np.arange(tiny.FEATURE_SIZE, dtype=np.float32)
    one = records.serialize("a.jpg", ["Caf\u00e9 \u2026", "two"], features)
    none = records.serialize("b.jpg", [], -features)
    parsed = records.parse(tf.constant([one, none]), info, ["features"])
    assert parsed[schema.IDS].numpy().tolist() == [b"a.jpg", b"b.jpg"]
    assert parsed[schema.CAPTIONS].to_list() == [["Caf\u00e9 \u2026".encode(), b"two"], []]
    np.testing.assert_array_equal(parsed[schema.FEATURES], [features, -features])


def test_images_are_parsed_where_asked_for(tiny_data):
    info = records.DatasetInfo.load(tiny_data)
    serialized = tf.constant([records.serialize("a.jpg", ["x"], encoded=b"\xff\xd8")])
    assert records.parse(serialized, info, ["images"])[schema.IMAGES].numpy() == [b"\xff\xd8"]
    with pytest.raises(tf.errors.InvalidArgumentError):
        records.parse(serialized, info, ["features"])


def test_dataset_json_round_trip(tiny_data, tmp_path):
    info = records.DatasetInfo.load(tiny_data)
    info.save(str(tmp_path))
    assert records.DatasetInfo.load(str(tmp_path)) == info
    assert info.identity == tiny.IDENTITY


def test_dataset_json_on_a_remote_file_system(tiny_data):
    tf.io.gfile.makedirs("ram://records")
    records.DatasetInfo.load(tiny_data).save("ram://records")
    assert records.DatasetInfo.load("ram://records").splits["train"].images == 24


def test_a_dataset_without_its_marker_is_not_whole(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a whole dataset"):
        records.DatasetInfo.load(str(tmp_path))
    (tmp_path / schema.DATASET_FILE).write_text(json.dumps({"splits": {}}))
    with pytest.raises(ValueError, match="of mrnn_tf: "):
        records.DatasetInfo.load(str(tmp_path))


COUNTS = {"images": 24, "captions": 72, "shards": 2}


@pytest.mark.parametrize(
    "damage",
    [
        {"encoder": {"name": "vgg16"}},
        {"encoder": {"identity": 7}},
        {"encoder": {"identity": "a", "parts": [8, 5]}},
        {"encoder": {"identity": "a", "parts": [13, -1]}},
        {"encoder": {"identity": "a", "parts": 12}},
        {"encoder": []},
        {"feature_size": "12"},
        {"stores": "features"},
        {"splits": {"train": COUNTS | {"images": "24"}}},
        {"splits": {"train": COUNTS | {"images": -1}}},
        {"splits": {"train": COUNTS | {"shards": 10**12}}},
        {"splits": {"train": COUNTS | {"shards": {}}}},
        {"splits": {"../train": COUNTS}},
        {"splits": {"train": [24, 72, 2]}},
    ],
)
def test_a_damaged_description_is_refused(tiny_data, tmp_path, damage):
    marker = shutil.copy(Path(tiny_data) / schema.DATASET_FILE, tmp_path)
    tiny.edit(marker, lambda content: content.update(damage))
    with pytest.raises(UserError, match=r"dataset\.json is not a dataset\.json of mrnn_tf: "):
        records.DatasetInfo.load(str(tmp_path))


@pytest.mark.parametrize(
    "record",
    [
        b"no record",
        b"\n\xff",
        records.serialize("a.jpg", ["a dog"], np.zeros(3)),
        records.serialize("a.jpg", ["a dog"]),
        # Its bytes are in TensorFlow's error, which then cannot be decoded.
        records.serialize("a.jpg", ["a dog"], encoded=b"\x89PNG") + b"\xff",
    ],
)
def test_a_record_of_another_form_is_named(tiny_data, tmp_path, record):
    copy = shutil.copytree(tiny_data, tmp_path / "data")
    with tf.io.TFRecordWriter(str(copy / "val-00001-of-00002.tfrecord")) as writer:
        writer.write(record)
    info = records.DatasetInfo.load(str(copy))
    sentence = r"val-00001-of-00002\.tfrecord is corrupt at record 0: it is no image"
    with pytest.raises(UserError, match=sentence), records.naming_corruption(str(copy)):
        records.parse(tf.constant([record]), info, info.stores)


def test_an_unknown_split_is_named(tiny_data):
    with pytest.raises(ValueError, match="no split 'test'; it has train, val"):
        records.DatasetInfo.load(tiny_data).shards(tiny_data, "test")


@pytest.mark.parametrize(("damage", "record"), [("flip", 5), ("cut", 11)])
def test_a_corrupt_shard_is_named_with_the_record(tiny_data, tmp_path, damage, record):
    copy = shutil.copytree(tiny_data, tmp_path / "data")
    path = copy / "train-00001-of-00002.tfrecord"
    content = bytearray(path.read_bytes())
    size = len(content) // 12
    if damage == "flip":
        content[5 * size + size // 2] ^= 0xFF
    else:
        del content[-10:]
    path.write_bytes(content)
    sentence = rf"train-00001-of-00002\.tfrecord is corrupt at record {record}"
    with pytest.raises(ValueError, match=sentence), records.naming_corruption(str(copy)):
        list(tf.data.TFRecordDataset(str(path)))


def test_a_missing_shard_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="val-00000-of-00002"):
        records.count_records(str(tmp_path / "val-00000-of-00002.tfrecord"))


def test_computed_features_that_are_not_finite_are_refused_by_name():
    records.check_finite("The encoder", [b"a", "b"], np.ones([2, 3]))
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"The encoder holds NaN or infinity in .* of b:"):
            records.check_finite("The encoder", [b"a", "b"], np.array([[1.0, 2.0], [0.0, value]]))

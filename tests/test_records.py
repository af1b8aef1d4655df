import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tiny

from mrnn_tf import schema
from mrnn_tf.data import records


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

import dataclasses
import json

import pytest

from mrnn_tf.config import ModelConfig, TrainConfig


def test_a_config_goes_through_json_and_back():
    original = ModelConfig(variant="nic", dropout_embedding=0, multimodal=64)
    assert ModelConfig.from_dict(json.loads(json.dumps(original.to_dict()))) == original


def test_an_unknown_field_is_named_together_with_the_known_ones():
    with pytest.raises(ValueError, match=r"`ModelConfig` has no field `recurent`.*recurrent"):
        ModelConfig.from_dict({"recurent": 3})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"variant": "lstm"}, "`ModelConfig.variant` must be one of mrnn, .*got 'lstm'"),
        ({"cell": "rnn"}, "`ModelConfig.cell` must be one of mrnn, elman, gru, lstm"),
        ({"recurrent": 0}, "`ModelConfig.recurrent` must be of type int, at least 1; got 0"),
        ({"recurrent": True}, "`ModelConfig.recurrent` must be of type int"),
        ({"recurrent": 2.0}, "`ModelConfig.recurrent` must be of type int"),
        ({"dropout_embedding": 1.0}, "`ModelConfig.dropout_embedding` must be .*below 1; got 1.0"),
        ({"dropout_embedding": float("nan")}, "`ModelConfig.dropout_embedding` must be"),
        ({"dropout_embedding": "0.5"}, "`ModelConfig.dropout_embedding` must be of type float"),
        ({"recurrent": 10**400}, "`ModelConfig.recurrent` must be of type int"),
        ({"feature_norm": 10**400}, "`ModelConfig.feature_norm` must be of type float"),
        ({"feature_norm": -1.0}, "`ModelConfig.feature_norm` must be of type float, at least 0"),
    ],
)
def test_a_bad_value_is_named_with_what_is_wanted(values, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(values)


def test_a_removed_field_is_dropped_where_it_was_off_and_refused_otherwise():
    assert ModelConfig.from_dict({"image_dropout": 0.0, "multimodal": 64}).multimodal == 64
    assert TrainConfig.from_dict({"label_smoothing": 0}) == TrainConfig()
    with pytest.raises(ValueError, match=r"`ModelConfig\.image_dropout` was removed: .* got 0\.1"):
        ModelConfig.from_dict({"image_dropout": 0.1})
    with pytest.raises(
        ValueError, match=r"`TrainConfig\.schedule` must be one of constant, cosine"
    ):
        TrainConfig.from_dict({"schedule": "authors"})


def test_every_field_says_what_it_means():
    assert all(each.metadata["help"] for each in dataclasses.fields(ModelConfig))

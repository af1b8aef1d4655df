import dataclasses
import json

import pytest

from mrnn_tf.config import ModelConfig


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
        ({"feature_norm": -1.0}, "`ModelConfig.feature_norm` must be of type float, at least 0"),
    ],
)
def test_a_bad_value_is_named_with_what_is_wanted(values, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(values)


def test_every_field_says_what_it_means():
    assert all(each.metadata["help"] for each in dataclasses.fields(ModelConfig))

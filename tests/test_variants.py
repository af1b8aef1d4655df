import pytest

from mrnn_tf import config
from mrnn_tf.config import ModelConfig
from mrnn_tf.model import MRNN, WIRINGS

# Vocabulary, features, embedding layers, recurrent, multimodal: no two products alike.
V, D, E1, E2, R, M = 101, 37, 11, 13, 13, 17
SIZES = {"embedding_1": E1, "embedding_2": E2, "recurrent": R, "multimodal": M}

WORDS = V * E1 + E1 * E2
RECURRENT = R * R
SOFTMAX = M * V + V
PARAMETERS = {
    "mrnn": WORDS + RECURRENT + (E2 * M + R * M + D * M) + SOFTMAX,
    "rnn_base": WORDS + RECURRENT + (E2 * M + R * M) + SOFTMAX,
    "no_emb_input": WORDS + RECURRENT + (R * M + D * M) + SOFTMAX,
    "one_layer_emb": V * E2 + RECURRENT + (E2 * M + R * M + D * M) + SOFTMAX,
    "emb_one_input": WORDS + RECURRENT + (E1 * M + R * M + D * M) + SOFTMAX,
    "vis_in_rnn": WORDS + D * E2 + RECURRENT + (E2 * M + R * M) + SOFTMAX,
    "vis_in_rnn_both": WORDS + D * E2 + RECURRENT + (E2 * M + R * M + D * M) + SOFTMAX,
    "vis_in_rnn_both_shared": WORDS + D * E2 + RECURRENT + (E2 * E2 + R * E2) + (E2 * V + V),
    "mrnn_shared": WORDS + RECURRENT + (E2 * M + R * M + D * M) + (M * E1 + V),
    "nic": V * E2 + D * E2 + 4 * (E2 * R + R * R + R) + (R * V + V),
}


def test_the_table_has_the_names_of_the_config():
    assert tuple(WIRINGS) == config.VARIANTS == tuple(PARAMETERS)


def test_the_variants_whose_recurrence_sees_the_image():
    assert [name for name, wiring in WIRINGS.items() if wiring.recurrence_sees_image] == [
        "vis_in_rnn",
        "vis_in_rnn_both",
        "vis_in_rnn_both_shared",
        "nic",
    ]


@pytest.mark.parametrize("variant", WIRINGS)
def test_parameters_of_the_variants(variant):
    model = MRNN(ModelConfig(variant, **SIZES), V, D)
    assert model.parameter_count == PARAMETERS[variant]
    assert model.count_params() > model.parameter_count  # it counts the counters of dropout too


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        ("elman", E2 * 7 + 7 + 7 * 7),
        ("gru", 3 * (E2 * 7 + 7 + 7 * 7 + 7)),
        ("lstm", 4 * (E2 * 7 + 7 + 7 * 7)),
    ],
)
def test_parameters_of_the_cells(cell, count):
    model = MRNN(ModelConfig(cell=cell, **{**SIZES, "recurrent": 7}), V, D)
    assert model.parameter_count == WORDS + count + (E2 * M + 7 * M + D * M) + SOFTMAX

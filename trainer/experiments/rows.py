"""The rows of the tables: what is trained, with which settings, and how it is evaluated.

The rows of the paper's tables train for `EPOCHS` epochs, so that their differences are those of the
networks. A baseline that is not tuned makes a comparison worthless: the learning rates of m-RNN,
`vis_in_rnn` and NIC are the best of those in docs/results.md, by the perplexity on Flickr8k's
validation images after as many epochs. Other rows take that of m-RNN.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from mrnn_tf.config import ModelConfig, TrainConfig
from mrnn_tf.presets import PRESETS
from trainer.options import CAPTIONS, NEAREST, RERANK, RETRIEVAL

EPOCHS = 4.0
REFERENCES = (5, 40)  # of an image, in the server's table: c5 and c40
_LENGTH = {"epochs": EPOCHS, "evaluate_epochs": 2.0}
_SHORT = _LENGTH | {"learning_rate": 4e-3}


@dataclasses.dataclass(frozen=True)
class Row:
    """A network of a table.

    `model` and `train` are settings in which it differs from the preset; without a preset of its
    own it takes the one that the whole table has. A row that `supports_claim` has every seed,
    another the first alone.
    """

    label: str  # as the paper writes it
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    train: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _SHORT)
    preset: str | None = None
    tasks: tuple[str, ...] = (CAPTIONS,)
    supports_claim: bool = True
    initial_row: str | None = None  # whose run training begins with
    photographs: int | None = None  # training images; all by default
    widths: tuple[int, ...] = ()  # further beams

    def settings(self, preset: str, epochs: float | None) -> tuple[ModelConfig, TrainConfig]:
        """The whole settings; the seed and the initial run come with a run."""
        model, train = PRESETS[self.preset or preset]()
        length = {} if epochs is None else self.length(epochs)
        train = dataclasses.replace(train, **{**self.train, **length})
        return dataclasses.replace(model, **self.model), train

    @staticmethod
    def length(epochs: float) -> dict[str, float]:
        """The settings of a training of another length."""
        return {"epochs": epochs, "evaluate_epochs": min(1.0, epochs)}


ALL_TASKS = (CAPTIONS, RERANK, RETRIEVAL, NEAREST)
_UNITS = {size: {"embedding_2": size, "recurrent": size} for size in (128, 512)}
_PHOTOGRAPHS = {500: 28.0, 1000: 24.0, 2000: 20.0, 4000: 16.0, 6000: 14.0}  # few need more epochs

# In the order in which they are trained.
ROWS: dict[str, Row] = {
    "mrnn": Row("m-RNN", tasks=ALL_TASKS),
    "rnn_base": Row("RNN-Base", {"variant": "rnn_base"}),
    "one_layer_emb": Row("m-RNN-OneLayerEmb", {"variant": "one_layer_emb"}),
    "no_emb_input": Row("m-RNN-NoEmbInput", {"variant": "no_emb_input"}),
    "emb_one_input": Row("m-RNN-EmbOneInput", {"variant": "emb_one_input"}),
    "vis_in_rnn": Row("m-RNN-visInRnn", {"variant": "vis_in_rnn"}),
    "vis_in_rnn_both": Row(
        "m-RNN-visInRnn-both", {"variant": "vis_in_rnn_both"}
    ),
    "vis_in_rnn_both_shared": Row(
        "m-RNN-visInRnn-both-shared", {"variant": "vis_in_rnn_both_shared"}
    ),
    "vis_in_rnn_slow": Row(
        "m-RNN-visInRnn, small learning rate",
        {"variant": "vis_in_rnn"},
        _SHORT | {"learning_rate": 3e-4},
    ),
    "sigmoid": Row("m-RNN, sigmoid", {"activation": "sigmoid"}),
    "scaled_tanh": Row("m-RNN, scaled tanh", {"activation": "scaled_tanh"}),
    "mrnn_shared": Row("m-RNN-shared", preset="shared", train=_LENGTH, tasks=(CAPTIONS, RERANK)),
    "nic": Row("NIC", preset="nic", train=_LENGTH),
    "units_512": Row("m-RNN, 512 units", _UNITS[512]),
    "units_128": Row("m-RNN, 128 units", _UNITS[128], supports_claim=False),
    "elman": Row("m-RNN, Elman's cell", {"cell": "elman"}, supports_claim=False),
    "gru": Row("m-RNN, GRU", {"cell": "gru"}, supports_claim=False),
    "lstm": Row("m-RNN, LSTM", {"cell": "lstm"}, supports_claim=False),
    "paper": Row("preset `paper`", preset="paper", train={}, tasks=ALL_TASKS,
                 widths=(1, 3, 10)),
    "shared": Row("preset `shared`", preset="shared", train={}, tasks=ALL_TASKS,
                  widths=(1, 3, 10)),
    "best": Row("preset `best`", preset="best", train={}, tasks=ALL_TASKS,
                widths=(1, 3, 10), initial_row="paper"),
    **{
        f"photographs_{count}": Row(
            f"{count:,} photographs", train={"epochs": epochs, "patience": 5},
            photographs=count, supports_claim=False,
        )
        for count, epochs in _PHOTOGRAPHS.items()
    },
}  # fmt: skip

_SEVEN = ("mrnn", "no_emb_input", "one_layer_emb", "emb_one_input", "vis_in_rnn",
          "vis_in_rnn_both", "vis_in_rnn_both_shared")  # fmt: skip
# The rows of ours in every table, in its order.
TABLE_ROWS: dict[str, tuple[str, ...]] = {
    "generation": ("rnn_base", "nic", "mrnn", "mrnn_shared"),
    "retrieval": ("mrnn",),
    "server": ("mrnn",),
    "recurrent": ("units_128", "mrnn", "units_512", "sigmoid", "scaled_tanh", "elman", "gru",
                  "lstm", "nic"),
    "rerank": ("mrnn_shared", "mrnn"),
    "variants": (*_SEVEN, "vis_in_rnn_slow", "mrnn_shared", "rnn_base", "nic"),
    "presets": ("paper", "shared", "best"),
    "photographs": tuple(f"photographs_{count}" for count in _PHOTOGRAPHS),
}  # fmt: skip

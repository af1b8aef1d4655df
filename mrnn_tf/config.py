"""Settings as frozen dataclasses, checked when they are made, to and from JSON.

A run is made of a `ModelConfig` and a `TrainConfig`. The options of a program are a `Config` too,
and their fields are its flags: see `program`.
"""

# ruff: noqa: RUF009 (`field` makes fields, not values)

import dataclasses
import math
import os
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from mrnn_tf.errors import UserError

VARIANTS = (
    "mrnn", "rnn_base", "no_emb_input", "one_layer_emb", "emb_one_input", "vis_in_rnn",
    "vis_in_rnn_both", "vis_in_rnn_both_shared", "mrnn_shared", "nic",
)  # fmt: skip
CELLS = ("mrnn", "elman", "gru", "lstm")
ACTIVATIONS = ("relu", "sigmoid", "scaled_tanh")
# What can be chosen in programs by its name. Help lists it before TensorFlow is imported.
DATASETS = ("coco", "demo", "flickr30k", "flickr8k", "iaprtc12", "jsonl", "karpathy")
ENCODERS = (
    "efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "alexnet", "vgg16", "vgg19",
    "resnet50", "inception_v3", "mobilenet_v2", "efficientnet_v2_b0", "efficientnet_v2_s",
    "convnext_tiny",
)  # fmt: skip
POOLINGS = ("pooled", "cls", "mean", "cls_mean")  # of a vision transformer's tokens
SCALINGS = (
    "raw",
    "unit",
    "tf",
    "imagenet",
)  # of pixels: 0..255, 0..1, -1..1, by mean and deviation
TOKENIZERS = ("mrnn", "ptb", "treebank")
SAMPLE, MEAN, NONE = NORMALISERS = ("sample", "mean", "none")  # how log P(s) is taken
MBR, COMBINED = "mbr", "combined"
BY_NEIGHBOURS = ("bleu", "cider", COMBINED)
ORACLES = ("oracle_cider", "oracle_bleu")
RERANKING = (MBR, *BY_NEIGHBOURS, *ORACLES)
# What neighbours are near by; whitened are the refined ones, where the model refines features.
NEIGHBOUR_FEATURES = WHITENED, REFINED, ORIGINAL = ("whitened", "refined", "original")
# What is fixed where nothing else is said.
MAX_TEXT_WORDS = 200  # of a text that an exported model reads
MAX_PIXELS = 50 << 20  # of an image; a phone's 50 megapixels are a little more than 50 million
TOP_K = 10  # next words
SAMPLE_SIZE = 5000  # training images that log P(s) is taken of
NEIGHBOURS = 60  # of an image
REQUIRED = dataclasses.MISSING


def field(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float = -math.inf,
    below: float = math.inf,
) -> Any:
    """A field of a config: its default, what it means, and which values it may have.

    A field without a default has `REQUIRED` for one.
    """
    limits = {"choices": choices, "at_least": at_least, "below": below}
    return dataclasses.field(default=default, metadata={"help": help, **limits})


class Config:
    """What the configs share: every field is checked, and a dict of JSON values makes one.

    The type of a field is str, int, float, bool, a tuple of one of these, or any of them `| None`.
    """

    # Fields of earlier versions, each with the value that switches it off: `from_dict` drops these.
    removed: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self):
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            elif isinstance(value, tuple):
                value = tuple(os.fspath(v) if isinstance(v, os.PathLike) else v for v in value)
            object.__setattr__(self, each.name, value)
            if each.metadata and not _fits(each, value):
                name = f"{type(self).__name__}.{each.name}"
                raise UserError(f"`{name}` must be {_wanted(each)}; got {value!r}.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        names = [each.name for each in dataclasses.fields(cls)]
        own, kept = cls.__name__, {**values}
        for name, off in cls.removed.items():
            if (value := kept.pop(name, off)) != off:
                raise UserError(f"`{own}.{name}` was removed: it must be {off}; got {value!r}.")
        if unknown := [name for name in kept if name not in names]:
            fields = ", ".join(names)
            raise UserError(f"`{own}` has no field `{unknown[0]}`; its fields are {fields}.")
        return cls(**kept)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def item_type(each: dataclasses.Field) -> tuple[type, bool, bool]:
    """The type of a field's values, whether it holds several, and whether it may be `None`."""
    types_ = typing.get_args(each.type) if isinstance(each.type, types.UnionType) else (each.type,)
    [kind] = [t for t in types_ if t is not types.NoneType]
    several = typing.get_origin(kind) is tuple
    return (typing.get_args(kind)[0] if several else kind), several, len(types_) > 1


def _fits(each: dataclasses.Field, value: Any) -> bool:
    kind, several, optional = item_type(each)
    if value is None:
        return optional
    items = value if several else (value,)
    return type(items) is tuple and all(_is_one_of(each, kind, item) for item in items)


def _is_one_of(each: dataclasses.Field, kind: type, value: Any) -> bool:
    if type(value) not in ((int, float) if kind is float else (kind,)):
        return False
    if kind in (int, float):
        is_finite = abs(value) <= sys.float_info.max  # a whole number may be larger
        return is_finite and each.metadata["at_least"] <= value < each.metadata["below"]
    return not each.metadata["choices"] or value in each.metadata["choices"]


def _wanted(each: dataclasses.Field) -> str:
    kind, several, _ = item_type(each)
    if each.metadata["choices"]:
        return ("of " if several else "one of ") + ", ".join(each.metadata["choices"])
    wanted = f"a tuple of {kind.__name__}" if several else f"of type {kind.__name__}"
    if each.metadata["at_least"] > -math.inf:
        wanted += f", at least {each.metadata['at_least']}"
    if each.metadata["below"] < math.inf:
        wanted += f", below {each.metadata['below']}"
    return wanted


@dataclasses.dataclass(frozen=True)
class BeamSearch(Config):
    """How sentences are searched for: the only place where the width of a search is said."""

    beam: int = field(5, "width of the beam search, and sentences of an image", at_least=1)
    max_words: int = field(20, "the longest sentence", at_least=1)
    # 0.7 has the best BLEU-4 on Flickr8k's validation images.
    length_power: float = field(
        0.7, "sentences are ranked by log P / words^length_power", at_least=0.0
    )


@dataclasses.dataclass(frozen=True)
class RerankSettings(Config):
    """How hypotheses are scored by a method.

    The weights of `combined` were tuned on Flickr8k's validation images: of a run that was trained
    on CIDEr, other hypotheses lower the scores with any weight, and log P raises BLEU-4.
    """

    k: int = field(NEIGHBOURS, "how many neighbours")
    m: int | None = field(None, "captions that count: 125 for cider and combined, else 175")
    weight: float = field(0.0, "what the other hypotheses count in combined, up to 1")
    log_prob: float = field(0.2, "what log P / words^0.7 counts in combined", at_least=0.0)

    def __post_init__(self):
        super().__post_init__()
        if self.k < 1 or (self.m is not None and self.m < 1):
            raise UserError(f"`k` and `m` must be 1 at least, not {self.k} and {self.m}.")
        if not 0 <= self.weight <= 1:
            raise UserError(f"`weight` must be between 0 and 1, not {self.weight}.")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Config):
    """The network: its wiring and its sizes.

    The defaults are the paper's, except `feature_norm`: the paper takes the features as they are.
    """

    removed: ClassVar[Mapping[str, Any]] = {"image_dropout": 0.0}

    variant: str = field("mrnn", "wiring of the network", choices=VARIANTS)
    cell: str = field(
        "mrnn", "recurrent cell: the paper's (Eq. 2), Elman's (Eq. 1), GRU or LSTM", choices=CELLS
    )
    activation: str = field("relu", "f2 of the cell `mrnn`", choices=ACTIVATIONS)
    embedding_1: int = field(128, "size of word embedding layer I", at_least=1)
    embedding_2: int = field(256, "size of word embedding layer II", at_least=1)
    recurrent: int = field(256, "size of the recurrent layer", at_least=1)
    multimodal: int = field(512, "size of the multimodal layer", at_least=1)
    dropout_features: float = field(0.0, "dropout of the image features", at_least=0.0, below=1.0)
    dropout_embedding: float = field(0.5, "dropout of the words", at_least=0, below=1)
    dropout_recurrent: float = field(0.5, "dropout of the recurrent output", at_least=0, below=1)
    dropout_multimodal: float = field(0.5, "dropout of the multimodal layer", at_least=0, below=1)
    feature_norm: float = field(
        5.0, "length that feature vectors are scaled to; 0 leaves them alone", at_least=0.0
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig(Config):
    """How the network is trained."""

    removed: ClassVar[Mapping[str, Any]] = {"label_smoothing": 0.0}

    objective: str = field(
        "likelihood",
        "the paper's cost, or the expected CIDEr-D of what a beam search finds",
        choices=("likelihood", "cider"),
    )
    candidates: int = field(5, "sentences of an image that the objective cider weighs", at_least=2)
    initial_run: str = field("", "run directory whose best weights training begins with")
    epochs: float = field(20.0, "passes over the training captions", at_least=0.0)
    batch_size: int = field(128, "captions in a batch, over all devices and workers", at_least=1)
    optimizer: str = field("adam", "how gradients are applied", choices=("adam", "sgd"))
    learning_rate: float = field(1e-3, "the highest learning rate", at_least=0.0)
    momentum: float = field(0.0, "momentum of sgd", at_least=0.0, below=1.0)
    schedule: str = field("cosine", "course of the learning rate", choices=("constant", "cosine"))
    warmup_steps: int = field(
        100, "steps in which the learning rate rises, at most a fifth of all", at_least=0
    )
    clip_norm: float = field(10.0, "highest norm of the gradient; 0 clips nothing", at_least=0.0)
    l2: float = field(0.0, "lambda of Eq. 6, the weight of ||theta||^2", at_least=0.0)
    max_words: int = field(30, "longer training captions are left out", at_least=1)
    shuffle_buffer: int = field(4096, "captions that are shuffled at once", at_least=1)
    finetune_encoder: bool = field(False, "train the image encoder too, from stored images")
    encoder_learning_rate: float = field(1e-5, "highest rate of the encoder", at_least=0.0)
    evaluate_epochs: float = field(1.0, "epochs between two evaluations", at_least=0.001)
    patience: int = field(
        0, "evaluations without a better perplexity before the run stops; 0: never", at_least=0
    )
    checkpoint_steps: int = field(500, "most steps between two checkpoints", at_least=1)
    steps_per_loop: int = field(50, "most steps between two looks at the run", at_least=1)
    seed: int = field(0, "seed of weights, dropout and shuffling", at_least=0)
    deterministic: bool = field(False, "bit-identical results of equal commands")
    mixed_precision: bool = field(False, "compute in bfloat16")
    jit_compile: bool = field(False, "compile the training step by XLA (one device)")


@dataclasses.dataclass(frozen=True)
class RunConfig(Config):
    """The contents of a run's `config.json`: all that is needed to build its model again."""

    model: ModelConfig
    train: TrainConfig
    vocabulary_size: int = field(REQUIRED, "words, with the reserved ones", at_least=1)
    feature_size: int = field(REQUIRED, "values of an image", at_least=1)
    encoder: dict = field(REQUIRED, "what made the features; see DatasetInfo")
    dataset: str = field(REQUIRED, "the fingerprint of the training data")

    def __post_init__(self):
        super().__post_init__()
        check_description("RunConfig.encoder", self.encoder, self.feature_size)

    @property
    def feature_parts(self) -> tuple[int, ...]:
        """The sizes of the parts that the features are joined of."""
        return tuple(self.encoder.get("parts", [self.feature_size]))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        model = ModelConfig.from_dict(values["model"])
        train = TrainConfig.from_dict(values["train"])
        return super().from_dict({**values, "model": model, "train": train})

    def difference(self, other: "RunConfig") -> str | None:
        """The first setting in which two runs differ, as a sentence part; `None` if none."""
        mine, others = _flat(self.to_dict()), _flat(other.to_dict())
        for name in mine:
            if mine[name] != others.get(name):
                return f"{name} is {mine[name]!r} there and {others.get(name)!r} here"
        return None


def check_description(name: str, encoder: Mapping[str, Any], feature_size: int | None) -> None:
    """Refuses the description of an encoder without its identity, or with nested values.

    Joined features have `parts`, a list of sizes.
    """
    facts = {**encoder}
    parts = facts.pop("parts", [feature_size])
    is_plain = not any(isinstance(value, dict | list) for value in facts.values())
    if not is_plain or not isinstance(facts.get("identity"), str):
        wanted = "an `identity` of type str, and texts and numbers beside it"
        raise UserError(f"`{name}` must have {wanted}; got the keys {', '.join(encoder)}.")
    are_sizes = isinstance(parts, list) and all(type(size) is int and size > 0 for size in parts)
    if "parts" in encoder and not (are_sizes and sum(parts) == feature_size):
        wanted = f"sizes that add up to {feature_size}"
        raise UserError(f"`{name}` must have `parts` that are {wanted}; got {parts!r}.")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in values.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return flat


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings(Config):
    """What an encoder from a directory does not say itself."""

    pooling: str | None = field(
        None, "of keras_hub: what the features are; by default the first it has", choices=POOLINGS
    )
    input_size: int | None = field(
        None, "of saved_model and keras_hub: the images' side; by default its own", at_least=1
    )
    scaling: str | None = field(
        None, "of saved_model and keras_hub: of pixels; by default its own", choices=SCALINGS
    )

    @property
    def encoder_settings(self) -> dict[str, str | int]:
        """Those that were given."""
        names = [each.name for each in dataclasses.fields(EncoderSettings)]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification(Config):
    """The flag of every program that reads datasets, runs or versions."""

    verify: bool = field(False, "check every byte of the inputs first")

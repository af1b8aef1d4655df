"""What the programs can be asked, as options whose fields are flags; without TensorFlow."""

import dataclasses
import os

from mrnn_tf import schema
from mrnn_tf.config import (
    DATASETS,
    ENCODERS,
    NEIGHBOUR_FEATURES,
    NORMALISERS,
    REQUIRED,
    RERANKING,
    SAMPLE,
    SAMPLE_SIZE,
    WHITENED,
    BeamSearch,
    Config,
    EncoderSettings,
    ModelConfig,
    RerankSettings,
    TrainConfig,
    Verification,
    field,
)
from mrnn_tf.presets import PRESETS

WORK = ".work"  # in the folder of a dataset, until it is whole
# Of an evaluation.
CAPTIONS, RERANK, RETRIEVAL, NEAREST = TASKS = ("captions", "rerank", "retrieval", "neighbours")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareOptions(EncoderSettings):
    """Which dataset is read, what makes its features, and where the records go."""

    dataset: str = field(
        REQUIRED, f"format of the source: {', '.join(DATASETS)}; several are joined by commas"
    )
    source: str | None = field(
        None, "folder with the dataset's files, one for each dataset, or where to draw the demo"
    )
    output: str = field(REQUIRED, "folder for the records")
    encoder: str | None = field(
        None,
        f"image encoder: {', '.join(ENCODERS)}, saved_model:DIR or keras_hub:DIR_OR_NAME; several "
        f"are joined by +; default {ENCODERS[0]!r}",
    )
    encoder_weights: str | None = field(None, "file with the encoder's weights")
    crops: int | None = field(None, "views of an image that are averaged: 1 or 10; default 1")
    features: tuple[str, ...] | None = field(
        None, "precomputed features, .npy or .npz; those of several files are joined"
    )
    names: str | None = field(None, "text file with the image of each row of `features`")
    encoder_name: tuple[str, ...] | None = field(
        None, "what made `features`, one for each file or for all; by default the files' names"
    )
    store: str = field("features", "what to store", choices=("features", "images", "both"))
    pictures: bool = field(True, "with features alone: small JPEGs too, for people to see")
    validation: int = field(
        0, "training images to put aside, of a dataset without a validation split", at_least=0
    )
    min_count: int = field(5, "rarer training words become <unk>", at_least=1)
    images_per_shard: int = field(250, "images in a shard", at_least=1)
    seed: int = field(0, "seed of the training images' order and of random splits")
    strict: bool = field(False, "fail where the dataset has any problem")
    require_gpu: bool = field(False, "fail where there is no GPU")
    beam_flags: tuple[str, ...] = ()

    @property
    def stores(self) -> tuple[str, ...]:
        if self.store == schema.FEATURES and self.pictures:
            return schema.FEATURES, schema.PICTURES
        both = (schema.FEATURES, schema.IMAGES)
        return both if self.store == "both" else (self.store,)

    @property
    def work(self) -> str:
        """The folder of what is needed until the dataset is whole."""
        return os.path.join(self.output, WORK)

    @property
    def request(self) -> str:
        """The file with the fingerprint of the dataset that is being made."""
        return os.path.join(self.work, "request")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(Verification):
    """What a run is, where it reads and writes, and which of the workers this is.

    `TrainConfig.deterministic` and `TrainConfig.mixed_precision` are settings of the whole process:
    a caller other than `trainer.task` makes them before, as `trainer.task.set_up_process` does.

    Example:

        train(TrainOptions(data="data/photos", job_dir="runs/first"))
    """

    data: str = field(REQUIRED, "records made by trainer.prepare")
    job_dir: str = field(REQUIRED, "the run directory")
    checkpoint_dir: str | None = field(None, "default: $AIP_CHECKPOINT_DIR, or JOB_DIR/checkpoints")
    tensorboard_dir: str | None = field(None, "default: $AIP_TENSORBOARD_LOG_DIR, or JOB_DIR/logs")
    encoder_weights: str | None = field(None, "weights file, for --finetune_encoder or --export")
    profile_step: int | None = field(None, "profile the loop with this step")
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    workers: int = 1
    worker: int = 0  # the chief is 0

    def __post_init__(self):
        super().__post_init__()
        folders = {"checkpoint_dir": schema.CHECKPOINT_DIR, "tensorboard_dir": schema.LOG_DIR}
        for name, folder in folders.items():
            if not getattr(self, name):
                object.__setattr__(self, name, os.path.join(self.job_dir, folder))

    @property
    def claimed(self) -> dict[str, str]:
        """The directories that are one run's alone; checkpoints may lie elsewhere."""
        return {"job_dir": self.job_dir, "checkpoint_dir": self.checkpoint_dir}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions(TrainOptions):
    """What the program does beside training."""

    preset: str = field("paper", "settings to begin with", choices=tuple(sorted(PRESETS)))
    export: bool = field(False, "export the best weights as a SavedModel at the end")
    model_dir: str | None = field(
        None, "folder of the exported versions; default: $AIP_MODEL_DIR, or JOB_DIR/model"
    )
    require_gpu: bool = field(False, "fail where there is no GPU")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnsembleOptions(Config):
    """Which runs become one."""

    runs: tuple[str, ...] = field(REQUIRED, "run directories of one configuration")
    job_dir: str = field(REQUIRED, "a new run directory, for the merged run")


@dataclasses.dataclass(frozen=True)
class Decoding(BeamSearch):
    """The chosen beam search, the n-best list, and further widths to compare."""

    n_best: int = field(10, "width of the search for nbest.json, and its sentences", at_least=1)
    widths: tuple[int, ...] = field((1, 3, 5, 10), "further widths to compare", at_least=1)

    @property
    def rows(self) -> dict[str, int]:
        """The rows of the beam searches that are compared, with their widths."""
        return {f"beam {width}": width for width in sorted({*self.widths, self.beam})}

    @property
    def headline(self) -> str:
        """The row of the chosen beam."""
        return f"beam {self.beam}"


@dataclasses.dataclass(frozen=True)
class RetrievalSettings(Config):
    """How sentences are normalised, and how many images take part."""

    normaliser: str = field(SAMPLE, "log P(s) of the search for sentences", choices=NORMALISERS)
    sample: int = field(SAMPLE_SIZE, "training images that it is taken of", at_least=1)
    sample_seed: int = field(0, "which ones", at_least=0)
    images: int = field(0, "number of images to search; 0 searches all", at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Decoding, RetrievalSettings, Verification):
    """What is evaluated on which images, how captions are decoded, how sentences are ranked."""

    job_dir: str = field(REQUIRED, "the run directory")
    data: str = field(REQUIRED, "records made by trainer.prepare")
    split: str = field(schema.VAL, "which of its splits", choices=schema.SPLITS)
    reference_data: str | None = field(None, "records with the training split; default: --data")
    # By default captions, and rerank where there are training captions.
    tasks: tuple[str, ...] | None = field(
        None, f"of {', '.join(TASKS)}; default captions,rerank", choices=TASKS
    )
    output: str | None = field(None, "folder; default: report/ in the run directory")
    checkpoint_dir: str | None = field(None, "as given to trainer.task")
    checkpoint: str = field("best", "which weights", choices=("best", "latest"))
    tensorboard_dir: str | None = field(
        None, "logs of the run; default: $AIP_TENSORBOARD_LOG_DIR, or logs/ in the run directory"
    )
    batch_size: int = field(64, "images at a time", at_least=1)
    meteor: bool = field(True, "run METEOR where there is Java: half a minute more")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RerankOptions(RerankSettings, Verification):
    """What to rerank, and how."""

    hypotheses: str = field(REQUIRED, "file with n-best lists")
    output: str = field(REQUIRED, "file for the captions chosen")
    method: str = field("cider", "how to choose", choices=RERANKING)
    data: str | None = field(None, "records with the images and the training split")
    reference_data: str | None = field(None, "records with the training split; `data` by default")
    split: str = field(schema.VAL, "where the images are in the records", choices=schema.SPLITS)
    job_dir: str | None = field(None, "the run whose features tell what is near")
    references: str | None = field(None, "reference captions, for oracles and for tuning")
    features: str = field(WHITENED, "what neighbours are near by", choices=NEIGHBOUR_FEATURES)
    tune: bool = field(False, "cross-validate k and m on the split")

    @property
    def source(self) -> str:
        return f"the split {self.split} of {self.data}"


PAPER_TABLES = ("generation", "retrieval", "server", "recurrent", "rerank", "variants")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperOptions(Config):
    """Which tables are made of which datasets, and by how many runs."""

    data: tuple[str, ...] = field(
        REQUIRED, "records made by trainer.prepare, each as NAME=DIR or DIR"
    )
    output: str = field(REQUIRED, "folder for paper.md, paper.json and paper.html")
    runs: str | None = field(None, "folder for the run directories; default: runs/ in the output")
    tables: tuple[str, ...] = field(
        PAPER_TABLES, "which tables", choices=(*PAPER_TABLES, "presets", "photographs")
    )
    rows: tuple[str, ...] | None = field(None, "only these rows of the tables")
    split: str = field(schema.VAL, "the split that is evaluated", choices=schema.SPLITS)
    seeds: int = field(3, "runs of every row that supports a claim, with the seeds 0, 1, ...",
                       at_least=1)  # fmt: skip
    preset: str = field(
        "paper", "settings of rows without a preset of their own", choices=tuple(sorted(PRESETS))
    )
    epochs: float | None = field(None, "epochs of every row; default: its own", at_least=0.001)
    jobs: int = field(1, "runs side by side; they share the cores", at_least=1)
    train: bool = field(
        True, "make the runs that are missing; --notrain takes those that are there"
    )
    meteor: bool = field(False, "run METEOR too, where there is Java")

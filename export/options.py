"""What the programs can be asked, as options whose fields are flags; without TensorFlow."""

import dataclasses

from export.store_options import StoreOptions
from mrnn_tf.config import (
    MAX_PIXELS,
    MAX_TEXT_WORDS,
    NEIGHBOURS,
    REQUIRED,
    SAMPLE_SIZE,
    TOP_K,
    BeamSearch,
    Config,
    EncoderSettings,
    Verification,
    field,
)
from mrnn_tf.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(EncoderSettings, Verification):
    """What is exported, where it goes, and what is fixed then."""

    job_dir: str = field(REQUIRED, "the run directory")
    checkpoint_dir: str | None = field(None, "as given to trainer.task")
    checkpoint: str = field("best", "which weights", choices=("best", "latest"))
    output: str = field(REQUIRED, "folder of the versions, such as models/mrnn")
    version: int | None = field(None, "default: one more than the newest there", at_least=1)
    encoder: str | None = field(
        None, "image encoder to attach, as of trainer.prepare; by default the run's own"
    )
    encoder_weights: str | None = field(None, "file with its weights")
    beam: int = field(BeamSearch.beam, "width of the search; N of the signatures", at_least=1)
    top_k: int = field(TOP_K, "words that next_word returns", at_least=1)
    max_words: int = field(BeamSearch.max_words, "the longest sentence", at_least=1)
    length_power: float = field(
        BeamSearch.length_power, "sentences are ranked by log P / words^length_power", at_least=0.0
    )
    max_pixels: int = field(
        MAX_PIXELS, "a larger image is not decoded: it has no captions", at_least=1
    )
    max_text_words: int = field(
        MAX_TEXT_WORDS, "a sentence or a prefix of more words has no result", at_least=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexSettings(BeamSearch):
    """What an index fixes: K results of a search, and N captions, reranked by neighbours."""

    k: int = field(10, "results of a search", at_least=1)
    shortlist: int = field(0, "candidates scored exactly; 0: by their number", at_least=0)
    beam: int = field(10, "captions of an image that are reranked", at_least=1)
    neighbours: int = field(
        NEIGHBOURS, "near images whose captions they are compared with", at_least=1
    )
    max_text_words: int = field(MAX_TEXT_WORDS, "a query of more finds nothing", at_least=1)
    max_prefix_words: int = field(30, "a prefix of more finds nothing", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexOptions(StoreOptions, IndexSettings, Verification):
    """What is indexed, by which model, and where to."""

    model: str = field(REQUIRED, "a version of the model, such as models/mrnn/1, or their folder")
    output: str | None = field(None, "folder of the versions, such as models/mrnn_index")
    data: str | None = field(None, "folder of the records")
    splits: tuple[str, ...] | None = field(None, "splits of the records to index; default all")
    reference_data: str | None = field(None, "records of training images for P(s); default `data`")
    version: int | None = field(None, "default one more than the newest there", at_least=1)
    append_to: str | None = field(None, "a version of the index to begin with")
    sentences: str | None = field(None, "file of sentences to index, one a line")
    delete: str | None = field(
        None, "file of ids to leave out of the index to begin with, or of `store`"
    )
    sample: int | None = field(None, f"training images for P(s); default {SAMPLE_SIZE}", at_least=1)
    seed: int | None = field(None, "seed of their choice; default 0", at_least=0)
    show: str | None = field(
        None, "a sentence: print what it finds, and what the first image finds"
    )
    beam_flags: tuple[str, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if self.store:
            return
        if not self.output:
            raise UserError("`output` is required (--help shows an example).")
        for name in ("reference_data", "sample", "seed"):
            if getattr(self, name) is not None and self.append_to:
                raise UserError(
                    f"`{name}` was fixed when `append_to` {self.append_to} was made: leave it out."
                )
        for name, needed in (("delete", "append_to"), ("splits", "data")):
            if getattr(self, name) is not None and not getattr(self, needed):
                raise UserError(f"`{name}` goes with `{needed}`, which was not given.")
        if not (self.data or self.sentences or self.delete):
            raise UserError("`data` is required (--help shows an example).")
        if not (self.data or self.reference_data or self.append_to):
            raise UserError("`sentences` alone needs `reference_data`, for P(s).")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionsOptions(Config):
    """Which photographs are captioned, by which model, and where the captions go."""

    images: str = field(REQUIRED, "folder or bucket of the photographs, with those below")
    output: str = field(REQUIRED, "folder for the files of captions")
    model: str | None = field(None, "name of a pretrained model, or a path; default the packaged")
    n: int = field(1, "captions of a photograph", at_least=1)
    prefix: str = field("", "first words of every caption")
    format: str = field("jsonl", "of the files", choices=("jsonl", "parquet"))
    images_per_shard: int = field(1000, "photographs of a file", at_least=1)
    beam_flags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedOptions(Config):
    """Which run is packaged, and what the packaged model says of itself."""

    job_dir: str = field(REQUIRED, "the run directory")
    checkpoint: str = field("best", "which weights", choices=("best", "latest"))
    output: str = field(REQUIRED, "new folder of the model, such as mrnn_tf/pretrained/lite0")
    encoder: str | None = field(
        None, "image encoder of precomputed features; by default the run's own"
    )
    description: str = field(REQUIRED, "one line: network, encoder, data")
    terms: str = field(REQUIRED, "one line: under which terms the model may be used")
    scores: str | None = field(None, "scores.json of trainer.evaluate, with its figures")

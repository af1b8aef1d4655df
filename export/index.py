"""Makes an index of images and sentences, for search, as a SavedModel that TF Serving loads.

Example:

    python -m export.index --model models/mrnn/1 --data data/flickr8k --output models/mrnn_index

Writes the next version, models/mrnn_index/1 at first, with the signatures search_images,
search_sentences, similar_images and caption_reranked, and the arrays of the index in
assets.extra/index. More images, with or without captions, more sentences, which belong to no image,
and images to be left out make a new version of an index without computing the rest again:

    python -m export.index --model models/mrnn/1 --append_to models/mrnn_index/1 \\
        --data data/new --sentences more.txt --delete ids.txt --output models/mrnn_index

Any Apache Beam flag passes through, e.g. --direct_running_mode=multi_processing
--direct_num_workers=2. A stopped job is finished by the same command.
"""

import dataclasses
import hashlib
import io
import itertools
import json
import os

import numpy as np
import tensorflow as tf
from absl import flags, logging

import mrnn_tf
from export import index_check, index_parts, index_show, saved_model
from export.index_parts import PART_ENDING, Images, Made, MakePart, Part
from export.index_signatures import IndexServable, IndexSettings, index_signatures
from mrnn_tf import batch, files, program, schema
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.index import Entries, Header, Index
from mrnn_tf.retrieval.marginal import LIKELIEST, SAMPLE_SIZE
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.run import Run

_DEFAULT = IndexSettings()
_MODEL = flags.DEFINE_string("model", None, "A version of the model, such as models/mrnn/1.")
_DATA = flags.DEFINE_string("data", None, "Folder of the records.")
_SPLITS = flags.DEFINE_list("splits", None, "Splits of --data to index; by default all.")
_REFERENCE_DATA = flags.DEFINE_string(
    "reference_data", None, "Records of the training images for P(s); by default --data."
)
_OUTPUT = flags.DEFINE_string("output", None, "Folder of the versions, such as models/mrnn_index.")
_VERSION = flags.DEFINE_integer("version", None, "Default: one more than the newest there.", 1)
_APPEND_TO = flags.DEFINE_string("append_to", None, "A version of the index to begin with.")
_SENTENCES = flags.DEFINE_string("sentences", None, "File of sentences to index, one a line.")
_DELETE = flags.DEFINE_string("delete", None, "File of ids of --append_to to leave out.")
_SAMPLE = flags.DEFINE_integer("sample", SAMPLE_SIZE, "Training images for P(s).", 1)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of their choice.", 0)
_K = flags.DEFINE_integer("k", _DEFAULT.k, "Results of a search.", 1)
_SHORTLIST = flags.DEFINE_integer(
    "shortlist", _DEFAULT.shortlist, "Candidates that are scored exactly; 0: by their number.", 0
)
_BEAM = flags.DEFINE_integer("beam", _DEFAULT.beam, "Captions of an image that are reranked.", 1)
_NEIGHBOURS = flags.DEFINE_integer(
    "neighbours", _DEFAULT.neighbours, "Near images whose captions they are compared with.", 1
)
_MAX_WORDS = flags.DEFINE_integer("max_words", _DEFAULT.max_words, "The longest caption.", 1)
_LENGTH_POWER = flags.DEFINE_float(
    "length_power", _DEFAULT.length_power, "The beam search ranks by log P / words^length_power."
)
_SHOW = flags.DEFINE_string(
    "show", None, "A sentence: print which images it finds, and which sentences the first of them."
)

INDEX_FOLDER = "index"  # in assets.extra
_SENTENCES_IN_A_PART = 1000


def main(beam_flags: list[str]) -> None:
    _check_flags()
    options = batch.parse_options(beam_flags)
    version = _VERSION.value or saved_model.next_version(_OUTPUT.value)
    directory = tf.io.gfile.join(_OUTPUT.value, str(version))
    saved_model.refuse_overwriting(directory)

    # What there is.
    run = Run.from_saved_model(_MODEL.value)
    scorer = Scorer(run.network.model)
    old = _load_old(run)
    images = Images(run, _MODEL.value, _DATA.value) if _DATA.value else None
    reference = None if old else _reference(run, images)

    # The parts of what is new.
    work = tf.io.gfile.join(_OUTPUT.value, f".work-{_fingerprint(run, old, images, reference)}")
    parts = _plan(images, work)
    if tf.io.gfile.exists(work):
        logging.info("Finishing what %s holds in part.", work)
    tf.io.gfile.makedirs(work)
    sample = old.sample if old else _sample(scorer, reference, work)
    if parts:
        batch.run(
            parts,
            MakePart(_MODEL.value, _DATA.value, np.asarray(sample)),
            options,
            done=lambda: sum(name.endswith(PART_ENDING) for name in tf.io.gfile.listdir(work)),
            total=len(parts),
            unit="parts",
        )
    made = index_parts.collect(parts, images and images.info)
    _report_skipped(made)

    # The index, and the servable around it.
    index = _assemble(run, old, made, sample)
    settings = IndexSettings(
        _K.value,
        _SHORTLIST.value,
        _BEAM.value,
        _NEIGHBOURS.value,
        _MAX_WORDS.value,
        _LENGTH_POWER.value,
    )
    servable = IndexServable(run, index, settings)
    saved_model.write(
        servable,
        index_signatures(servable),
        run,
        {"index": dataclasses.asdict(index.header), "settings": dataclasses.asdict(settings)},
        index_check.expected,
        directory,
        add=lambda extra: index.save(os.path.join(extra, INDEX_FOLDER)),
    )
    tf.io.gfile.rmtree(work)
    print(f"indexed {len(index.ids):,} images and {len(index.captions):,} sentences: {directory}")
    if _SHOW.value:
        index_show.show(directory, _SHOW.value, index, images)
    base = os.path.dirname(_OUTPUT.value.rstrip("/")) or "."
    print(f"next: python -m serving.local --model_base_path {base}")


def _check_flags() -> None:
    for flag in (_MODEL, _OUTPUT):
        if flag.value is None:
            raise UserError(f"--{flag.name} is required (--help shows an example).")
    for flag in (_REFERENCE_DATA, _SAMPLE, _SEED):
        if flag.present and _APPEND_TO.value:
            raise UserError(
                f"--{flag.name} was fixed when --append_to {_APPEND_TO.value} was made: leave it "
                "out."
            )
    if _DELETE.value and not _APPEND_TO.value:
        raise UserError("--delete goes with --append_to, which was not given.")
    if _SPLITS.value is not None and not _DATA.value:
        raise UserError("--splits goes with --data, which was not given.")
    if not (_DATA.value or _SENTENCES.value or _DELETE.value):
        raise UserError("--data is required (--help shows an example).")
    if not (_DATA.value or _REFERENCE_DATA.value or _APPEND_TO.value):
        raise UserError("--sentences alone needs --reference_data, for P(s).")


def _load_old(run: Run) -> Index | None:
    """The index to begin with, which must hold what is to be left out."""
    if not _APPEND_TO.value:
        return None
    folder = tf.io.gfile.join(_APPEND_TO.value, "assets.extra", INDEX_FOLDER)
    old = Index.load(folder, run.fingerprint)
    if unknown := _to_delete() - set(old.ids):
        raise UserError(
            f"--delete {_DELETE.value} names {_text(min(unknown))}, which {_APPEND_TO.value} does "
            "not hold."
        )
    return old


def _to_delete() -> set[bytes]:
    return set(index_parts.read_lines(_DELETE.value)) if _DELETE.value else set()


def _reference(run: Run, images: Images | None) -> Images:
    """The dataset whose training images P(s) is taken from."""
    data = _REFERENCE_DATA.value
    found = Images(run, _MODEL.value, data) if data else images
    if schema.TRAIN not in found.info.splits:
        raise UserError(
            f"{data or _DATA.value} has no training images to take P(s) from: name a dataset that "
            "has some with --reference_data."
        )
    return found


def _fingerprint(
    run: Run, old: Index | None, images: Images | None, reference: Images | None
) -> str:
    """What tells the parts of this command from those of another one."""
    sampled = [_SAMPLE.value, _SEED.value, reference.info.fingerprint] if reference else []
    facts = [mrnn_tf.__version__, run.fingerprint, sampled]
    facts += [_DATA.value, images.info.fingerprint] if images else []
    digest = hashlib.sha256(json.dumps(facts).encode())
    if old:
        digest.update(np.ascontiguousarray(old.sample))
    if _SENTENCES.value:
        digest.update(b"\n".join(index_parts.read_lines(_SENTENCES.value)))
    return digest.hexdigest()[:16]


def _plan(images: Images | None, work: str) -> list[Part]:
    parts = []
    for split in (_SPLITS.value or images.info.splits) if images else ():
        for path in images.shards(split):
            name = os.path.basename(path).removesuffix(".tfrecord")
            parts.append(Part(path, tf.io.gfile.join(work, name + PART_ENDING), split))
    if _SENTENCES.value:
        count = len(index_parts.read_lines(_SENTENCES.value))
        for first in range(0, count, _SENTENCES_IN_A_PART):
            lines = first, min(first + _SENTENCES_IN_A_PART, count)
            output = tf.io.gfile.join(work, f"sentences-{first:09d}{PART_ENDING}")
            parts.append(Part(_SENTENCES.value, output, lines=lines))
    return parts


def _sample(scorer: Scorer, reference: Images, work: str) -> np.ndarray:
    """The sampled training images, taken once."""
    path = tf.io.gfile.join(work, "sample.npy")
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path, "rb") as file:
            return np.load(io.BytesIO(file.read()))
    found = index_parts.sample(scorer, reference, _SAMPLE.value, _SEED.value)
    content = io.BytesIO()
    np.save(content, found)
    files.write_whole(path, content.getvalue())
    return found


def _report_skipped(made: list[Made]) -> None:
    skipped = [image for each in made for image in each.skipped]
    if skipped:
        logging.warning(
            "%d images have no features and are left out, the first is %s.",
            len(skipped),
            _text(skipped[0]),
        )


def _assemble(run: Run, old: Index | None, made: list[Made], sample: np.ndarray) -> Index:
    """The old entries that stay and the new ones."""
    kept = [old.without(_to_delete())] if old else []
    entries = Entries.join([*kept, *(each.entries for each in made)])
    if not len(entries.ids) and not len(entries.captions):
        raise UserError("There is nothing to index: no image and no sentence.")
    ids = sorted(entries.ids)
    if twice := [one for one, other in itertools.pairwise(ids) if one == other]:
        raise UserError(
            f"The image {_text(twice[0])} would be there twice: leave one out "
            "with --delete or --splits."
        )
    size = run.network.model.multimodal_size
    header = Header(
        model=run.fingerprint,
        vocabulary=hashlib.sha256("\n".join(run.vocabulary.words).encode()).hexdigest(),
        encoder=run.config.encoder["identity"],
        seed=old.header.seed if old else _SEED.value,
        split=schema.TRAIN,
        likeliest=LIKELIEST,
        images=len(entries.ids),
        sentences=len(entries.captions),
        longest=entries.words.shape[1],
        size=size,
        sample=len(sample),
        tool_version=mrnn_tf.__version__,
    )
    return Index(
        **vars(entries), mean=sample.mean(axis=0), sample=np.asarray(sample), header=header
    )


def _text(image_id: bytes) -> str:
    return image_id.decode(errors="replace")


if __name__ == "__main__":
    program.run(main, pass_unknown_flags=True)

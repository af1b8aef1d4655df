"""Makes an index of images and sentences, for search, as a SavedModel that TF Serving loads.

Example:

    python -m export.index --model models/mrnn/1 --data data/flickr8k --output models/mrnn_index

Writes the next version, models/mrnn_index/1 at first, with the signatures search_images,
search_images_exact, search_prefix, search_sentences, similar_images, caption_reranked and
model_info, and the arrays of the index in assets.extra/index. More images, with or without
captions, more sentences, which belong to no image, and images to be left out make a new version of
an index without computing the rest again:

    python -m export.index --model models/mrnn/1 --append_to models/mrnn_index/1 \\
        --data data/new --sentences more.txt --delete ids.txt --output models/mrnn_index

Any Apache Beam flag passes through, e.g. --direct_running_mode=multi_processing
--direct_num_workers=2. A stopped job is finished by the same command.
"""

from export.options import IndexOptions, IndexSettings
from mrnn_tf import program

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("export.index:build_index", IndexOptions)

import collections
import dataclasses
import hashlib
import json
import os

import numpy as np
import tensorflow as tf
from absl import logging

import mrnn_tf
from export import index_check, index_parts, saved_model
from export.index_parts import PART_ENDING, MakePart
from export.index_signatures import IndexServable
from mrnn_tf import batch, schema, versions
from mrnn_tf.config import SAMPLE_SIZE
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.index import Entries, Header, Index
from mrnn_tf.retrieval.marginal import LIKELIEST
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import check_searchable, pad
from mrnn_tf.run import Run
from mrnn_tf.split import FeatureReader

INDEX_FOLDER = "index"  # in assets.extra
_SHOWN = 3  # results of a search for people
_STRING_BYTES = 24  # TensorFlow's record of a string, besides its text


def build_index(options: IndexOptions) -> str:
    """Writes a version of an index, and returns its directory."""
    beam_options = batch.parse_options(options.beam_flags)
    newest = versions.newest(options.model) or options.model
    options = dataclasses.replace(options, model=newest)
    directory = saved_model.version_directory(options.output, options.version)
    saved_model.refuse_overwriting(directory)

    # What there is.
    run = Run.from_saved_model(options.model)
    check_searchable(run.network.model)
    old = _load_old(options, run) if options.append_to else None
    reader = index_parts.open_dataset(run, options.model, options.data) if options.data else None
    reference = None if old else _reference(options, run, reader)

    # The parts of what is new.
    key = _fingerprint(options, run, old, reference, reader)
    work = tf.io.gfile.join(options.output, f".work-{key}")
    parts = index_parts.plan(reader, options.splits, options.sentences, work)
    if tf.io.gfile.exists(work):
        logging.info("Finishing what %s holds in part.", work)
    tf.io.gfile.makedirs(work)
    if old:
        seed = old.header.seed
        path = tf.io.gfile.join(_index_folder(options.append_to), index_parts.SAMPLE_FILE)
    else:
        size, seed = options.sample or SAMPLE_SIZE, options.seed or 0
        path = index_parts.write_sample(Scorer(run.network.model), reference, size, seed, work)
    if parts:
        batch.run(
            parts,
            MakePart(options.model, options.data, path),
            beam_options,
            done=lambda: sum(name.endswith(PART_ENDING) for name in tf.io.gfile.listdir(work)),
            total=len(parts),
            unit="parts",
        )
    entries, skipped = index_parts.collect(parts, reader)
    if skipped:
        told = "%d images have no features and are left out, the first is %s."
        logging.warning(told, len(skipped), _text(skipped[0]))

    # The index, and the servable around it.
    sample = index_parts.read_arrays(path)
    index = _assemble(run, [old, *entries] if old else entries, sample, seed)
    names = [field.name for field in dataclasses.fields(IndexSettings)]
    settings = IndexSettings(**{name: getattr(options, name) for name in names})
    servable = IndexServable(run, index, settings)
    saved_model.write(
        servable,
        run,
        {"index": dataclasses.asdict(index.header), "settings": settings.to_dict()},
        index_check.expected,
        directory,
        add=lambda extra: index.save(os.path.join(extra, INDEX_FOLDER)),
    )
    tf.io.gfile.rmtree(work)
    print(f"indexed {len(index.ids):,} images and {len(index.captions):,} sentences: {directory}")
    size = -(-variable_bytes(servable.tracked()) // 10**6)
    print(
        f"a server needs {size:,} MB for its variables, and {2 * size:,} MB while another version "
        "replaces it"
    )
    if options.show:
        _show(servable, options.show)
    base = os.path.dirname(options.output.rstrip("/")) or "."
    print(f"next: python -m serving.local --model_base_path {base}")
    return directory


def _index_folder(version: str) -> str:
    return tf.io.gfile.join(version, "assets.extra", INDEX_FOLDER)


def _load_old(options: IndexOptions, run: Run) -> Index:
    """The index to begin with, without what is to be left out."""
    old = Index.load(_index_folder(options.append_to), run.fingerprint)
    gone = set(index_parts.read_lines(options.delete)) if options.delete else set()
    if unknown := gone - set(old.ids):
        raise UserError(
            f"`delete` {options.delete} names {_text(min(unknown))}, which {options.append_to} "
            "does not hold."
        )
    return dataclasses.replace(old, **vars(old.without(gone)))


def _reference(options: IndexOptions, run: Run, reader: FeatureReader | None) -> FeatureReader:
    """The dataset whose training images P(s) is taken from."""
    if options.reference_data:
        reader = index_parts.open_dataset(run, options.model, options.reference_data)
    if schema.TRAIN not in reader.info.splits:
        raise UserError(
            f"{options.reference_data or options.data} has no training images to take P(s) from: "
            "name a dataset that has some with `reference_data`."
        )
    return reader


def _fingerprint(
    options: IndexOptions, run: Run, old: Index | None, *readers: FeatureReader | None
) -> str:
    """What tells the parts of this command from those of another one."""
    facts = [mrnn_tf.__version__, run.fingerprint, options.sample, options.seed, options.data]
    facts += [reader.info.fingerprint for reader in readers if reader]
    digest = hashlib.sha256(json.dumps(facts).encode())
    if old:
        digest.update(np.ascontiguousarray(old.sample))
    if options.sentences:
        digest.update(b"\n".join(index_parts.read_lines(options.sentences)))
    return digest.hexdigest()[:16]


def _assemble(run: Run, parts: list[Entries], sample: np.ndarray, seed: int) -> Index:
    entries = Entries.join(parts)
    if not len(entries.ids) and not len(entries.captions):
        raise UserError("There is nothing to index: no image and no sentence.")
    [(image_id, count)] = collections.Counter(entries.ids).most_common(1) or [(b"", 0)]
    if count > 1:
        raise UserError(
            f"The image {_text(image_id)} would be there twice: leave one out with `delete` or "
            "`splits`."
        )
    header = Header(
        **run.fingerprints,
        seed=seed,
        split=schema.TRAIN,
        likeliest=LIKELIEST,
        images=len(entries.ids),
        sentences=len(entries.captions),
        longest=entries.words.shape[1],
        size=run.network.model.multimodal_size,
        sample=len(sample),
        tool_version=mrnn_tf.__version__,
    )
    return Index(**vars(entries), mean=sample.mean(axis=0), sample=sample, header=header)


def variable_bytes(root: tf.Module) -> int:
    """The memory that the variables of a module take."""
    size = 0
    for variable in root.variables:
        if variable.dtype == tf.string:
            size += sum(_STRING_BYTES + len(text) for text in variable.numpy().flat)
        else:
            size += variable.shape.num_elements() * variable.dtype.size
    return size


def _show(servable: IndexServable, sentence: str) -> None:
    """Prints the images that a sentence finds, and the sentences that the first of them finds."""
    index, searcher = servable.index, servable.searcher
    print(f"\nimages for {sentence!r}:")
    words = pad(servable.vocabulary.ids([sentence]).to_list())
    [images] = searcher.search_images(words, _SHOWN).found()
    for row, score in images:
        own = np.flatnonzero(index.owners == row)
        caption = index.captions[own[0]] if len(own) else b""
        print(f"{score:9.3f}  {_text(index.ids[row])}  {_text(caption)}")
    if not images:
        print("nothing: the model knows none of its words.")
    elif len(index.captions):
        first = images[0][0]
        print(f"\nsentences for {_text(index.ids[first])}:")
        ids = [*index.ids, b""]  # the last is that of no image
        [sentences] = searcher.search_sentences(index.images[[first]], _SHOWN).found()
        for row, score in sentences:
            print(f"{score:9.3f}  {_text(ids[index.owners[row]])}  {_text(index.captions[row])}")
    print()


def _text(image_id: bytes) -> str:
    return image_id.decode(errors="replace")

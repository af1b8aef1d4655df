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

Past one machine, images go into a vector database, by their ids, and no version is needed:

    python -m export.index --model models/mrnn/1 --data data/flickr8k --store milvus \\
        --uri photos.db --metadata albums.jsonl

Any Apache Beam flag passes through, e.g. --direct_running_mode=multi_processing
--direct_num_workers=2. A stopped job is finished by the same command.
"""

from export.options import IndexOptions, IndexSettings
from mrnn_tf import program

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("export.index:build_index", IndexOptions)

import collections
import contextlib
import dataclasses
import hashlib
import json
import os

import numpy as np
import tensorflow as tf
from absl import logging

import mrnn_tf
from export import index_check, index_parts, saved_model, store
from export.index_parts import MakePart
from export.index_signatures import IndexServable
from mrnn_tf import batch, files, memory, schema, versions
from mrnn_tf.config import SAMPLE_SIZE
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.index import Entries, Header, Index
from mrnn_tf.retrieval.marginal import SCORED
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.search import SentenceTable
from mrnn_tf.retrieval.sentences import check_searchable, pad
from mrnn_tf.run import Run
from mrnn_tf.split import FeatureReader
from mrnn_tf.verification import verify

INDEX_FOLDER = "index"  # in assets.extra
_SHOWN = 3  # results of a search for people
_STRING_BYTES = 24  # TensorFlow's record of a string, besides its text


def build_index(options: IndexOptions) -> str:
    """Writes a version of an index and returns its directory, or fills a vector database."""
    if options.store:
        return store.fill(options)
    with contextlib.ExitStack() as claimed:
        return _build_index(options, claimed)


def _build_index(options: IndexOptions, claimed: contextlib.ExitStack) -> str:
    beam_options = batch.parse_options(options.beam_flags)
    newest = versions.newest(options.model) or options.model
    options = dataclasses.replace(options, model=newest)
    directory = saved_model.version_directory(options.output, options.version)
    saved_model.refuse_overwriting(directory)

    # What there is.
    if options.verify:
        verify(options.model, options.data, options.reference_data, options.append_to)
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
    claimed.enter_context(files.alone_in(work))
    size, seed = options.sample or SAMPLE_SIZE, old.header.seed if old else options.seed or 0

    def sample() -> np.ndarray:
        if old:
            return np.asarray(old.sample)
        return index_parts.sample_images(Scorer(run.network.model), reference, size, seed)

    path = index_parts.write_sample(work, sample)
    if parts:
        batch.run(
            parts,
            MakePart(options.model, options.data, path),
            beam_options,
            batch.counted(work),
            index_parts.size(reader, options.splits, options.sentences),
            "images and sentences",
        )
    entries, skipped = index_parts.collect(parts, reader)
    if skipped:
        told = "%d images have no features and are left out, the first is %s."
        logging.warning(told, len(skipped), _text(skipped[0]))

    # The index, and the servable around it.
    sampled = index_parts.read_sample(path)
    index = _assemble(run, [old, *entries] if old else entries, sampled, seed)
    old = entries = None  # they are in the index
    memory.give_back()
    names = [field.name for field in dataclasses.fields(IndexSettings)]
    settings = IndexSettings(**{name: getattr(options, name) for name in names})
    saved_model.number_names_anew()  # a job that went on has traced less by now
    servable = IndexServable(run, index, settings)
    index = servable.index  # its images are those of the searcher
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
    old = dataclasses.replace(old, **vars(old.without(gone)))
    if old.header.likeliest != SCORED and len(old.words):  # of two kinds of P(s) one would win
        table = SentenceTable.of(Scorer(run.network.model), old.words, old.sample)
        old = dataclasses.replace(old, log_marginals=table.marginals)
    return old


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
    facts += [SCORED, *(reader.info.fingerprint for reader in readers if reader)]
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
        likeliest=SCORED,
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
    exported = servable.settings.k, servable.settings.shortlist  # these searches are traced
    print(f"\nimages for {sentence!r}:")
    words = pad(servable.vocabulary.ids([sentence]).to_list())
    [images] = searcher.search_images(words, *exported).found()
    for row, score in images[:_SHOWN]:
        own = np.flatnonzero(index.owners == row)
        caption = index.captions[own[0]] if len(own) else b""
        print(f"{score:9.3f}  {_text(index.ids[row])}  {_text(caption)}")
    if not images:
        unknown = servable.vocabulary.unknown(sentence)
        none = f"the index knows none of these words: {' '.join(unknown)}"
        print(f"nothing: {none if len(unknown) == words.shape[1] - 1 else 'there are no images'}")
    elif len(index.captions):
        first = images[0][0]
        print(f"\nsentences for {_text(index.ids[first])}:")
        ids = [*index.ids, b""]  # the last is that of no image
        [sentences] = searcher.search_sentences(index.images[[first]], *exported).found()
        for row, score in sentences[:_SHOWN]:
            print(f"{score:9.3f}  {_text(ids[index.owners[row]])}  {_text(index.captions[row])}")
    print()


def _text(image_id: bytes) -> str:
    return image_id.decode(errors="replace")

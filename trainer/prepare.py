"""Turns a captioned dataset into TFRecord shards, a vocabulary and dataset.json.

Example, a folder of photographs described in captions.jsonl:

    python -m trainer.prepare --dataset jsonl --source photos --output data/photos

The same with precomputed features (row i of F.npy belongs to line i of N.txt):

    python -m trainer.prepare --dataset flickr8k --source flickr8k --output data/flickr8k \\
        --features F.npy --names N.txt --encoder_name resnet50

Features of several encoders are joined by --features F.npy,G.npy --encoder_name resnet50,dinov2.

Any Apache Beam flag passes through, e.g. --direct_running_mode=multi_processing
--direct_num_workers=2. A stopped run is finished by the same command.
"""

from mrnn_tf import program
from trainer.options import WORK, PrepareOptions

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("trainer.prepare:main", PrepareOptions)

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

import mrnn_tf
from mrnn_tf import batch, files, schema, text
from mrnn_tf.batch import beam
from mrnn_tf.data import demo, readers, records, shards
from mrnn_tf.data.features import FeatureTable
from mrnn_tf.data.listing import CaptionedImage, Problems, cut_validation
from mrnn_tf.errors import UserError
from mrnn_tf.vision import crops, encoders

_OTHER_DATASET = "`output` {} holds another dataset: choose another folder."
_PART_OF_OTHER = "`output` {} holds a part of another dataset: delete it or choose another."


class WriteShard(beam.DoFn):
    """Writes one shard; loads the encoder or opens the features once per worker."""

    def __init__(self, stores: tuple[str, ...], encoder: tuple | None, table: tuple | None):
        self._stores, self._encoder_spec, self._table_spec = stores, encoder, table

    def setup(self):
        self._encoder = None
        if self._encoder_spec:
            arguments, settings = self._encoder_spec
            self._encoder = encoders.create(*arguments, **settings).folded()
        self._table = FeatureTable(*self._table_spec) if self._table_spec else None

    def process(self, shard: shards.Shard):
        if not shard.is_written:
            with batch.Counter(shard.work) as counter:
                shards.write_shard(shard, self._stores, self._encoder, self._table, counter.add)


def prepare(options: PrepareOptions) -> records.DatasetInfo:
    """Writes the records of a dataset, unless they are there already."""
    with contextlib.ExitStack() as claimed:
        return _prepare(options, claimed)


def _prepare(options: PrepareOptions, claimed: contextlib.ExitStack) -> records.DatasetInfo:
    _check(options)
    beam_options = batch.parse_options(options.beam_flags)
    program.log_devices(options.require_gpu)

    # What there is.
    problems = Problems()
    source = options.source or tf.io.gfile.join(options.work, "source")
    _refuse_other(options, source)
    if options.dataset == "demo":
        logging.info("Drawing the demo in %s", source)
        demo.write(source, options.seed)
    listing = readers.read_dataset(options.dataset, source, problems, options.seed)
    logging.info("%s: %d images", options.dataset, len(listing))
    if options.validation:
        listing = cut_validation(listing, options.validation, options.seed)
        drawn = f"{options.validation} training images, drawn by lot with seed {options.seed}"
        logging.info("The validation split is a cut of %s.", drawn)

    # What makes the features.
    encoder_spec = table_spec = table = None
    if options.features:
        table_spec = (options.features, options.names)
        table = FeatureTable(*table_spec)
        missing = [image.image_id for image in listing if table.row(image.image_id) is None]
        if len(missing) == len(listing):
            raise UserError(
                f"`names` {options.names} names no image of `source` {options.source}: "
                f"the dataset's first is {missing[0]}."
            )
        for name in missing:
            problems.add("image without features", name)
        listing = [image for image in listing if table.row(image.image_id) is not None]
        table.check_finite()
        description = _describe(options, table.parts)
    else:
        name = options.encoder or encoders.NAMES[0]
        arguments = (name, options.encoder_weights, options.crops or 1)
        encoder_spec = (arguments, options.encoder_settings)
        encoder = encoders.create(*arguments, **options.encoder_settings)
        description = {"identity": encoder.identity, **encoder.describe()}
    if schema.FEATURES not in options.stores:
        encoder_spec = None  # only named, for a run that trains it
    said = _report(options, problems)

    # Where it goes.
    claimed.enter_context(files.alone_in(options.output))
    features = description["identity"], table and table.fingerprint()
    fingerprint = _fingerprint(options, listing, *features)
    if _is_finished(options, fingerprint):
        return records.DatasetInfo.load(options.output)

    plan = shards.plan(
        listing, options.output, options.work, options.images_per_shard, options.seed, table
    )
    work = WriteShard(options.stores, encoder_spec, table_spec)
    batch.run(plan, work, beam_options, batch.counted(options.work), len(listing), "images")
    splits, pictures, skipped = shards.collect(plan)
    if skipped:
        for image in skipped:
            problems.add(*image)
        _report(options, problems, said)
    if not any(split.images for split in splits.values()):
        raise UserError(f"No image of `source` {source} could be read: nothing was prepared.")

    # The vocabulary, from the training captions that were written; the marker last.
    lost = {image.image_id for image in skipped}
    kept = [i for i in listing if i.split == schema.TRAIN and i.image_id not in lost]
    captions = [caption for image in kept for caption in image.captions]
    vocabulary = text.Vocabulary.build(captions, options.min_count) if captions else None
    if vocabulary:
        vocabulary.save(tf.io.gfile.join(options.output, schema.VOCABULARY_FILE))
    info = records.DatasetInfo(
        dataset=options.dataset,
        splits=splits,
        stores=tuple(s for s in options.stores if pictures or s != schema.PICTURES),
        encoder=description,
        feature_size=description["feature_size"],
        tokenizer={**text.SETTINGS, "min_count": options.min_count},
        vocabulary_size=len(vocabulary) if vocabulary else None,
        problems=problems.counts(),
        fingerprint=fingerprint,
        tool_version=mrnn_tf.__version__,
    )
    info.save(options.output)
    tf.io.gfile.rmtree(options.work)
    return info


def _check(options: PrepareOptions) -> None:
    if options.source is None and options.dataset != "demo":
        raise UserError(f"`source` is required for `dataset` {options.dataset}.")
    if options.features:
        if options.encoder or options.encoder_weights:
            raise UserError("`features` and `encoder` exclude each other: give one of them.")
        for name in ("crops", *options.encoder_settings):
            if getattr(options, name):
                raise UserError(f"`{name}` goes with `encoder`, not with `features`.")
        if options.store == schema.IMAGES:
            raise UserError("`features` needs `store` features or both.")
        named, wanted = len(options.encoder_name or ()), len(options.features)
        if named not in (0, 1, wanted):
            has = f"`encoder_name` has {named} names, but `features` {wanted} files"
            raise UserError(f"{has}: give one name, or one for each file.")
    elif options.names or options.encoder_name:
        name = "names" if options.names else "encoder_name"
        raise UserError(f"`{name}` goes with `features`, which was not given.")
    if options.crops not in (None, *crops.COUNTS):
        raise UserError(f"`crops` must be one of {crops.COUNTS}; got {options.crops}.")


def _describe(options: PrepareOptions, parts: list[int]) -> dict:
    """What is said of precomputed features, as encoders describe themselves."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in options.features]
    name = "+".join(options.encoder_name or stems)
    identity = f"features:{name}:{'+'.join(map(str, parts))}"
    joined = {"parts": parts} if len(parts) > 1 else {}
    return {"identity": identity, "feature_size": sum(parts), **joined}


def _report(options: PrepareOptions, problems: Problems, said: Sequence[str] = ()) -> list[str]:
    """Names what is wrong with a dataset: all of it in a file, the first few in the log.

    Returns the lines of the log; those that were `said` before are left out. The file of a dataset
    that is whole stays.
    """
    path = tf.io.gfile.join(options.output, schema.PROBLEMS_FILE)
    if not tf.io.gfile.exists(tf.io.gfile.join(options.output, schema.DATASET_FILE)):
        if len(problems):
            files.write_whole(path, problems.json_lines())
        elif tf.io.gfile.exists(path):  # of an earlier attempt
            tf.io.gfile.remove(path)
    sentences = problems.sentences()
    for sentence in sentences:
        if sentence not in said:
            logging.warning("%s", sentence)
    if sentences:
        logging.warning("All %d problems are in %s", len(problems), path)
        if options.strict:
            raise UserError(f"`strict`: {'; '.join(sentences)}; all of them are in {path}.")
    return sentences


def _fingerprint(options: PrepareOptions, listing: list[CaptionedImage], *features) -> str:
    numbers = (options.min_count, options.images_per_shard, options.seed)
    settings = [options.dataset, *features, options.stores, *numbers, mrnn_tf.__version__]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for image in listing:
        digest.update(json.dumps([image.image_id, image.split, image.captions]).encode())
    return digest.hexdigest()[:16]


def _refuse_other(options: PrepareOptions, source: str) -> None:
    """Refuses a folder that holds something else, before anything is read or drawn."""
    output, is_drawn = options.output, options.dataset == "demo" and not options.source
    names = tf.io.gfile.listdir(output) if tf.io.gfile.isdir(output) else []
    names = {name.rstrip("/") for name in names}
    if names - {WORK, schema.PROBLEMS_FILE} and not names & {WORK, schema.DATASET_FILE}:
        raise UserError(f"`output` {output} holds other files: choose a new or empty folder.")
    if schema.DATASET_FILE in names:
        if records.DatasetInfo.load(output).dataset != options.dataset:
            raise UserError(_OTHER_DATASET.format(output))
    elif is_drawn and not tf.io.gfile.exists(source) and tf.io.gfile.exists(options.request):
        raise UserError(_PART_OF_OTHER.format(output))  # a demo is drawn before its request


def _is_finished(options: PrepareOptions, fingerprint: str) -> bool:
    """Claims the output folder; refuses one that holds another dataset, or a part of one."""
    output, work = options.output, options.work
    is_whole = tf.io.gfile.exists(tf.io.gfile.join(output, schema.DATASET_FILE))
    if is_whole:
        if tf.io.gfile.exists(work):
            tf.io.gfile.rmtree(work)
        present = records.DatasetInfo.load(output).fingerprint
    elif tf.io.gfile.exists(options.request):
        with tf.io.gfile.GFile(options.request) as file:
            present = file.read()
    else:
        files.write_whole(options.request, fingerprint)
        return False
    if present != fingerprint:
        raise UserError((_OTHER_DATASET if is_whole else _PART_OF_OTHER).format(output))
    state = "holds this dataset already" if is_whole else "holds a part of this dataset: finishing"
    logging.info("%s %s.", output, state)
    return is_whole


def main(options: PrepareOptions) -> None:
    """Prepares the dataset and prints what it holds."""
    info = prepare(options)
    for name, split in info.splits.items():
        print(f"{name:5}  {split.images:7,} images  {split.captions:8,} captions")
    if info.vocabulary_size:
        words = info.vocabulary_size - len(schema.RESERVED_WORDS)
        print(f"vocabulary: {words:,} words and {len(schema.RESERVED_WORDS)} reserved")
    if schema.PICTURES in info.stores:
        print("with small pictures, for reports and TensorBoard (--nopictures leaves them out)")
    if info.vocabulary_size:
        task = f"trainer.task --data {options.output} --job_dir runs/first --preset paper"
        print(f"next: python -m {task}")
    else:
        print("there are no training captions: these records are for a run that is trained already")

"""Turns a captioned dataset into TFRecord shards, a vocabulary and dataset.json.

Example, a folder of photographs described in captions.jsonl:

    python -m trainer.prepare --dataset jsonl --source photos --output data/photos

The same with precomputed features (row i of F.npy belongs to line i of N.txt):

    python -m trainer.prepare --dataset flickr8k --source flickr8k --output data/flickr8k \\
        --features F.npy --names N.txt --encoder_name resnet50

Any Apache Beam flag passes through, e.g. --direct_running_mode=multi_processing
--direct_num_workers=2. A stopped run is finished by the same command.
"""

import hashlib
import json
import os

import tensorflow as tf
from absl import flags, logging

import mrnn_tf
from mrnn_tf import batch, files, program, schema, text
from mrnn_tf.batch import beam
from mrnn_tf.data import demo, readers, records, shards
from mrnn_tf.data.features import FeatureTable
from mrnn_tf.data.listing import CaptionedImage, Problems
from mrnn_tf.errors import UserError
from mrnn_tf.vision import encoders

_DATASET = flags.DEFINE_enum("dataset", None, sorted(readers.READERS), "Format of the source.")
_SOURCE = flags.DEFINE_string(
    "source", None, "Folder with the dataset's files; where `demo` is drawn if it is not there yet."
)
_OUTPUT = flags.DEFINE_string("output", None, "Folder for the records.")
_ENCODER = flags.DEFINE_string(
    "encoder", encoders.NAMES[0], f"Image encoder: {', '.join(encoders.NAMES)}."
)
_ENCODER_WEIGHTS = flags.DEFINE_string("encoder_weights", None, "File with the encoder's weights.")
_CROPS = flags.DEFINE_enum("crops", "1", ["1", "10"], "Views of an image that are averaged.")
_FEATURES = flags.DEFINE_string("features", None, "Precomputed features, .npy or .npz.")
_NAMES = flags.DEFINE_string("names", None, "Text file with the image of each row of --features.")
_ENCODER_NAME = flags.DEFINE_string(
    "encoder_name", None, "What made --features; by default the file's name."
)
_STORE = flags.DEFINE_enum("store", "features", ["features", "images", "both"], "What to store.")
_MIN_COUNT = flags.DEFINE_integer("min_count", 5, "Rarer training words become <unk>.", 1)
_IMAGES_PER_SHARD = flags.DEFINE_integer("images_per_shard", 250, "Images in a shard.", 1)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the training images' order and of random splits.")
_STRICT = flags.DEFINE_bool("strict", False, "Fail where the dataset has any problem.")
_REQUIRE_GPU = flags.DEFINE_bool("require_gpu", False, "Fail where there is no GPU.")

_WORK = ".work"
_REQUEST = "request"
_OTHER_DATASET = "--output {} holds another dataset: choose another folder."
_PART_OF_OTHER = "--output {} holds a part of another dataset: delete it or choose another."


class WriteShard(beam.DoFn):
    """Writes one shard; loads the encoder or opens the features once per worker."""

    def __init__(self, stores: tuple[str, ...], encoder: tuple | None, table: tuple | None):
        self._stores, self._encoder_spec, self._table_spec = stores, encoder, table

    def setup(self):
        self._encoder = encoders.create(*self._encoder_spec) if self._encoder_spec else None
        self._table = FeatureTable(*self._table_spec) if self._table_spec else None

    def process(self, shard: shards.Shard):
        shards.write_shard(shard, self._stores, self._encoder, self._table)


def main(beam_flags: list[str]) -> None:
    for flag in (_DATASET, _OUTPUT):
        if flag.value is None:
            raise UserError(f"--{flag.name} is required (--help shows an example).")
    if _SOURCE.value is None and _DATASET.value != "demo":
        raise UserError(f"--source is required for --dataset {_DATASET.value}.")
    if _FEATURES.value and (_ENCODER.present or _ENCODER_WEIGHTS.value):
        raise UserError("--features and --encoder exclude each other: give one of them.")
    if _FEATURES.value and _STORE.value == "images":
        raise UserError("--features needs --store features or both.")
    for flag in (_NAMES, _ENCODER_NAME):
        if flag.value and not _FEATURES.value:
            raise UserError(f"--{flag.name} goes with --features, which was not given.")
    if _FEATURES.value and _CROPS.present:
        raise UserError("--crops goes with --encoder, not with --features.")
    options = batch.parse_options(beam_flags)
    program.log_devices(_REQUIRE_GPU.value)
    stores = ("features", "images") if _STORE.value == "both" else (_STORE.value,)
    work = tf.io.gfile.join(_OUTPUT.value, _WORK)

    # What there is.
    problems = Problems()
    source = _SOURCE.value or tf.io.gfile.join(work, "source")
    if _DATASET.value == "demo":
        _refuse_to_draw(_OUTPUT.value, work, source)
        logging.info("Drawing the demo in %s", source)
        demo.write(source, _SEED.value)
    listing = readers.read_dataset(_DATASET.value, source, problems, _SEED.value)
    logging.info("%s: %d images", _DATASET.value, len(listing))

    # What makes the features.
    encoder_spec = table_spec = table = description = None
    if _FEATURES.value:
        table_spec = (_FEATURES.value, _NAMES.value)
        table = FeatureTable(*table_spec)
        listing = _with_features(listing, table, problems)
        table.check_finite()
        name = _ENCODER_NAME.value or os.path.splitext(os.path.basename(_FEATURES.value))[0]
        description = {"identity": f"features:{name}:{table.size}", "feature_size": table.size}
    else:
        encoder_spec = (_ENCODER.value, _ENCODER_WEIGHTS.value, int(_CROPS.value))
        encoder = encoders.create(*encoder_spec)
        description = {"identity": encoder.identity, **encoder.describe()}
    if "features" not in stores:
        encoder_spec = None  # only named, for a run that trains it
    _report(problems)

    # Where it goes.
    fingerprint = _fingerprint(listing, description, stores, table)
    if _is_finished(_OUTPUT.value, work, fingerprint):
        logging.info("%s holds this dataset already.", _OUTPUT.value)
        return _say_next()

    plan = shards.plan(listing, _OUTPUT.value, work, _IMAGES_PER_SHARD.value, _SEED.value, table)
    batch.run(
        plan,
        WriteShard(stores, encoder_spec, table_spec),
        options,
        done=shards.ShardProgress(plan),
        total=len(listing),
        unit="images",
    )
    splits, skipped = shards.collect(plan)
    for kind, name in skipped:
        problems.add(kind, name)
    if skipped:
        _report(problems)
    if not any(split.images for split in splits.values()):
        raise UserError(f"No image of --source {source} could be read: nothing was prepared.")

    # The vocabulary, from the training captions that were written; the marker last.
    lost = {name for _, name in skipped}
    captions = [
        caption
        for image in listing
        if image.split == schema.TRAIN and image.image_id not in lost
        for caption in image.captions
    ]
    vocabulary = text.Vocabulary.build(captions, _MIN_COUNT.value) if captions else None
    if vocabulary:
        vocabulary.save(tf.io.gfile.join(_OUTPUT.value, schema.VOCABULARY_FILE))
    records.DatasetInfo(
        dataset=_DATASET.value,
        splits=splits,
        stores=stores,
        encoder=description,
        feature_size=description["feature_size"],
        tokenizer={**text.SETTINGS, "min_count": _MIN_COUNT.value},
        vocabulary_size=len(vocabulary) if vocabulary else None,
        problems=problems.counts(),
        fingerprint=fingerprint,
        tool_version=mrnn_tf.__version__,
    ).save(_OUTPUT.value)
    tf.io.gfile.rmtree(work)

    for name, split in splits.items():
        print(f"{name:5}  {split.images:7,} images  {split.captions:8,} captions")
    if vocabulary:
        print(f"vocabulary: {len(vocabulary) - len(schema.RESERVED_WORDS):,} words and 4 reserved")
    _say_next()


def _with_features(
    listing: list[CaptionedImage], table: FeatureTable, problems: Problems
) -> list[CaptionedImage]:
    found = [image for image in listing if table.row(image.image_id) is not None]
    if not found:
        raise UserError(
            f"--names {_NAMES.value} names no image of --source {_SOURCE.value}: "
            f"the dataset's first is {listing[0].image_id}."
        )
    for image in listing:
        if table.row(image.image_id) is None:
            problems.add("image without features", image.image_id)
    return found


def _report(problems: Problems) -> None:
    for sentence in problems.sentences():
        logging.warning("%s", sentence)
    if len(problems) and _STRICT.value:
        raise UserError(f"--strict: {'; '.join(problems.sentences())}.")


def _fingerprint(
    listing: list[CaptionedImage], description: dict, stores: tuple, table: FeatureTable | None
) -> str:
    settings = [
        _DATASET.value,
        description["identity"],
        table and table.fingerprint(),
        stores,
        _MIN_COUNT.value,
        _IMAGES_PER_SHARD.value,
        _SEED.value,
        mrnn_tf.__version__,
    ]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for image in listing:
        digest.update(json.dumps([image.image_id, image.split, image.captions]).encode())
    return digest.hexdigest()[:16]


def _is_finished(output: str, work: str, fingerprint: str) -> bool:
    """Claims the output folder; refuses one that holds anything but this very dataset."""
    request = tf.io.gfile.join(work, _REQUEST)
    if tf.io.gfile.exists(tf.io.gfile.join(output, schema.DATASET_FILE)):
        if tf.io.gfile.exists(work):
            tf.io.gfile.rmtree(work)
        if records.DatasetInfo.load(output).fingerprint == fingerprint:
            return True
        raise UserError(_OTHER_DATASET.format(output))
    if tf.io.gfile.exists(request):
        with tf.io.gfile.GFile(request) as file:
            if file.read() == fingerprint:
                logging.info("Finishing the dataset that %s holds in part.", output)
                return False
        raise UserError(_PART_OF_OTHER.format(output))
    _refuse_foreign(output)
    tf.io.gfile.makedirs(work)
    files.write_whole(request, fingerprint)
    return False


def _refuse_to_draw(output: str, work: str, source: str) -> None:
    """Refuses a folder of another dataset before the demo is drawn, which takes a while."""
    _refuse_foreign(output)
    request = tf.io.gfile.join(work, _REQUEST)
    if tf.io.gfile.exists(tf.io.gfile.join(output, schema.DATASET_FILE)):
        if records.DatasetInfo.load(output).dataset != "demo":
            raise UserError(_OTHER_DATASET.format(output))
    elif not _SOURCE.value and not tf.io.gfile.exists(source) and tf.io.gfile.exists(request):
        raise UserError(_PART_OF_OTHER.format(output))  # a demo is drawn before its request


def _refuse_foreign(output: str) -> None:
    """Refuses a folder that holds files of which none is a dataset's."""
    if not tf.io.gfile.isdir(output):
        return
    names = {name.rstrip("/") for name in tf.io.gfile.listdir(output)}
    if names - {_WORK} and not names & {_WORK, schema.DATASET_FILE}:
        raise UserError(f"--output {output} holds other files: choose a new or empty folder.")


def _say_next() -> None:
    print(
        f"next: python -m trainer.task --data {_OUTPUT.value} --job_dir runs/first --preset paper"
    )


if __name__ == "__main__":
    program.run(main, pass_unknown_flags=True)

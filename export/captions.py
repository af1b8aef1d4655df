"""Captions of many photographs, by Apache Beam: a folder or bucket in, JSON lines or Parquet out.

Example:

    python -m export.captions --images gs://bucket/photos --output gs://bucket/captions

Writes captions-00000-of-00012.jsonl and so on, one row a photograph, and at last captions.json with
the counts. The model is the default pretrained one, unless --model names another. Any Apache Beam
flag passes through, e.g. --direct_running_mode=multi_processing --direct_num_workers=2. A stopped
job is finished by the same command. On one machine, `mrnn caption FOLDER --output captions.jsonl`
does the same.
"""

from export.options import CaptionsOptions
from mrnn_tf import program

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("export.captions:caption_images", CaptionsOptions)

import contextlib
import dataclasses
import hashlib
import json

import tensorflow as tf

from mrnn_tf import batch, caption_files, checksums, files, pretrained
from mrnn_tf.batch import Counter, beam
from mrnn_tf.captioner import Captioner, load_run
from mrnn_tf.errors import UserError

MARKER_FILE = "captions.json"
_ERROR_ENDING = ".error"


@dataclasses.dataclass(frozen=True)
class CaptionPart:
    """Photographs whose rows become one file."""

    output: str
    paths: tuple[str, ...]


class CaptionShard(beam.DoFn):
    """Makes the file of one shard; loads the model once per worker."""

    def __init__(self, model: str, n: int, prefix: str):
        self._model, self._n, self._prefix = model, n, prefix

    def setup(self):
        self._captioner = Captioner.load(self._model)

    def process(self, shard: CaptionPart):
        if tf.io.gfile.exists(shard.output):
            return
        rows = []
        try:
            with Counter(shard.output) as counter:
                captioned = (self._captioner, shard.paths, self._n, self._prefix)
                for path, result in caption_files.caption_files(*captioned):
                    rows.append(caption_files.row(path, result))
                    counter.add(1)
            caption_files.write(shard.output, rows)
        except UserError as error:  # a runner would bury it in a traceback
            files.write_whole(shard.output + _ERROR_ENDING, str(error))


def caption_images(options: CaptionsOptions) -> str:
    """Writes the captions of all images of a folder and returns the folder of their files."""
    with contextlib.ExitStack() as claimed:
        return _caption_images(options, claimed)


def _caption_images(options: CaptionsOptions, claimed: contextlib.ExitStack) -> str:
    beam_options, output = batch.parse_options(options.beam_flags), options.output
    if not tf.io.gfile.exists(options.images):
        raise UserError(f"`images` {options.images} does not exist.")
    marker = tf.io.gfile.join(output, MARKER_FILE)
    if tf.io.gfile.exists(marker):
        raise UserError(f"`output` {output} holds captions already: they are not overwritten.")
    model = pretrained.resolve(options.model)
    paths = caption_files.list_images(options.images)
    facts = [load_run(model).fingerprint, options.n, options.prefix, options.format, paths]
    facts += [options.images_per_shard]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    work = tf.io.gfile.join(output, f".work-{key}")
    claimed.enter_context(files.alone_in(work))
    shards = _plan(work, paths, options)
    do_fn = CaptionShard(model, options.n, options.prefix)
    batch.run(shards, do_fn, beam_options, batch.counted(work), len(paths), "photographs")
    _check(shards)
    names = []
    for shard in shards:
        names.append(shard.output.rsplit("/", 1)[1])
        tf.io.gfile.rename(shard.output, tf.io.gfile.join(output, names[-1]), overwrite=True)
    counts = {"images": len(paths), "shards": len(shards)}
    checksums.write(marker, counts, output, names)
    tf.io.gfile.rmtree(work)
    print(f"captioned {len(paths):,} photographs: {output}")
    return output


def _plan(work: str, paths: list[str], options: CaptionsOptions) -> list[CaptionPart]:
    size = options.images_per_shard
    parts = [tuple(paths[first : first + size]) for first in range(0, len(paths), size)]
    name = "captions-{:05d}-of-{:05d}.{}"
    outputs = [name.format(i, len(parts), options.format) for i in range(len(parts))]
    joined = [tf.io.gfile.join(work, output) for output in outputs]
    return [CaptionPart(*shard) for shard in zip(joined, parts, strict=True)]


def _check(shards: list[CaptionPart]) -> None:
    """Refuses to go on where a file is missing or has too few rows, whatever the runner says."""
    for shard in shards:
        if not tf.io.gfile.exists(shard.output):
            if tf.io.gfile.exists(shard.output + _ERROR_ENDING):
                raise UserError(files.read_text(shard.output + _ERROR_ENDING))
            raise UserError(f"{shard.output} was not made: run the same command again to finish.")
        if (rows := caption_files.count_rows(shard.output)) != len(shard.paths):
            raise UserError(
                f"{shard.output} has {rows} rows, and {len(shard.paths)} photographs: delete it "
                "and run the same command again."
            )

"""Indexing a folder of photographs, against the bare throughput of its image encoder.

    python benchmarks/folder.py --photos FOLDER [--model NAME_OR_PATH] [--images 2000]

Copies photographs until there are as many as wanted, indexes them, and encodes as many prepared
images by the encoder alone, before and after. Processor time says what the work costs, wall-clock
time how well it is spread over the cores. Then the second update and a search are timed.
"""

import itertools
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import tensorflow as tf
from absl import app, flags

import mrnn_tf
from mrnn_tf import photos
from mrnn_tf.captioner import AT_ONCE
from mrnn_tf.inference import attached_encoder
from mrnn_tf.vision import images

_PHOTOS = flags.DEFINE_string("photos", None, "Folder of photographs.", required=True)
_MODEL = flags.DEFINE_string("model", None, "Pretrained model or path; default the packaged one.")
_IMAGES = flags.DEFINE_integer("images", 2000, "Photographs to index.", 1)


def timed(function) -> tuple[float, float]:
    """Seconds on the clock, and of the processors."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    function()
    passed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return passed, sum(after[:2]) - sum(before[:2])


def copy(folder: Path) -> list[Path]:
    sources = [p for p in sorted(Path(_PHOTOS.value).rglob("*")) if p.suffix in photos.SUFFIXES]
    copies = []
    for number, source in zip(range(_IMAGES.value), itertools.cycle(sources)):
        copies.append(folder / f"{number:06d}{source.suffix}")
        shutil.copy(source, copies[-1])
    return copies


def main(_) -> None:
    captioner = mrnn_tf.Captioner.load(_MODEL.value)
    encoder = attached_encoder(captioner.run)
    with tempfile.TemporaryDirectory() as work:
        folder, index = Path(work, "photos"), Path(work, "index")
        folder.mkdir()
        copies = copy(folder)
        contents = [path.read_bytes() for path in copies[:AT_ONCE]]
        captioner.images.encode(contents)  # traced before it is timed
        windows = tf.stack([encoder.prepare(images.decode(content)) for content in contents])
        encoder.encode(windows)

        def encode() -> None:
            for first in range(0, len(copies), AT_ONCE):
                encoder.encode(windows[: len(copies) - first])

        report = []
        made = None

        def build() -> None:
            nonlocal made
            made = mrnn_tf.PhotoIndex.build(index, folder, captioner)

        for name, function in (
            ("encoder alone", encode),
            ("index", build),
            ("encoder alone", encode),
        ):
            wall, processor = timed(function)
            report.append((wall, processor))
            print(
                f"{name:14} {wall:7.1f} s, {len(copies) / wall:6.1f} images/s; processors "
                f"{processor:7.1f} s, {len(copies) / processor:6.1f} images/s",
                flush=True,
            )
        bare = [(report[0][i] + report[2][i]) / 2 for i in range(2)]
        print(f"ratio to the encoder alone: {bare[0] / report[1][0]:.2f} on the clock, ", end="")
        print(f"{bare[1] / report[1][1]:.2f} by processor time")
        print(f"unchanged folder: {1000 * timed(made.update)[0]:.0f} ms")
        made.search("a dog on the beach")
        print(f"search: {1000 * timed(lambda: made.search('a man on a bike'))[0]:.0f} ms")
        size = sum(path.stat().st_size for path in index.iterdir()) / len(copies)
        print(f"{len(made)} photographs, {size:,.0f} bytes each, {os.cpu_count()} cores")


if __name__ == "__main__":
    app.run(main)

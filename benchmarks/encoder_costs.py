"""What the encoders cost: milliseconds of a photograph from its bytes, with one and ten crops.

    python benchmarks/encoder_costs.py --images flickr8k/images \\
        --encoders efficientnet_lite0,efficientnet_lite1,efficientnet_lite2,resnet50=random

`=random` takes untrained weights, which are as fast; `--pooling` goes with encoders of keras-hub.
An encoder runs as in an export, in a batch. The encoders take turns, and the best round counts.
Processor time is that of all threads; what else the machine does hardly changes it.
"""

import os
import time

import tensorflow as tf
import timing
from absl import app, flags

from mrnn_tf.vision import encoders, images

_IMAGES = flags.DEFINE_string("images", None, "Folder of photographs.", required=True)
_ENCODERS = flags.DEFINE_list("encoders", None, "Encoders to measure.", required=True)
_POOLING = flags.DEFINE_string("pooling", None, "Pooling of those of keras-hub.")
_COUNT = flags.DEFINE_integer("count", 8, "Photographs in a batch.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds of each encoder; the best counts.")


def main(_) -> None:
    paths = [os.path.join(_IMAGES.value, name) for name in sorted(os.listdir(_IMAGES.value))]
    files = [tf.io.read_file(path) for path in paths[: _COUNT.value]]
    sides = {}
    for crops in (1, 10):
        for name in _ENCODERS.value:
            name, _, weights = name.partition("=")
            pooling = {"pooling": _POOLING.value} if name.startswith("keras_hub:") else {}
            encoder = encoders.create(name, weights or None, crops, **pooling).folded()
            sides[name, crops] = _encode(encoder, files)
    times = timing.best_seconds(sides, _ROUNDS.value, clock=time.process_time)
    print("ms of processor time for a photograph: one crop, ten crops")
    for name in dict.fromkeys(name for name, _ in sides):
        one, ten = (1e3 * times[name, crops] / len(files) for crops in (1, 10))
        print(f"  {name:30} {one:8.1f} {ten:8.1f}")


def _encode(encoder: encoders.Encoder, files: list[tf.Tensor]):
    def call():
        windows = [encoder.prepare(images.decode(file)) for file in files]
        return encoder.encode(tf.stack(windows)).numpy()

    return call


if __name__ == "__main__":
    app.run(main)

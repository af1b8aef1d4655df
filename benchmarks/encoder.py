"""The speed of EfficientNet-Lite0 before and after folding, under LiteRT, and in `prepare`.

    pip install ai-edge-litert==2.3.0
    python benchmarks/encoder.py --images flickr8k/images

The sides take turns in one process; the best round counts. The processor time is that of all
threads: it hardly depends on what else the machine does.
"""

import os
import tempfile
import time

import numpy as np
import tensorflow as tf
import timing
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter

from mrnn_tf import schema
from mrnn_tf.data import shards
from mrnn_tf.data.listing import CaptionedImage
from mrnn_tf.vision import encoders

_IMAGES = flags.DEFINE_string("images", None, "Folder of photographs.", required=True)
_ENCODER = flags.DEFINE_string("encoder", "efficientnet_lite0", "Encoder to measure.")
_COUNT = flags.DEFINE_integer("count", 256, "Photographs of a round, as many as in a shard.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds of each side; the best counts.")
BATCH = 32


def main(_) -> None:
    encoder = encoders.create(_ENCODER.value)
    folded = encoder.folded()
    names = sorted(os.listdir(_IMAGES.value))[: _COUNT.value]
    paths = [os.path.join(_IMAGES.value, name) for name in names]
    pixels = tf.random.stateless_normal([BATCH, 1, *[encoder.input_size] * 2, 3], [0, 0])
    lite = {size: _litert(folded, size) for size in (1, BATCH)}
    difference = np.abs(folded.encode(pixels[:1]) - lite[1](pixels[:1, 0].numpy())).max()
    print(f"largest difference from LiteRT's features: {difference:.1e}")
    calls = len(paths) // BATCH
    batches = [pixels] * calls
    ones = np.split(tf.concat(batches, 0)[:, 0].numpy(), len(paths) // BATCH * BATCH)

    with tempfile.TemporaryDirectory() as folder:
        sides = {
            "as published": lambda: [encoder.encode(batch).numpy() for batch in batches],
            "folded": lambda: [folded.encode(batch).numpy() for batch in batches],
            "folded, one by one": lambda: [folded.encode(one[:, np.newaxis]) for one in ones],
            "LiteRT": lambda: [lite[BATCH](batch[:, 0].numpy()) for batch in batches],
            "LiteRT, one by one": lambda: [lite[1](one) for one in ones],
            "prepare": lambda: _write(paths, folder, folded),
        }
        for clock in (time.perf_counter, time.process_time):
            times = timing.best_seconds(sides, _ROUNDS.value, clock=clock)
            speeds = {name: calls * BATCH / seconds for name, seconds in times.items()}
            print(f"images a second, {clock.__name__}")
            for name, speed in speeds.items():
                print(f"  {name:20} {speed:8.1f}  {1e3 / speed:6.2f} ms an image")
            fold = speeds["folded"] / speeds["as published"]
            print(f"  folding: {fold:.2f} times (at least 1.5)")
            print(
                f"  share of LiteRT: {speeds['folded'] / speeds['LiteRT']:.2f} in batches, ", end=""
            )
            print(f"{speeds['folded'] / speeds['LiteRT, one by one']:.2f} of its best, one by one")
            print(f"  prepare: {speeds['prepare'] / speeds['folded']:.2f} of the bare encoder")


def _write(paths: list[str], folder: str, encoder: encoders.Encoder) -> None:
    """Writes the shard of `trainer.prepare` with features and pictures."""
    listing = [CaptionedImage(os.path.basename(p), schema.TRAIN, ("a dog",), p) for p in paths]
    [shard] = shards.plan(listing, folder, folder, len(listing), seed=0)
    shards.write_shard(shard, (schema.FEATURES, schema.PICTURES), encoder, None)


def _litert(encoder: encoders.Encoder, batch: int):
    """The same network and weights under LiteRT, for batches of one size."""
    shape = [batch, encoder.input_size, encoder.input_size, 3]
    network = tf.function(lambda windows: encoder.model(windows, training=False))
    function = network.get_concrete_function(tf.TensorSpec(shape))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
    content = converter.convert()
    interpreter = Interpreter(model_content=content, num_threads=os.cpu_count())
    interpreter.allocate_tensors()
    [given], [made] = interpreter.get_input_details(), interpreter.get_output_details()

    def run(windows: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(given["index"], windows)
        interpreter.invoke()
        return interpreter.get_tensor(made["index"])

    return run


if __name__ == "__main__":
    app.run(main)

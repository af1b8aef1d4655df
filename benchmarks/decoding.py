"""The speed of decoding, side by side with its bare matrix products and PyTorch.

    pip install torch==2.13.0
    python benchmarks/decoding.py

Sizes are the paper's, with a vocabulary of 10,000. The weights are random, but the words are about
as surprising as those of a network trained on Flickr8k, and one unit of every layer counts them:
the end sign becomes probable after a number of words that depends on the image. Each part runs in a
process of its own, its sides in turns; the best round counts.

- One image, one thread, greedy, against the matrix-vector products of its words in NumPy.
- 64 images, beam 5, all threads, against one image at a time, and against PyTorch at its best
  batch size: the same weights, ranking and end, and the same captions. Ours leaves out rows that
  cannot win any more; PyTorch's search, as such searches are written, keeps all to the end.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import timing
from absl import app, flags

from mrnn_tf import decode, schema
from mrnn_tf.config import BeamSearch, ModelConfig
from mrnn_tf.model.mrnn import MRNN

_PART = flags.DEFINE_enum("part", None, ["one", "batch"], "Runs this part alone.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds of each side; the best counts.")
VOCABULARY, FEATURES, IMAGES = 10_000, 2048, 64
WIDTH, LENGTH_POWER, MAX_WORDS = 5, 0.7, 20
WORDS = 10  # of a usual sentence
Search = Callable[[np.ndarray], np.ndarray]  # features [B, D] to the ids [B, T] of the best caption


def main(_) -> None:
    parts = {"one": _one, "batch": _batch}
    if _PART.value:
        parts[_PART.value]()
        return
    for part in parts:
        threads = {"OPENBLAS_NUM_THREADS": "1"} if part == "one" else {}
        command = [sys.executable, __file__, f"--part={part}", f"--rounds={_ROUNDS.value}"]
        subprocess.run(command, env=os.environ | threads, check=True)


def _one() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model, features = _network(), _features(1)
    search = _compiled(model, decode.greedy, max_words=MAX_WORDS)
    count = np.count_nonzero(search(features))
    kernels = [layer.kernel for layer in _dense_layers(model)] + [model.cell.recurrent_kernel]
    products = [(np.ones(kernel.shape[0], np.float32), kernel.numpy()) for kernel in kernels]

    def bare():
        for _ in range(count):
            for x, kernel in products:
                x @ kernel

    sides = {"greedy": lambda: search(features), "products": bare}
    times = timing.best_seconds(sides, _ROUNDS.value, seconds=0.1)
    print(f"one image, one thread, greedy, {count} words with the end sign")
    for name, seconds in times.items():
        print(f"  {name:26} {1e3 * seconds:8.2f} ms a sentence")
    ratio = times["greedy"] / times["products"]
    print(f"  greedy takes {ratio:.2f} times the products (at most 3)")


def _batch() -> None:
    model, features = _network(), _features(IMAGES)
    settings = BeamSearch(WIDTH, MAX_WORDS, LENGTH_POWER)
    search, theirs = _compiled(model, decode.beam, search=settings), _torch_beam(model)
    captions = search(features)
    same = np.mean([np.array_equal(a, b) for a, b in zip(captions, theirs(features), strict=True)])
    sides = {"64 together": (search, 64), "one by one": (search, 1)}
    sides |= {f"PyTorch, {size} together": (theirs, size) for size in (8, 16, 32, 64)}
    sides = {name: functools.partial(_in_parts, features, *side) for name, side in sides.items()}
    times = timing.best_seconds(sides, _ROUNDS.value)
    speeds = {name: IMAGES / seconds for name, seconds in times.items()}
    lengths = np.count_nonzero(captions, axis=1) - 1
    print(f"64 images, beam {WIDTH}, captions of {lengths.min()} to {lengths.max()} words")
    for name, speed in speeds.items():
        print(f"  {name:26} {speed:8.1f} captions/s")
    torch = max(speed for name, speed in speeds.items() if "PyTorch" in name)
    print(f"  {same:.0%} of the captions are PyTorch's too")
    print(f"  ratio to one by one: {speeds['64 together'] / speeds['one by one']:.2f} (at least 3)")
    print(f"  ratio to PyTorch: {speeds['64 together'] / torch:.2f} (at least 1.5)")


def _network() -> MRNN:
    """Random weights, but the first unit of every layer counts the words, up to about `WORDS`."""
    model = MRNN(ModelConfig(), VOCABULARY, FEATURES)
    embeddings = model.embedding_1.embeddings.numpy()
    embeddings[:, 0] = 1.0
    model.embedding_1.embeddings.assign(embeddings)
    for kernel, first in (  # what the first unit hears
        (model.embedding_2.kernel, (1.0, 0.0)),
        (model.cell.recurrent_kernel, (1.0, 0.0)),
        (model.recurrent_to_multimodal.kernel, (1.0, 0.0)),
        (model.words_to_multimodal.kernel, (0.0, 0.0)),
        (model.image_to_multimodal.kernel, (1.0, -WORDS - 0.5)),  # see `_features`
    ):
        value = kernel.numpy()
        value[:, 0], value[:2, 0] = 0.0, first
        kernel.assign(value)
    softmax = model.softmax.kernel.numpy()
    softmax *= 2.5 / np.sqrt(len(softmax)) / softmax.std()  # a perplexity of about 17
    softmax[0] = 0.0
    softmax[0, schema.END_ID] = 15.0
    model.softmax.kernel.assign(softmax)
    return model


def _features(images: int) -> np.ndarray:
    """Of the length that the model scales to; the first one makes a sentence shorter or longer."""
    features = np.random.default_rng(0).normal(size=(images, FEATURES)).astype(np.float32)
    features[:, 0] *= 1.5
    features[:, 1] = 1.0
    rest = np.sqrt(25.0 - np.square(features[:, :2]).sum(axis=1))
    features[:, 2:] *= (rest / np.linalg.norm(features[:, 2:], axis=1))[:, np.newaxis]
    return features


def _dense_layers(model: MRNN) -> list:
    layers = [model.embedding_2, model.words_to_multimodal, model.recurrent_to_multimodal]
    return [*layers, model.softmax]


def _compiled(model: MRNN, decoder: Callable[..., decode.Decoded], **options) -> Search:
    @tf.function(input_signature=[tf.TensorSpec([None, FEATURES])])
    def search(features):
        return decoder(*decode.begin(model, model.project_image(features)), **options).ids[:, 0]

    return lambda features: search(tf.constant(features)).numpy()


def _in_parts(features: np.ndarray, search: Search, size: int) -> None:
    for begin in range(0, len(features), size):
        search(features[begin : begin + size])


def _torch_beam(model: MRNN) -> Search:
    """The same network and search, with what PyTorch offers: V_I I once, cached states, top-k."""
    import torch

    def weight(variable):
        return torch.from_numpy(variable.numpy().copy())

    embeddings = weight(model.embedding_1.embeddings)
    embed, to_m, from_r, softmax = (weight(layer.kernel) for layer in _dense_layers(model))
    bias, image_to_m = weight(model.softmax.bias), weight(model.image_to_multimodal.kernel)
    recurrent = weight(model.cell.recurrent_kernel)
    first, missing = len(schema.RESERVED_WORDS), schema.MISSING_LOG_PROB
    longest = (MAX_WORDS + 1) ** LENGTH_POWER

    @torch.inference_mode()
    def search(features: np.ndarray) -> np.ndarray:
        count = len(features)
        a = (torch.from_numpy(features) @ image_to_m).repeat_interleave(WIDTH, 0)
        ids = torch.full((count * WIDTH,), schema.START_ID)
        r = torch.zeros(count * WIDTH, len(recurrent))
        live = torch.full((count, WIDTH), missing)
        live[:, 0] = 0.0
        words = torch.zeros(count, WIDTH, MAX_WORDS + 1, dtype=torch.long)
        done, scores = torch.zeros_like(words), torch.full((count, WIDTH), missing)
        rows = torch.arange(count)[:, None]
        for t in range(MAX_WORDS + 1):
            w = embeddings[ids] @ embed
            r = torch.relu(torch.addmm(w, r, recurrent))
            m = torch.addmm(torch.addmm(a, w, to_m), r, from_r).mul_(2 / 3).tanh_().mul_(1.7159)
            logits = torch.addmm(bias, m, softmax)
            norm = logits.logsumexp(1, keepdim=True)

            ended = words.clone()
            ended[:, :, t] = schema.END_ID
            end = (live + (logits[:, schema.END_ID] - norm[:, 0]).view(count, WIDTH)).clamp(missing)
            both = torch.cat([scores, end / (t + 1) ** LENGTH_POWER], 1)
            scores, kept = both.topk(WIDTH)
            done = torch.cat([done, ended], 1)[rows, kept]

            gains, next_ids = logits[:, first:].topk(WIDTH)
            totals = live[:, :, None] + (gains - norm).view(count, WIDTH, WIDTH)
            live, best = totals.clamp(missing).view(count, -1).topk(WIDTH)
            parent = best // WIDTH
            ids = next_ids.view(count, -1).gather(1, best) + first
            words = words[rows, parent]
            words[:, :, t] = ids
            r = r.view(count, WIDTH, -1)[rows, parent].view(count * WIDTH, -1)
            ids = ids.view(-1)
            if not (live[:, 0] / longest > scores[:, -1]).any():
                break
        return done[:, 0].numpy()

    return search


if __name__ == "__main__":
    app.run(main)

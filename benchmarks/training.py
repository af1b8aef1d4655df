"""Words per second of the training step, side by side with its bare matrix products and PyTorch.

    pip install torch==2.13.0
    python benchmarks/training.py

Sizes are the paper's, with vocabularies of 2,500 and 10,000. Each side runs at its own best batch
size, with all threads, in float32, on sentences of twelve words, in turns; its best round counts.
The step is the trainer's own: forward, backward, clipping, Adam, dropout in three places. PyTorch
runs the same network with its projections hoisted out of a fused RNN, and a fused Adam.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import timing
from absl import app, flags

from mrnn_tf import run, schema
from mrnn_tf.config import ModelConfig, RunConfig, TrainConfig
from trainer import optimization
from trainer.loops import Trainer
from trainer.objectives import Likelihood

_BATCHES = flags.DEFINE_list("batches", ["64", "128", "256", "512"], "Batch sizes to try.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds of each; the best counts.")
_SECONDS = flags.DEFINE_float("seconds", 2.0, "Length of a round.")
WORDS, FEATURES = 12, 2048
MODEL = ModelConfig()


def main(_) -> None:
    for vocabulary in (2500, 10_000):
        sides = {"mrnn_tf": _ours, "matrix products": _products, "PyTorch": _torch}
        best = {}  # the batch size of each side, and its steps
        for name, make in sides.items():
            steps = {int(size): make(int(size), vocabulary) for size in _BATCHES.value}
            times = timing.best_seconds(steps, 1, _SECONDS.value)
            size = min(times, key=lambda size: times[size] / size)
            best[name] = size, steps[size]
        steps = {name: step for name, (_, step) in best.items()}
        times = timing.best_seconds(steps, _ROUNDS.value, _SECONDS.value)
        speeds = {name: 2 * WORDS * best[name][0] / times[name] for name in sides}
        print(f"vocabulary {vocabulary:,}, words per second at the best batch size")
        for name, speed in speeds.items():
            print(f"  {name:16} {speed:10,.0f}  (batch {best[name][0]})")
        for name in ("matrix products", "PyTorch"):
            print(f"  ratio to {name}: {speeds['mrnn_tf'] / speeds[name]:.2f}")


def _ours(batch_size: int, vocabulary: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    ids = rng.integers(4, vocabulary, (batch_size, WORDS), np.int32)
    batch = {
        schema.FEATURES: rng.random((batch_size, FEATURES), np.float32),
        schema.WORD_IDS: ids,
        schema.TARGET_IDS: np.roll(ids, -1, axis=1),
    }
    config = TrainConfig()
    network = run.build(RunConfig(MODEL, config, vocabulary, FEATURES, {}, ""))
    optimizer = optimization.create(config, 1e-3, 1000)
    optimizer.build(network.model.trainable_variables)
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    step, strategy = tf.Variable(0, dtype=tf.int64), tf.distribute.get_strategy()
    trainer = Trainer(network, Likelihood(), [optimizer], config, strategy, 1, step, dataset)
    return lambda: trainer.train(tf.constant(2)) and None


def _products(batch_size: int, vocabulary: int) -> Callable[[], None]:
    """Forward, and backward to inputs and weights, of every product of the network."""
    rows, m = batch_size * WORDS, MODEL
    shapes = [
        (rows, m.embedding_1, m.embedding_2),
        (rows, m.embedding_2, m.multimodal),
        (rows, m.recurrent, m.multimodal),
        (batch_size, FEATURES, m.multimodal),
        (rows, m.multimodal, vocabulary),
    ]
    factors = [[tf.random.normal(s) for s in ((n, k), (k, p), (n, p))] for n, k, p in shapes]
    kernel = tf.random.normal((m.recurrent, m.recurrent))
    states = tf.random.normal((WORDS, 2, batch_size, m.recurrent))
    factors += [(state, kernel, gradient) for state, gradient in states]

    @tf.function
    def products():
        results = []
        for x, w, y in factors:
            results += [x @ w, tf.matmul(y, w, transpose_b=True), tf.matmul(x, y, transpose_a=True)]
        return [result[0, 0] for result in results]

    def step():
        for _ in range(2):
            products()

    return step


def _torch(batch_size: int, vocabulary: int) -> Callable[[], None]:
    import torch

    m = MODEL
    torch.manual_seed(0)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding_1 = torch.nn.Embedding(vocabulary, m.embedding_1)
            self.embedding_2 = torch.nn.Linear(m.embedding_1, m.embedding_2, bias=False)
            self.rnn = torch.nn.RNN(
                m.embedding_2, m.recurrent, nonlinearity="relu", bias=False, batch_first=True
            )
            self.words = torch.nn.Linear(m.embedding_2, m.multimodal, bias=False)
            self.recurrent = torch.nn.Linear(m.recurrent, m.multimodal, bias=False)
            self.image = torch.nn.Linear(FEATURES, m.multimodal, bias=False)
            self.softmax = torch.nn.Linear(m.multimodal, vocabulary)

        def forward(self, features, ids):
            drop = torch.nn.functional.dropout
            w = drop(self.embedding_2(self.embedding_1(ids)), m.dropout_embedding)
            r = drop(self.rnn(w)[0], m.dropout_recurrent)
            h = self.words(w) + self.recurrent(r) + self.image(features)[:, None]
            return self.softmax(drop(1.7159 * torch.tanh(h * (2 / 3)), m.dropout_multimodal))

    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(4, vocabulary, (batch_size, WORDS))
    targets = torch.roll(ids, -1, 1).reshape(-1)
    features = torch.rand(batch_size, FEATURES)

    def step():
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            logits = network(features, ids).reshape(-1, vocabulary)
            torch.nn.functional.cross_entropy(logits, targets).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimizer.step()

    return step


if __name__ == "__main__":
    app.run(main)

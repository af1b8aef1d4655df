"""Rows of the softmax, which are the cost of all scoring: one for every word and image.

Everything here takes and gives tensors, and is traced into the servable of an index. `ROWS` rows
are computed at a time, so that memory does not grow with the number of pairs.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from mrnn_tf.model.layers import scaled_tanh

ROWS = 2048  # softmax rows at once; they stay in the processor's cache


class Readout(NamedTuple):
    """What turns the multimodal layer m into logits."""

    kernel: tf.Variable  # [M, V]
    bias: tf.Variable  # [V]

    @property
    def size(self) -> int:
        """M."""
        return self.kernel.shape[0]

    def logits(self, m: tf.Tensor) -> tf.Tensor:
        """The logits [R, V] of m [R, M]."""
        return tf.nn.bias_add(tf.matmul(m, self.kernel), self.bias)

    def log_probs(self, h: tf.Tensor, a: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        """log P [R] of words [R] after what h [R, M] read, by the images a [R, M] (Eq. 3)."""
        logits = self.logits(scaled_tanh(h + a))
        return tf.gather(logits, words, batch_dims=1) - tf.reduce_logsumexp(logits, axis=-1)


def in_blocks(
    compute: Callable[[tf.Tensor], Sequence[tf.Tensor]],
    count: tf.Tensor,
    specs: Sequence[tf.TensorSpec],
    at_once: int | tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Concatenates what `compute` returns for the numbers below `count`, a block at a time.

    It takes numbers int32 [R] and returns tensors [R, ...] of these `specs`; R is `at_once`, `ROWS`
    by default.
    """
    at_once = ROWS if at_once is None else at_once
    blocks = -(-count // at_once)
    parts = [
        tf.TensorArray(spec.dtype, blocks, infer_shape=False, element_shape=spec.shape)
        for spec in specs
    ]

    def add(block: tf.Tensor, parts: list[tf.TensorArray]):
        numbers = tf.range(block * at_once, tf.minimum((block + 1) * at_once, count))
        values = compute(numbers)
        return block + 1, [part.write(block, x) for part, x in zip(parts, values, strict=True)]

    _, parts = tf.while_loop(
        lambda block, _: block < blocks, add, (0, parts), parallel_iterations=1
    )
    return [part.concat() for part in parts]

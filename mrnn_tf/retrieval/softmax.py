"""Rows of the softmax, which are the cost of all scoring: one for every word and image.

Everything here takes and gives tensors, and is traced into the servable of an index. `ROWS` rows
are computed at a time, so that memory does not grow with the number of pairs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from mrnn_tf.model.layers import scaled_tanh

ROWS = 2048  # softmax rows at once; they stay in the processor's cache
FLOATS = tf.TensorSpec([None])


class Readout(NamedTuple):
    """What turns the multimodal layer m into logits."""

    kernel: tf.Variable  # [M, V]
    bias: tf.Variable  # [V]

    def logits(self, m: tf.Tensor) -> tf.Tensor:
        """The logits [R, V] of m [R, M]."""
        return tf.nn.bias_add(tf.matmul(m, self.kernel), self.bias)

    def log_probs(self, h: tf.Tensor, a: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        """log P [R] of words [R] after what h [R, M] read, by the images a [R, M] (Eq. 3)."""
        logits = self.logits(scaled_tanh(h + a))
        return tf.gather(logits, words, batch_dims=1) - tf.reduce_logsumexp(logits, axis=-1)


def in_blocks(
    compute: Callable[[tf.Tensor], Any],
    count: tf.Tensor,
    specs: Any = FLOATS,
    at_once: int | tf.Tensor | None = None,
) -> Any:
    """Concatenates what `compute` returns for the numbers below `count`, a block at a time.

    It takes numbers int32 [R] and returns tensors [R, ...], one or several, of these `specs`. R is
    `at_once`, `ROWS` by default.
    """
    at_once = ROWS if at_once is None else at_once
    blocks = -(-count // at_once)

    def array(spec: tf.TensorSpec) -> tf.TensorArray:
        return tf.TensorArray(spec.dtype, blocks, infer_shape=False, element_shape=spec.shape)

    def add(block: tf.Tensor, parts: Any):
        values = compute(tf.range(block * at_once, tf.minimum((block + 1) * at_once, count)))
        return block + 1, tf.nest.map_structure(lambda part, x: part.write(block, x), parts, values)

    state = 0, tf.nest.map_structure(array, specs)
    _, parts = tf.while_loop(lambda block, _: block < blocks, add, state, parallel_iterations=1)
    return tf.nest.map_structure(lambda part: part.concat(), parts)

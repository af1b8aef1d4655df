"""Functions of one row in the graph of a batch, where a row that fails leaves the others alone."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def successes(
    function: Callable[[tf.Tensor], Any], values: tf.Tensor, threads: int = 2
) -> tuple[tf.Tensor, Any]:
    """Numbers of the rows [B] on which a function does not fail, int32 [S], and its results.

    The memory that images take grows with `threads`.
    """
    # What fails inside a dataset can be left out, unlike what fails in the graph itself.
    count = tf.size(values)
    dataset = tf.data.Dataset.from_tensor_slices((tf.range(count), values))
    dataset = dataset.map(lambda row, value: (row, function(value)), threads, deterministic=True)
    batches = dataset.ignore_errors().batch(tf.cast(tf.maximum(count, 1), tf.int64))
    none = tf.nest.map_structure(
        lambda spec: tf.zeros([0, *spec.shape], spec.dtype), dataset.element_spec
    )
    return batches.concatenate(tf.data.Dataset.from_tensors(none)).take(1).get_single_element()

"""Several networks as one: its logits are the mean of theirs.

Every layer is linear or works on each unit alone, so networks side by side are such a network
again: all read the words and the image, kernels between layers have a block for each network, and
the softmax reads all multimodal layers.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from mrnn_tf.config import ModelConfig
from mrnn_tf.errors import UserError
from mrnn_tf.model.mrnn import MRNN

_SIZES = ("embedding_1", "embedding_2", "recurrent", "multimodal")
_CELLS = ("mrnn", "elman")  # the gates of the others would have to be sorted


def config_of(config: ModelConfig, count: int) -> ModelConfig:
    """The configuration of `count` networks of one configuration side by side."""
    return dataclasses.replace(config, **{name: count * getattr(config, name) for name in _SIZES})


def merge(models: Sequence[MRNN]) -> MRNN:
    """One network for several of the same configuration, features and words."""
    first, count = models[0], len(models)
    cell = first.wiring.cell or first.config.cell
    if first.wiring.tied_softmax or cell not in _CELLS:
        name = f"`{first.config.variant}` with the cell `{cell}`"
        raise UserError(
            f"{name} cannot be merged: its softmax must be its own, its cell of {_CELLS}."
        )
    sizes = first.vocabulary_size, first.feature_size
    config = config_of(first.config, count)
    merged = MRNN(config, *sizes, first.seed, first.feature_parts, name=first.name)
    for variable, *own in zip(*(m.trainable_variables for m in (merged, *models)), strict=True):
        variable.assign(_merged([value.numpy() for value in own], variable.shape))
    return merged


def _merged(values: list[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """Weights of the given shape: side by side along every axis that has grown."""
    count = len(values)
    grown = [new > old for new, old in zip(shape, values[0].shape, strict=True)]
    if grown == [True, True]:
        blocks = np.zeros(shape, np.float32)
        rows, columns = values[0].shape
        for i, value in enumerate(values):
            blocks[i * rows : (i + 1) * rows, i * columns : (i + 1) * columns] = value
        return blocks
    if not any(grown):  # the bias of the softmax
        return np.mean(values, axis=0)
    joined = np.concatenate(values, axis=grown.index(True))
    return joined / count if grown == [True, False] else joined  # the kernel of the softmax

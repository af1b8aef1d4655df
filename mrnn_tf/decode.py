"""Sentences from a model, in graph, over any step function.

A step function takes word ids [B] and a state and returns the logits of the next word [B, V] and
the new state; what it knows of the images it has closed over.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.model.mrnn import MRNN

State = Any
Step = Callable[[tf.Tensor, State], tuple[tf.Tensor, State]]

_NEVER_EMITTED = (schema.PAD_ID, schema.START_ID, schema.UNKNOWN_ID)


def greedy(
    step: Step, state: State, batch_size: tf.Tensor, max_words: int = 20
) -> tuple[tf.Tensor, tf.Tensor]:
    """The most probable next word until the end sign: ids [B, max_words + 1] and log P [B].

    A sentence cut at `max_words` pays for its end sign too.
    """

    def unfinished(t, ids, words, log_probs, state):
        del words, log_probs, state
        return (t <= max_words) & tf.reduce_any(ids != schema.END_ID)

    def extend(t, ids, words, log_probs, state):
        logits, state = step(ids, state)
        scores = tf.nn.log_softmax(tf.cast(logits, tf.float32))
        ended = (ids == schema.END_ID) & (t > 0)
        chosen = tf.argmax(_without_never_emitted(scores), axis=-1, output_type=tf.int32)
        chosen = tf.where(ended | (t == max_words), schema.END_ID, chosen)
        gained = tf.gather(scores, chosen, batch_dims=1)
        log_probs += tf.where(ended, 0.0, gained)
        return (
            t + 1,
            chosen,
            words.write(t, tf.where(ended, schema.PAD_ID, chosen)),
            log_probs,
            state,
        )

    start = tf.fill([batch_size], schema.START_ID)
    words = tf.TensorArray(tf.int32, size=max_words + 1, element_shape=[None])
    length, _, words, log_probs, _ = tf.while_loop(
        unfinished, extend, (0, start, words, tf.zeros([batch_size]), state)
    )
    ids = tf.transpose(words.gather(tf.range(length)))
    return tf.pad(ids, [[0, 0], [0, max_words + 1 - length]]), log_probs


def captions(model: MRNN, features: tf.Tensor, max_words: int = 20) -> tuple[tf.Tensor, tf.Tensor]:
    """Greedy captions of images by their features [B, D]: ids [B, max_words + 1], log P [B]."""
    image = model.project_image(features)  # V_I I, once for all words
    return greedy(
        lambda ids, state: model.step(ids, state, image),
        model.initial_state(image),
        tf.shape(features)[0],
        max_words,
    )


def _without_never_emitted(scores: tf.Tensor) -> tf.Tensor:
    banned = tf.reduce_any(
        tf.range(tf.shape(scores)[-1])[:, tf.newaxis] == tf.constant(_NEVER_EMITTED), axis=-1
    )
    return tf.where(banned, scores.dtype.min, scores)

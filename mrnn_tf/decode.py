"""Sentences from a model, in graph, over any step function.

A step function takes word ids [R] and their state and returns the logits of the next word [R, V]
and the new state. All that it knows of a row is in its ids and state, what it knows of the image
too, so that a search may leave rows out. `begin` makes one from a model:

    image = model.project_image(features)  # V_I I, once for all words
    greedy(*begin(model, image))
    sample(*begin(model, image), seed=1, copies=3)
    beam(*begin(model, image), BeamSearch(beam=5))

No sentence holds <unk>, <s> or padding, and every sentence pays for its end sign, also where it is
cut at `max_words`. An image with non-finite features has no sentences.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.config import BeamSearch
from mrnn_tf.errors import UserError
from mrnn_tf.model.mrnn import MRNN, Image

State = Any
Step = Callable[[tf.Tensor, State], tuple[tf.Tensor, State]]

_WORDS = len(schema.RESERVED_WORDS)  # the id of the first word that can be said
_MISSING = schema.MISSING_LOG_PROB


class Decoded(NamedTuple):
    """The sentences of a batch of images, best first.

    A sentence is its words and the end sign, padded to `max_words + 1`. A missing one, where there
    are fewer than asked for, is all padding with `schema.MISSING_LOG_PROB`.
    """

    ids: tf.Tensor  # int32 [B, N, T]
    log_probs: tf.Tensor  # float [B, N]
    word_log_probs: tf.Tensor  # float [B, N, T], zero at padding


def begin(
    model: MRNN, image: Image, prefix: tf.Tensor | None = None
) -> tuple[Step, State, tf.Tensor]:
    """The step function for B images, their first state and the ids to read first.

    `prefix` int [B, P] holds words that sentences begin with, padded on the right.
    """
    state = model.initial_state(image)
    ids = tf.fill([tf.shape(state[0])[0]], schema.START_ID)
    if prefix is not None:
        ids, state = _read(lambda ids, state: model.step(ids, state, image), state, ids, prefix)

    def step(ids: tf.Tensor, rows: State) -> tuple[tf.Tensor, State]:
        state, image = rows
        logits, state = model.step(ids, state, image)
        return logits, (state, image)

    return step, (state, image), ids


def greedy(step: Step, state: State, ids: tf.Tensor, *, max_words: int = 20) -> Decoded:
    """The most probable next word until the end sign: one sentence an image."""
    return _follow(step, state, ids, lambda _, logits: tf.argmax(logits, -1, tf.int32), max_words)


def sample(
    step: Step,
    state: State,
    ids: tf.Tensor,
    *,
    seed: int | tf.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    copies: int = 1,
    max_words: int = 20,
) -> Decoded:
    """`copies` sentences for every image, drawn word by word; equal seeds draw equal sentences.

    The temperature divides the logits, but `log_probs` are the model's own. `top_k` draws from the
    k most probable words only, 0 from all, and `top_p` from the fewest words that hold this share
    of the probability.
    """
    if temperature <= 0.0:
        raise UserError(f"`temperature` must be above 0; got {temperature}.")
    if not 0.0 < top_p <= 1.0:
        raise UserError(f"`top_p` must be above 0 and at most 1; got {top_p}.")

    def draw(t: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        logits /= temperature
        if top_k:
            least = tf.math.top_k(logits, min(top_k, logits.shape[-1])).values[:, -1:]
            logits = tf.where(logits < least, logits.dtype.min, logits)
        if top_p < 1.0:
            best_first = tf.sort(logits, direction="DESCENDING")
            before = tf.cumsum(tf.nn.softmax(best_first), axis=-1, exclusive=True)
            kept = tf.where(before < top_p, best_first, logits.dtype.max)
            least = tf.reduce_min(kept, -1, keepdims=True)
            logits = tf.where(logits < least, logits.dtype.min, logits)
        chosen = tf.random.stateless_categorical(logits, 1, tf.stack([seed, t]), tf.int32)
        return tf.minimum(chosen[:, 0], logits.shape[-1] - 1)  # NaN draws beyond

    state, ids = _repeat((state, ids), copies)
    return _follow(step, state, ids, draw, max_words, copies)


def beam(
    step: Step, state: State, ids: tf.Tensor, search: BeamSearch, n_best: int | None = None
) -> Decoded:
    """The most probable sentences that a beam search finds.

    `search.beam` live sentences of an image are extended at a time. Each may end at any word and
    then competes with all that ended before, and is extended no further once it cannot enter the
    list any more. Equal scores keep the order of their words' ids. `n_best` sentences of an image
    are returned, `search.beam` by default.
    """
    width, max_words, length_power = search.beam, search.max_words, search.length_power
    n_best = n_best or width
    images = tf.shape(ids)[0]
    state, ids = _repeat((state, ids), width)
    first_row = tf.range(images)[:, tf.newaxis] * width
    longest = float(max_words + 1) ** length_power

    def undecided(t, _ids, _state, live, *_):
        return (t <= max_words) & tf.reduce_any(live.log_probs > _MISSING)

    def extend(t, ids, state, live, done, scores):
        is_live = tf.reshape(live.log_probs > _MISSING, [-1])
        rows = tf.where(is_live)[:, 0]
        logits, state = step(tf.gather(ids, rows), _gather(state, rows))
        norm = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
        # Where each live sentence is among the rows; the others may have any, and stay missing.
        place = tf.maximum(tf.cumsum(tf.cast(is_live, tf.int32)) - 1, 0)

        def split(rows: tf.Tensor) -> tf.Tensor:
            return tf.reshape(tf.gather(rows, place), [images, width, *rows.shape[1:]])

        ended = _extended(live, split(logits[:, schema.END_ID] - norm[:, 0]), schema.END_ID)
        new_scores = ended.log_probs / tf.cast(t + 1, tf.float32) ** length_power
        pad = [[0, 0], [0, 0], [0, 1]]
        done = Decoded(tf.pad(done.ids, pad), done.log_probs, tf.pad(done.word_log_probs, pad))
        both = tf.nest.map_structure(lambda a, b: tf.concat([a, b], axis=1), done, ended)
        scores, kept = tf.math.top_k(tf.concat([scores, new_scores], axis=1), n_best)
        done = _gather(both, kept, batch_dims=1)

        # The best words of every live sentence hold the best words of all.
        branches = min(width, logits.shape[-1] - _WORDS)
        gains, words = _best_words(logits, branches)
        gains, words = split(gains - norm), split(words)
        totals = _finite(live.log_probs[:, :, tf.newaxis] + gains)
        _, best = tf.math.top_k(tf.reshape(totals, [images, width * branches]), width)
        parent, branch = best // branches, best % branches
        chosen = tf.stack([parent, branch], axis=-1)
        words = tf.gather_nd(words, chosen, batch_dims=1)
        parents = _gather(live, parent, batch_dims=1)
        live = _extended(parents, tf.gather_nd(gains, chosen, batch_dims=1), words)
        # A live sentence only loses probability, and length can at best divide it by `longest`.
        hopeful = live.log_probs / longest > scores[:, -1:]
        live = live._replace(log_probs=tf.where(hopeful, live.log_probs, _MISSING))
        state = _gather(state, tf.gather(place, tf.reshape(first_row + parent, [-1])))
        return t + 1, tf.reshape(words, [-1]), state, live, done, scores

    def nothing(count: int) -> Decoded:
        no_words = tf.zeros([images, count, 0])
        return Decoded(tf.cast(no_words, tf.int32), tf.fill([images, count], _MISSING), no_words)

    only_first = tf.where(tf.range(width) == 0, 0.0, _MISSING)
    live = nothing(width)._replace(log_probs=tf.repeat(only_first[tf.newaxis], images, axis=0))
    done = nothing(n_best)
    matrix, cube = tf.TensorShape([None, None]), tf.TensorShape([None, None, None])
    growing = Decoded(cube, matrix, cube)
    rows = tf.nest.map_structure(lambda each: tf.TensorShape([None, *each.shape[1:]]), (ids, state))
    first = (0, ids, state, live, done, done.log_probs)
    shapes = (tf.TensorShape([]), *rows, growing, growing, matrix)
    *_, done, _ = tf.while_loop(undecided, extend, first, shapes)
    return _finish(done, n_best, max_words)


def next_words(step: Step, state: State, ids: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The most probable next words and their log P, [B, count]; the end sign is one of them.

    Missing ones, where there are fewer words than asked for, are padding.
    """
    logits, _ = step(ids, state)
    norm = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
    found = min(count, logits.shape[-1] - _WORDS + 1)
    best, places = tf.math.top_k(_sayable(logits), found)
    log_probs = _finite(best - norm)
    words = tf.where(places == 0, schema.END_ID, places + _WORDS - 1)
    words = tf.where(log_probs > _MISSING, words, schema.PAD_ID)
    more = [[0, 0], [0, count - found]]
    return tf.pad(words, more), tf.pad(log_probs, more, constant_values=_MISSING)


def rescore(step: Step, state: State, ids: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """log P of given words [R, T] one by one, as the step function sees them; 0 at padding."""
    words = tf.transpose(words)
    lengths = tf.reduce_sum(tf.cast(words != schema.PAD_ID, tf.int32), axis=0)
    length = tf.maximum(tf.reduce_max(lengths), 0)  # of no rows the maximum is the least integer

    def read(t, ids, state, scores):
        logits, state = step(ids, state)
        gained = tf.where(words[t] == schema.PAD_ID, 0.0, _log_probs(logits, words[t]))
        return t + 1, words[t], state, tf.concat([scores, gained[:, tf.newaxis]], axis=1)

    first = (tf.constant(0), ids, state, tf.zeros([tf.shape(ids)[0], 0]))
    *fixed, _ = tf.nest.map_structure(lambda each: each.shape, first)
    shapes = (*fixed, tf.TensorShape([None, None]))  # the scores grow
    *_, scores = tf.while_loop(lambda t, *_: t < length, read, first, shapes)
    return tf.pad(scores, [[0, 0], [0, tf.shape(words)[0] - length]])


def evidence(
    model: MRNN, blank: Image, decoded: Decoded, prefix: tf.Tensor | None = None
) -> tf.Tensor:
    """How much the picture says each word: log p(w|h, I) - log p(w|h, no image), [B, N, T].

    `blank` stands for "no image", with a row for every image; sentences began with `prefix`.
    """
    _, copies, length = decoded.ids.shape
    words = tf.reshape(decoded.ids, [-1, length])
    step, state, ids = begin(model, blank, prefix)
    without = rescore(step, *_repeat((state, ids), copies), words)
    return decoded.word_log_probs - tf.reshape(without, [-1, copies, length])


def _read(step: Step, state: State, ids: tf.Tensor, prefix: tf.Tensor) -> tuple[tf.Tensor, State]:
    """Reads the words of a prefix; the last one is left for the first step of the decoding."""
    words = tf.transpose(prefix)

    def read(t, ids, state):
        _, after = step(ids, state)
        there = words[t] != schema.PAD_ID
        state = tf.nest.map_structure(
            lambda new, old: tf.where(there[:, tf.newaxis], new, old), after, state
        )
        return t + 1, tf.where(there, words[t], ids), state

    length = tf.shape(words)[0]
    _, ids, state = tf.while_loop(lambda t, *_: t < length, read, (0, ids, state))
    return ids, state


def _follow(
    step: Step, state: State, ids: tf.Tensor, choose: Callable, max_words: int, copies: int = 1
) -> Decoded:
    """One word after the other; `choose` takes t and the logits of the end sign and all words."""

    def unfinished(t, ended, *_):
        return (t <= max_words) & ~tf.reduce_all(ended)

    def extend(t, ended, ids, state, words, scores):
        logits, state = step(ids, state)
        place = choose(t, _sayable(logits))
        last = (place == 0) | (t == max_words)
        chosen = tf.where(last, schema.END_ID, place + _WORDS - 1)
        gained = tf.where(ended, 0.0, _log_probs(logits, chosen))
        words = words.write(t, tf.where(ended, schema.PAD_ID, chosen))
        return t + 1, ended | last, chosen, state, words, scores.write(t, gained)

    rows = tf.shape(ids)[0]
    words, scores = (
        tf.TensorArray(dtype, size=0, dynamic_size=True, element_shape=[None])
        for dtype in (tf.int32, tf.float32)
    )
    length, *_, words, scores = tf.while_loop(
        unfinished, extend, (0, tf.zeros([rows], tf.bool), ids, state, words, scores)
    )
    words, scores = (tf.transpose(each.gather(tf.range(length))) for each in (words, scores))
    shape = [rows // copies, copies, length]
    words, scores = tf.reshape(words, shape), tf.reshape(scores, shape)
    return _finish(Decoded(words, tf.reduce_sum(scores, axis=-1), scores), copies, max_words)


def _sayable(logits: tf.Tensor) -> tf.Tensor:
    """The logits of the end sign and of all words: what may come next."""
    return tf.concat([logits[:, schema.END_ID : schema.END_ID + 1], logits[:, _WORDS:]], axis=-1)


def _log_probs(logits: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.gather(logits, ids, batch_dims=1) - tf.reduce_logsumexp(logits, axis=-1)


def _best_words(logits: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The logits and ids [R, count] of the words that are the most probable, best first.

    It finds what `tf.math.top_k` finds, several times as fast: the best words are in those blocks
    of the vocabulary whose maxima are the best.
    """
    size = logits.shape[-1]
    block = max(math.isqrt(size), _WORDS)
    blocks = -(-size // block)
    lowest = logits.dtype.min
    if size % block:
        logits = tf.pad(logits, [[0, 0], [0, blocks * block - size]], constant_values=lowest)
    logits = tf.reshape(logits, [-1, blocks, block])
    # One block more: the first may be there for its reserved words alone.
    _, some = tf.math.top_k(tf.reduce_max(logits, axis=-1), min(count + 1, blocks))
    some = tf.sort(some)
    ids = some[:, :, tf.newaxis] * block + tf.range(block)
    logits = tf.where(ids < _WORDS, lowest, tf.gather(logits, some, batch_dims=1))
    logits, best = tf.math.top_k(tf.reshape(logits, [-1, some.shape[1] * block]), count)
    return logits, tf.gather(tf.reshape(ids, [-1, some.shape[1] * block]), best, batch_dims=1)


def _extended(some: Decoded, gains: tf.Tensor, words: tf.Tensor | int) -> Decoded:
    words = tf.broadcast_to(words, tf.shape(gains))
    return Decoded(
        tf.concat([some.ids, words[:, :, tf.newaxis]], axis=-1),
        _finite(some.log_probs + gains),
        tf.concat([some.word_log_probs, gains[:, :, tf.newaxis]], axis=-1),
    )


def _gather(some: Any, chosen: tf.Tensor, batch_dims: int = 0) -> Any:
    return tf.nest.map_structure(lambda each: tf.gather(each, chosen, batch_dims=batch_dims), some)


def _repeat(rows: State, copies: int) -> State:
    """Every row `copies` times, one beside the other."""
    return tf.nest.map_structure(lambda each: tf.repeat(each, copies, axis=0), rows)


def _finite(scores: tf.Tensor) -> tf.Tensor:
    return tf.where(scores > _MISSING / 2, scores, _MISSING)  # False for NaN too


def _finish(decoded: Decoded, count: int, max_words: int) -> Decoded:
    """Clears what is missing, and pads every sentence to one length."""
    log_probs = tf.ensure_shape(_finite(decoded.log_probs), [None, count])
    there = (log_probs > _MISSING)[:, :, tf.newaxis]
    pad = [[0, 0], [0, 0], [0, max_words + 1 - tf.shape(decoded.ids)[2]]]
    ids = tf.pad(tf.where(there, decoded.ids, schema.PAD_ID), pad)
    scores = tf.pad(tf.where(there, decoded.word_log_probs, 0.0), pad)
    shape = [None, count, max_words + 1]
    return Decoded(tf.ensure_shape(ids, shape), log_probs, tf.ensure_shape(scores, shape))

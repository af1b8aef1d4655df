"""The inner loops of a run: steps of training, and the evaluation of a split."""

import time

import orbit
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.model import loss
from trainer.objectives import Terms


class Trainer(orbit.AbstractTrainer):
    """Steps of training: the objective over the global batch, its gradient, the update.

    Not orbit's StandardTrainer, whose iterator is private: here it is part of the checkpoint.
    """

    def __init__(self, network, objective, optimizers, config, strategy, workers, step, dataset):
        super().__init__()
        self.iterator = iter(dataset)
        self._network, self._objective = network, objective
        self._optimizers, self._config = optimizers, config
        self._strategy, self._step = strategy, step
        self._devices = strategy.num_replicas_in_sync // workers
        with strategy.scope():
            self._sums = tf.Variable(tf.zeros([3], tf.float64))  # total, count and words of `Terms`
            self._norm = tf.Variable(0.0)
            self._highest_norm = tf.Variable(0.0)
            self._failed = tf.Variable(-1, dtype=tf.int64)
        self._replica_step = tf.function(self._cost_and_update, jit_compile=config.jit_compile)
        self._loop = tf.function(orbit.utils.create_tf_while_loop_fn(self._train_step))

    @property
    def failed_step(self) -> int:
        return int(self._failed.numpy())

    def anyone(self, mine: bool) -> bool:
        """Whether any worker says so; every worker must ask."""
        if self._strategy.num_replicas_in_sync == self._devices:
            return mine
        said = self._strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.constant(float(mine))
            )
        )
        return float(self._strategy.experimental_local_results(said)[0]) > 0

    def train(self, num_steps: tf.Tensor) -> dict[str, float]:
        """Trains for a number of steps; returns what was measured over them."""
        began = time.monotonic()
        self._sums.assign([0.0] * 3)
        self._highest_norm.assign(0.0)
        self._loop(self.iterator, num_steps)
        total, count, words = self._sums.numpy().tolist()
        return {
            **self._objective.measured(total / count),
            "learning_rate": float(self._optimizers[0].learning_rate),
            "gradient_norm": float(self._norm.numpy()),  # of the last step, before clipping
            "highest_gradient_norm": float(self._highest_norm.numpy()),
            "words_per_second": words / (time.monotonic() - began),
        }

    def _train_step(self, iterator):
        batch = next(iterator)
        results = self._strategy.run(self._replica_step, args=(batch,))
        terms, norm = tf.nest.map_structure(
            lambda value: self._strategy.experimental_local_results(value)[0], results
        )
        self._sums.assign_add(tf.cast([terms.total, terms.count, terms.words], tf.float64))
        self._norm.assign(norm)
        self._highest_norm.assign(tf.maximum(self._highest_norm.read_value(), norm))
        ok = tf.math.is_finite(terms.cost) & tf.math.is_finite(norm) | (self._failed >= 0)
        self._failed.assign(tf.where(ok, self._failed.read_value(), self._step + 1))
        self._step.assign_add(1)

    def _cost_and_update(self, batch):
        replica = tf.distribute.get_replica_context()
        replicas = replica.num_replicas_in_sync
        if self._devices > 1:
            mine = replica.replica_id_in_sync_group % self._devices
            batch = {name: value[mine :: self._devices] for name, value in batch.items()}
        everybody = tf.distribute.ReduceOp.SUM
        with tf.GradientTape() as tape:
            terms = self._objective.terms(self._network, batch)
            count = replica.all_reduce(everybody, terms.count) if replicas > 1 else terms.count
            cost = terms.cost / count  # Eq. 6: over the words of the global batch
            if self._config.l2:
                cost += self._config.l2 * loss.l2(self._network.model) / replicas
        parts = self._network.trainable_parts()
        gradients = tape.gradient(cost, [variable for part in parts for variable in part])
        # Dense, as the words of an embedding's gradient differ between replicas, and repeat.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if replicas > 1:
            gradients = replica.all_reduce(everybody, gradients)
            terms = Terms(*(replica.all_reduce(everybody, term) for term in terms))
        norm = tf.linalg.global_norm(gradients)
        scale = 1.0
        if self._config.clip_norm:
            scale = self._config.clip_norm / tf.maximum(norm, self._config.clip_norm)
        # Keras sums the gradients of the replicas, which are equal by now: so a share of each.
        gradients = [g * (scale / replicas) for g in gradients]
        for optimizer, part in zip(self._optimizers, parts, strict=True):
            optimizer.apply(gradients[: len(part)], part)
            gradients = gradients[len(part) :]
        return terms, norm


class Evaluator(orbit.StandardEvaluator):
    """Perplexity of a split: sums over all its words, with and without <unk>."""

    def __init__(self, network, dataset):
        super().__init__(dataset)
        self._network = network

    def eval_begin(self):
        return [0.0] * 4

    def eval_step(self, iterator):
        batch = next(iterator)
        logits = self._network.logits(batch)
        targets = batch[schema.TARGET_IDS]
        known = tf.where(targets == schema.UNKNOWN_ID, schema.PAD_ID, targets)
        return *loss.word_costs(logits, targets), *loss.word_costs(logits, known)

    def eval_reduce(self, state, step_outputs):
        return [total + float(value) for total, value in zip(state, step_outputs, strict=True)]

    def eval_end(self, sums):
        bits, words, known_bits, known_words = sums
        return {
            "perplexity": float(loss.perplexity(bits, words)),
            "perplexity_without_unknown": float(loss.perplexity(known_bits, known_words)),
            "words": words,
        }

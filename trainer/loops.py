"""The inner loops of a run: steps of training, and the evaluation of a split."""

import time

import orbit
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.model import loss


class Trainer(orbit.StandardTrainer):
    """Steps of training: the paper's cost over the global batch, its gradient, the update."""

    def __init__(self, network, optimizers, config, strategy, workers, step, dataset):
        super().__init__(dataset)
        self._network, self._optimizers, self._config = network, optimizers, config
        self._strategy, self._step = strategy, step
        self._devices = strategy.num_replicas_in_sync // workers
        self._train_iter = iter(dataset)
        with strategy.scope():
            self._bits = tf.Variable(0.0, dtype=tf.float64)
            self._words = tf.Variable(0.0, dtype=tf.float64)
            self._norm = tf.Variable(0.0)
            self._failed = tf.Variable(-1, dtype=tf.int64)
        self._replica_step = tf.function(self._cost_and_update, jit_compile=config.jit_compile)

    @property
    def iterator(self):
        return self._train_iter

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

    def train_loop_begin(self):
        self._began = time.monotonic()
        self._bits.assign(0.0)
        self._words.assign(0.0)

    def train_step(self, iterator):
        batch = next(iterator)
        results = self._strategy.run(self._replica_step, args=(batch,))
        bits, words, norm = (self._strategy.experimental_local_results(r)[0] for r in results)
        self._bits.assign_add(tf.cast(bits, tf.float64))
        self._words.assign_add(tf.cast(words, tf.float64))
        self._norm.assign(norm)
        ok = tf.math.is_finite(bits) & tf.math.is_finite(norm) | (self._failed >= 0)
        self._failed.assign(tf.where(ok, self._failed.read_value(), self._step + 1))
        self._step.assign_add(1)

    def train_loop_end(self):
        bits, words = float(self._bits.numpy()), float(self._words.numpy())
        return {
            "cost": bits / words,
            "perplexity": min(loss.perplexity(min(bits / words, 1e3), 1.0), 1e30),
            "learning_rate": float(self._optimizers[0].learning_rate),
            "gradient_norm": float(self._norm.numpy()),
            "words_per_second": words / (time.monotonic() - self._began),
        }

    def _cost_and_update(self, batch):
        replica = tf.distribute.get_replica_context()
        replicas = replica.num_replicas_in_sync
        if self._devices > 1:
            mine = replica.replica_id_in_sync_group % self._devices
            batch = {name: value[mine :: self._devices] for name, value in batch.items()}
        everybody = tf.distribute.ReduceOp.SUM
        with tf.GradientTape() as tape:
            logits = self._network.logits(batch, training=True)
            bits, words = loss.word_costs(
                logits, batch[schema.TARGET_IDS], self._config.label_smoothing
            )
            all_words = replica.all_reduce(everybody, words) if replicas > 1 else words
            cost = bits / all_words  # Eq. 6: over the words of the global batch
            if self._config.l2:
                cost += self._config.l2 * loss.l2(self._network.model) / replicas
        parts = self._network.trainable_parts()
        gradients = tape.gradient(cost, [variable for part in parts for variable in part])
        # Dense, as the words of an embedding's gradient differ between replicas, and repeat.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if replicas > 1:
            gradients = replica.all_reduce(everybody, gradients)
            bits = replica.all_reduce(everybody, bits)
        norm = tf.linalg.global_norm(gradients)
        scale = 1.0
        if self._config.clip_norm:
            scale = self._config.clip_norm / tf.maximum(norm, self._config.clip_norm)
        # Keras sums the gradients of the replicas, which are equal by now: so a share of each.
        gradients = [g * (scale / replicas) for g in gradients]
        for optimizer, part in zip(self._optimizers, parts, strict=True):
            optimizer.apply(gradients[: len(part)], part)
            gradients = gradients[len(part) :]
        return bits, all_words, norm


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

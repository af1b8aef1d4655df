"""The story of a run, from records to the last checkpoint.

    1. The data: shards, vocabulary, and whether they fit the run directory.
    2. The network and its optimizers, under the strategy.
    3. The input: one plain iterator per worker, so that it can be saved.
    4. Resuming, in this order: everything is built, then the chief's state is read, then the
       worker's own iterator; all workers read alike.
    5. Loops of a few steps; between them evaluation, checkpoints, and a look at the stop flag.

orbit's trainer and evaluator make the inner loops. Its controller is left out: it restores on its
own, from one checkpoint, and a run here resumes from pairs of them.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable

import orbit
import tensorflow as tf
from absl import logging

from mrnn_tf import files, run, schema
from mrnn_tf.config import ENCODERS, RunConfig, TrainConfig
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError
from mrnn_tf.text import Vocabulary
from mrnn_tf.verification import verify
from trainer import optimization
from trainer.board import Board
from trainer.checkpoints import Checkpoints
from trainer.evaluation.captions import BeamScores
from trainer.loops import Evaluator, Trainer
from trainer.objectives import ExpectedCider, Likelihood
from trainer.options import TrainOptions

_CHECKPOINT_SECONDS = 180.0  # the most time between two checkpoints


class TrainingState(tf.Module):
    """How far a run is; saved with the weights."""

    def __init__(self, step: tf.Variable):
        super().__init__(name="progress")
        self.step = step
        self.best_perplexity = tf.Variable(math.inf, dtype=tf.float64)
        self.best_cider = tf.Variable(0.0, dtype=tf.float64)
        self.worse_evaluations = tf.Variable(0, dtype=tf.int64)

    def note(self, measured: dict[str, float]) -> bool:
        """Takes an evaluation in; tells whether it is the best so far.

        The best has the lowest perplexity, or the highest CIDEr where that is measured.
        """
        is_best = measured["perplexity"] < self.best_perplexity.numpy()
        if "cider" in measured:
            is_best = measured["cider"] > self.best_cider.numpy()
        if is_best:
            self.best_perplexity.assign(measured["perplexity"])
            self.best_cider.assign(measured.get("cider", 0.0))
        self.worse_evaluations.assign(0 if is_best else self.worse_evaluations + 1)
        return is_best


@dataclasses.dataclass(frozen=True)
class Result:
    """How a call of `train` ended."""

    step: int
    finished: bool  # False: asked to stop, the same command goes on
    perplexity: float  # the best on validation; infinite where nothing was evaluated
    captions: tuple[tuple[str, str], ...] = ()  # of the sample images, by name


class DivergedError(UserError):
    """The cost became NaN or infinite."""


def train(
    options: TrainOptions,
    strategy: tf.distribute.Strategy | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
    evaluated: Callable[[int, dict[str, float]], None] = lambda step, measured: None,
) -> Result:
    """Trains until the planned step, the end of patience, or the request to stop.

    `evaluated` gets the step and the figures of every evaluation.
    """
    config, strategy = options.train, strategy or tf.distribute.get_strategy()

    # 1. The data.
    if options.verify:
        verify(options.data, config.initial_run, options.job_dir, options.checkpoint_dir)
    info = records.DatasetInfo.load(options.data)
    run_config, vocabulary = plan(options, info)
    refuse_other_run(options, run_config)
    stores = schema.IMAGES if config.finetune_encoder else schema.FEATURES
    source = pipeline.Source(options.data, schema.TRAIN, vocabulary, stores)
    check_objective(config, strategy.num_replicas_in_sync)
    objective, dataset, captions = objective_and_batches(source, options)
    epoch = math.ceil(captions / config.batch_size)
    steps = max(1, round(config.epochs * epoch))
    due = max(1, round(config.evaluate_epochs * epoch))  # steps between two evaluations

    # 2. The network.
    with strategy.scope():
        step = orbit.utils.create_global_step()
        network = run.build(run_config, options.encoder_weights)
        if network.encoder and network.encoder.identity != info.identity:
            raise UserError(
                f"`encoder_weights`: the encoder would begin as {network.encoder.identity}, but "
                f"`data` was prepared with {info.identity}: give the same weights."
            )
        rates = [config.learning_rate, config.encoder_learning_rate]
        optimizers = []
        for variables, rate in zip(network.trainable_parts(), rates, strict=False):
            optimizers.append(optimization.create(config, rate, steps))
            optimizers[-1].build(variables)
        progress = TrainingState(step)
    current = run.Run(run_config, vocabulary, network, step=0)

    # 3. The input.
    dataset = pipeline.with_pixels(dataset, network.encoder)
    trainer = Trainer(
        network, objective, optimizers, config, strategy, options.workers, step, dataset
    )
    evaluator, samples = None, source
    if schema.VAL in info.splits and info.splits[schema.VAL].captions:
        samples = validation = dataclasses.replace(source, split=schema.VAL)
        batches = pipeline.evaluation_batches(validation, config.batch_size)
        evaluator = Evaluator(network, pipeline.with_pixels(batches, network.encoder))
        scores = BeamScores(current, validation) if config.objective == "cider" else dict
    else:
        logging.warning(
            "%s has no validation captions: nothing is evaluated, and the last weights are taken "
            "for the best.",
            options.data,
        )

    # 4. Resuming.
    state = {"network": network, "optimizers": optimizers, "progress": progress}
    checkpoints = Checkpoints(
        options.checkpoint_dir, state, trainer.iterator, options.workers, options.worker
    )
    last_good = checkpoints.restore()
    if last_good:
        logging.info("Resuming from %s", last_good)
        network.add_mean_normalized()
    else:
        logging.info("Starting at step 0: %s holds no checkpoint.", options.checkpoint_dir)
        network.take_mean(source)
        if config.initial_run:
            begin_with(current)
    saved, board, logs = int(step.numpy()), None, options.tensorboard_dir
    saved_at = time.monotonic()
    if options.worker == 0:
        claim(options, current)  # nothing can be refused any more
        board = Board(logs, current, samples, steps, saved)
        size = f"{network.model.parameter_count:,} parameters, {captions:,} captions"
        logging.info(f"{size}, {steps} steps of {config.batch_size} captions")

    # 5. The loops.
    while (now := int(step.numpy())) < steps:
        worse = int(progress.worse_evaluations.numpy())
        if config.patience and trainer.anyone(worse >= config.patience):
            logging.info("No better perplexity in %d evaluations: stopping early.", config.patience)
            break
        target = min(now + config.steps_per_loop, steps, (now // due + 1) * due)
        target = min(target, saved + config.checkpoint_steps)
        is_profiled = board and options.profile_step in range(now, target)
        with tf.profiler.experimental.Profile(logs) if is_profiled else contextlib.nullcontext():
            measured = trainer.train(tf.constant(target - now, tf.int32))
        if trainer.failed_step >= 0:
            raise DivergedError(
                f"The cost was not finite at step {trainer.failed_step}; the last good checkpoint "
                f"is {last_good or 'none'}. Lower `learning_rate` or `clip_norm`."
            )
        if board:
            board.training(target, measured)
        is_due = target % due == 0 or target == steps
        if evaluator and is_due:
            if network.encoder:
                network.take_mean(source)
            measured = evaluator.evaluate(tf.constant(-1))
            measured |= scores()
            is_best = progress.note(measured)
            if is_best:
                checkpoints.save_best(target)
            if board:
                best = float(progress.best_perplexity.numpy())
                board.evaluation(target, measured, is_best, best)
                evaluated(target, measured)
        if board and is_due:
            board.samples(target)
        stopping = trainer.anyone(stop_requested())
        is_late = trainer.anyone(time.monotonic() - saved_at > _CHECKPOINT_SECONDS)
        if target - saved >= config.checkpoint_steps or is_due or is_late or stopping:
            last_good, saved, saved_at = checkpoints.save(target), target, time.monotonic()
        if stopping and target < steps:
            logging.info("Asked to stop: saved step %d; the same command goes on.", target)
            return Result(target, False, float(progress.best_perplexity.numpy()))
    if saved < now:
        checkpoints.save(now)
    best = float(progress.best_perplexity.numpy())
    return Result(now, True, best, board.end() if board else ())


def plan(options: TrainOptions, info: records.DatasetInfo) -> tuple[RunConfig, Vocabulary]:
    """The configuration of a run on a dataset, and its words; refuses what cannot be trained on."""
    model, config, data, encoder = options.model, options.train, options.data, info.encoder
    if schema.TRAIN not in info.splits or not info.splits[schema.TRAIN].captions:
        raise UserError(f"`data` {data} holds no training captions.")
    if config.finetune_encoder:
        if schema.IMAGES not in info.stores or "name" not in info.encoder:
            raise UserError(
                f"`finetune_encoder`: `data` {data} must hold images and name the encoder to begin "
                "with: prepare it with --store both."
            )
        if info.encoder["name"] not in ENCODERS:
            raise UserError(
                f"`finetune_encoder`: `data` {data} was prepared with {info.encoder['name']}, but "
                f"only these can be trained: {', '.join(ENCODERS)}."
            )
        settings = json.dumps([model.to_dict(), config.to_dict(), info.fingerprint])
        digest = hashlib.sha256(settings.encode()).hexdigest()[:12]
        encoder = {**info.encoder, "identity": f"{run.FINETUNED}:{info.identity}:{digest}"}
    info.checksums.check(schema.VOCABULARY_FILE)
    vocabulary = Vocabulary.load(tf.io.gfile.join(data, schema.VOCABULARY_FILE))
    if len(vocabulary) != info.vocabulary_size:
        raise UserError(
            f"`data` {data}: {schema.VOCABULARY_FILE} has {len(vocabulary)} words, but "
            f"{schema.DATASET_FILE} says {info.vocabulary_size}."
        )
    if config.initial_run:  # it has learned its own words
        _, vocabulary = run.load_settings(config.initial_run)
    sizes = len(vocabulary), info.feature_size
    return RunConfig(model, config, *sizes, encoder, info.fingerprint), vocabulary


def check_objective(config: TrainConfig, devices: int) -> None:
    """Refuses an objective that has no run to begin with, or batches that cannot be divided."""
    is_cider = config.objective == "cider"
    if is_cider and not config.initial_run:
        raise UserError("`objective` cider needs `initial_run`: a trained run to begin with.")
    divisor = devices * config.candidates if is_cider else devices
    if config.batch_size % divisor:
        candidates = f" by {config.candidates} candidates" if is_cider else ""
        raise UserError(
            f"`batch_size` {config.batch_size} must be a multiple of {divisor}: {devices} devices"
            f"{candidates}."
        )


def objective_and_batches(
    source: pipeline.Source, options: TrainOptions
) -> tuple[Likelihood | ExpectedCider, tf.data.Dataset, int]:
    """What the run makes smaller, its batches, and how many captions an epoch has."""
    config, counts = options.train, source.info.splits[source.split]
    share = {"seed": config.seed, "deterministic": config.deterministic}
    share |= {"workers": options.workers, "worker": options.worker}
    if config.objective == "cider":
        corpus = pipeline.captions(source.directory, source.split)
        objective = ExpectedCider(corpus, source.vocabulary, config.candidates)
        images = config.batch_size // config.candidates
        batches = pipeline.training_images(source, images, **share)
        return objective, batches, counts.images * config.candidates
    total, long = counts.captions, pipeline.count_long(source, config.max_words)
    if long:
        logging.info(f"{long} of {total} captions have over {config.max_words} words: left out.")
    if long == total:
        raise UserError(f"All captions have more than `max_words` {config.max_words} words.")
    share |= {"max_words": config.max_words, "shuffle_buffer": config.shuffle_buffer}
    batches = pipeline.training_batches(source, config.batch_size, **share)
    return Likelihood(), batches, total - long


def begin_with(current: run.Run) -> None:
    """Takes the best weights of the initial run, which must be of the same network."""
    config, job_dir = current.config, current.config.train.initial_run
    before = run.Run.load(job_dir)
    dropout = {k: v for k, v in config.model.to_dict().items() if k.startswith("dropout")}
    model = dataclasses.replace(before.config.model, **dropout)  # changes no weight
    free = {"train": config.train, "dataset": config.dataset}
    difference = dataclasses.replace(before.config, model=model, **free).difference(config)
    if difference:
        raise UserError(f"`initial_run` {job_dir} cannot begin this run: {difference}.")
    weights = current.network.model.weights, before.network.model.weights
    for mine, other in zip(*weights, strict=True):
        mine.assign(other)


def refuse_other_run(options: TrainOptions, config: RunConfig) -> None:
    """Refuses directories that hold a run of another configuration, or no run but other files."""
    if run.load_config(options.job_dir) is None and (other := other_file(options.job_dir)):
        raise UserError(
            f"`job_dir` {options.job_dir} is no run directory, but holds other files, such as "
            f"{other}: choose a new or empty folder."
        )
    for name, directory in options.claimed.items():
        present = run.load_config(directory)
        if present and (difference := present.difference(config)):
            raise UserError(
                f"`{name}` {directory} holds another run: {difference}. Choose another."
            )


def other_file(directory: str) -> str | None:
    """A name in a directory that is neither what a run leaves when it is killed early nor a log."""
    names = tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []
    folders = (schema.CHECKPOINT_DIR, schema.LOG_DIR, schema.MODEL_DIR, schema.REPORT_DIR)
    own = {*folders, schema.VOCABULARY_FILE}
    names = [name.rstrip("/") for name in names if not name.endswith((".partial", ".log"))]
    return min((name for name in names if name not in own and name[0] != "."), default=None)


def claim(options: TrainOptions, current: run.Run) -> None:
    """Makes the run's directories its own, unless they are already."""
    for name, directory in options.claimed.items():
        try:
            with files.alone_in(directory):
                refuse_other_run(options, current.config)
                if tf.io.gfile.exists(tf.io.gfile.join(directory, schema.CONFIG_FILE)):
                    continue
                if directory == options.job_dir:
                    current.vocabulary.save(tf.io.gfile.join(directory, schema.VOCABULARY_FILE))
                run.save_config(current.config, directory)
        except (OSError, tf.errors.OpError) as error:
            reason = getattr(error, "message", None) or error
            raise UserError(f"`{name}` {directory} cannot be written: {reason}") from None

"""A run directory: its configuration, vocabulary and trained model."""

import contextlib
import dataclasses
import hashlib
import json
import re

import keras
import numpy as np
import tensorflow as tf

from mrnn_tf import checksums, files, schema, versions
from mrnn_tf.checksums import Checksums
from mrnn_tf.config import RunConfig
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError
from mrnn_tf.model.mrnn import MRNN, Image
from mrnn_tf.text import Vocabulary
from mrnn_tf.vision import encoders

FINETUNED = "finetuned"
_TASK = "by the same `python -m trainer.task` as before"


class Network(tf.Module):
    """What a checkpoint restores: the m-RNN, and the encoder where the run trains it.

    Attributes:
        mean_features: float [D]. Of the training images.
        mean_normalized: float [D]. The same after the model's norm of features. Whoever restores a
            checkpoint adds it then: those of earlier releases have none, and it stays zero.
    """

    def __init__(self, model: MRNN, encoder: encoders.Encoder | None = None):
        super().__init__(name="network")
        self.model, self.encoder = model, encoder
        # The name of the encoder's weights in a checkpoint, which takes the shortest one.
        self.encoder_model = encoder.model if encoder else None
        self.mean_features = tf.Variable(tf.zeros([model.feature_size]), trainable=False)

    def add_mean_normalized(self) -> None:
        """Makes the variable `mean_normalized`; it takes its value from what was restored."""
        self.mean_normalized = tf.Variable(tf.zeros([self.model.feature_size]), trainable=False)

    @property
    def means(self) -> dict[str, tf.Variable]:
        """The variables that are means of the training images, by their names in an export."""
        names = ("mean_features", "mean_normalized")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    @property
    def models(self) -> list[keras.Model]:
        """The m-RNN, and the encoder's network where the run trains it."""
        return [self.model, self.encoder_model] if self.encoder else [self.model]

    def trainable_parts(self) -> list[list]:
        """The trainable variables of each of the models."""
        return [model.trainable_variables for model in self.models]

    def features(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """The features of a batch: stored, or computed from `pixels` by the run's own encoder."""
        if self.encoder is None:
            return batch[schema.FEATURES]
        return self.encoder.encode(batch[schema.PIXELS])

    def take_mean(self, source: pipeline.Source) -> None:
        """Takes the mean features of a split's images, which stand for "no image" later."""
        sums = tf.add_n([self._sums(batch) for batch in self.images(source, 64)])
        means = tf.cast(sums / source.info.splits[source.split].images, tf.float32)
        if "mean_normalized" not in self.means:
            self.add_mean_normalized()
        self.mean_features.assign(means[0])
        self.mean_normalized.assign(means[1])

    @tf.function(reduce_retracing=True)
    def _sums(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """The sums [2, D] of the features of a batch, and of the same after the model's norm."""
        features = self.features(batch)
        both = tf.stack([features, self.model.feature_norm(features)])
        return tf.reduce_sum(tf.cast(both, tf.float64), axis=1)

    def images(self, source: pipeline.Source, batch_size: int) -> tf.data.Dataset:
        """Every image of a split once, as `features` takes them."""
        return pipeline.with_pixels(pipeline.image_batches(source, batch_size), self.encoder)

    def blank(self, images: int | tf.Tensor) -> Image:
        """What stands for "no image": the projection of the mean features, `images` times."""
        return self.model.project_image(tf.repeat(self.mean_features[tf.newaxis], images, axis=0))

    def mean_projection(self) -> tf.Tensor:
        """The mean projection V_I I [M] of the training images, around which images lie.

        A run of an earlier release has the projection of their mean features instead, which is
        longer where the model has a norm of features.
        """
        mean = self.means.get("mean_normalized")
        if mean is None or not tf.reduce_any(mean != 0.0):
            return self.blank(1)["multimodal"][0]
        return self.model.image_to_multimodal(mean[tf.newaxis])[0]

    def logits(self, batch: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        inputs = {schema.FEATURES: self.features(batch), schema.WORD_IDS: batch[schema.WORD_IDS]}
        return self.model(inputs, training=training)


def build(config: RunConfig, encoder_weights: str | None = None) -> Network:
    """The network of a configuration; an encoder to be trained begins with `encoder_weights`."""
    encoder = None
    if config.train.finetune_encoder:
        if missing := {"name", "crops"} - config.encoder.keys():
            wanted = " and ".join(f"`{key}`" for key in sorted(missing))
            raise UserError(f"the configuration has `finetune_encoder`, but no {wanted}.")
        encoder = encoders.create(config.encoder["name"], encoder_weights, config.encoder["crops"])
    sizes = config.vocabulary_size, config.feature_size
    model = MRNN(config.model, *sizes, config.train.seed, config.feature_parts)
    return Network(model, encoder)


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained run, ready for decoding, scoring and export."""

    config: RunConfig
    vocabulary: Vocabulary
    network: Network
    step: int

    @classmethod
    def load(cls, job_dir: str, which: str = "best", checkpoint_dir: str | None = None) -> "Run":
        """Restores the `best` or the `latest` weights of a run directory."""
        config, vocabulary = load_settings(job_dir)
        directory = checkpoint_dir or tf.io.gfile.join(job_dir, schema.CHECKPOINT_DIR)
        kinds = {"best": ("best", "model"), "latest": ("model",)}[which]
        path = next(filter(None, (latest(directory, kind) for kind in kinds)), None)
        if path is None:
            raise FileNotFoundError(f"{directory} holds no checkpoint: train the run first.")
        network = build(config, encoder_weights="random")
        with naming_damage(path):
            tf.train.Checkpoint(network=network).read(path).expect_partial()
            network.add_mean_normalized()
        _check_finite(network, path)
        return cls(config, vocabulary, network, int(path.rsplit("-", 1)[-1]))

    @classmethod
    def from_saved_model(cls, directory: str) -> "Run":
        """The run that a SavedModel of `export.task` or `export.index` was made from."""
        assets = tf.io.gfile.join(directory, "assets")
        path = tf.io.gfile.join(assets, schema.CONFIG_FILE)
        if not tf.io.gfile.exists(path):
            missing = f"{directory} holds no assets/{schema.CONFIG_FILE}"
            raise FileNotFoundError(f"{missing}: no `python -m export.task` made this version.")
        versions.check(directory)
        facts = files.read_json(path, "the configuration of an exported run is wanted")
        try:
            config, step = RunConfig.from_dict(facts["run"]), int(facts["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} does not describe a run: {error}") from error
        vocabulary = Vocabulary.load(tf.io.gfile.join(assets, schema.VOCABULARY_FILE))
        network = build(config, encoder_weights="random")
        weights = [variable for model in network.models for variable in model.variables]
        saved_as = {f"weights/{index}": variable for index, variable in enumerate(weights)}
        saved_as["mean_features"] = network.mean_features
        variables = tf.io.gfile.join(directory, "variables", "variables")
        with checksums.naming_damage(variables, "export the version again"):
            try:
                # `load_checkpoint` knows local files only.
                reader = tf.compat.v1.train.NewCheckpointReader(variables)
                for name, variable in saved_as.items():
                    variable.assign(reader.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE"))
                network.add_mean_normalized()
                mean = "mean_normalized/.ATTRIBUTES/VARIABLE_VALUE"
                if reader.has_tensor(mean):
                    network.mean_normalized.assign(reader.get_tensor(mean))
            except (ValueError, tf.errors.NotFoundError) as error:
                raise UserError(f"{variables} does not fit {path}: {error}") from error
        _check_finite(network, variables)
        return cls(config, vocabulary, network, step)

    @property
    def fingerprint(self) -> str:
        """What tells this model from another: a hash of its form and weights."""
        # The removed fields too, or an index of an earlier version would not know its model.
        form = {**self.config.model.removed, **self.config.model.to_dict()}
        digest = hashlib.sha256(json.dumps(form, sort_keys=True).encode())
        for model in self.network.models:
            for weight in model.weights:
                digest.update(np.ascontiguousarray(weight.numpy()))
        return digest.hexdigest()

    @property
    def fingerprints(self) -> dict[str, str]:
        """What tells the model, its vocabulary and its encoder from others."""
        words = "\n".join(self.vocabulary.words)
        return {
            schema.MODEL_FINGERPRINT: self.fingerprint,
            schema.VOCABULARY_HASH: hashlib.sha256(words.encode()).hexdigest(),
            schema.ENCODER_IDENTITY: self.config.encoder["identity"],
        }

    def source(self, data: str, split: str) -> pipeline.Source:
        """A split of a dataset for this run; refuses the features of another encoder."""
        check_encoder(self.config, data)
        stores = schema.IMAGES if self.config.train.finetune_encoder else schema.FEATURES
        return pipeline.Source(data, split, self.vocabulary, stores)


def check_encoder(config: RunConfig, data: str) -> None:
    """Refuses records whose features the model was not trained on."""
    info = records.DatasetInfo.load(data)
    if config.train.finetune_encoder:
        if schema.IMAGES not in info.stores:
            raise UserError(
                f"{data} holds features only, but the run trained its own encoder: prepare it with "
                "--store images or both."
            )
    elif info.identity != config.encoder["identity"]:
        raise UserError(
            f"{data} holds features of {info.identity}, but the run was trained on "
            f"{config.encoder['identity']}: prepare the data with that encoder."
        )


def load_settings(job_dir: str) -> tuple[RunConfig, Vocabulary]:
    """The configuration and the words of a run."""
    if not tf.io.gfile.exists(tf.io.gfile.join(job_dir, schema.CONFIG_FILE)):
        raise FileNotFoundError(f"{job_dir} holds no {schema.CONFIG_FILE}: it is not a run.")
    config, sums = _read_config(job_dir)
    sums.check()
    return config, Vocabulary.load(tf.io.gfile.join(job_dir, schema.VOCABULARY_FILE))


def load_config(job_dir: str) -> RunConfig | None:
    """The configuration of a run directory, or `None` where there is no run yet."""
    if not tf.io.gfile.exists(tf.io.gfile.join(job_dir, schema.CONFIG_FILE)):
        return None
    return _read_config(job_dir)[0]


def save_config(config: RunConfig, directory: str) -> None:
    """Writes the configuration, with a checksum of the vocabulary where that lies beside it."""
    path, names = tf.io.gfile.join(directory, schema.CONFIG_FILE), [schema.VOCABULARY_FILE]
    present = set(tf.io.gfile.listdir(directory)) & set(names)
    checksums.write(path, config.to_dict(), directory, present)


def _read_config(directory: str) -> tuple[RunConfig, Checksums]:
    path = tf.io.gfile.join(directory, schema.CONFIG_FILE)
    remedy = f"delete {path} and write it again, {_TASK}"
    wanted = "the configuration of a run is wanted"
    content, sums = checksums.read(path, wanted, directory, remedy)
    try:
        return RunConfig.from_dict(content), sums
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not the configuration of a run: {error}") from error


def check_files(directory: str) -> None:
    """Refuses a damaged configuration, and a damaged vocabulary beside it."""
    _read_config(directory)[1].check()


def naming_damage(path: str) -> contextlib.AbstractContextManager[None]:
    """Where a checkpoint of a run is damaged, names it and says how the run goes on."""
    remedy = f"delete the files {path}.* and go on from an earlier one, {_TASK}"
    return checksums.naming_damage(path, remedy)


def _check_finite(network: Network, path: str) -> None:
    """Refuses weights with NaN or infinity, by which no sentence could be ranked."""
    variables = [each for model in network.models for each in model.variables]
    for variable in [*variables, network.mean_features]:
        if variable.dtype in ("float32", tf.float32) and not np.isfinite(variable.numpy()).all():
            raise UserError(f"{path} holds NaN or infinity in {variable.name}: train again.")


def latest(directory: str, kind: str) -> str | None:
    """The newest checkpoint `<kind>-<step>` that is whole."""
    steps = checkpoint_steps(directory, kind)
    return tf.io.gfile.join(directory, f"{kind}-{steps[-1]:08d}") if steps else None


def checkpoint_steps(directory: str, kind: str) -> list[int]:
    """Steps whose checkpoints are whole: the index of a checkpoint is written last."""
    if not tf.io.gfile.isdir(directory):
        return []
    pattern = re.compile(rf"{kind}-(\d{{8}})\.index")
    names = tf.io.gfile.listdir(directory)
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))

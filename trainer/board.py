"""What a run shows: lines in the log, a bar on a terminal, and TensorBoard."""

import math
import sys

import numpy as np
import tensorflow as tf
from absl import logging
from tensorboard.plugins import projector
from tensorboard.plugins.hparams import api as hparams
from tqdm import tqdm

from mrnn_tf import decode, schema
from mrnn_tf.config import RunConfig
from mrnn_tf.data import pipeline
from mrnn_tf.run import Run

_SAMPLES = 8


class Board:
    """What the chief shows of its run.

    The sample images are the first of `samples`. This process begins at the step `begin`, and the
    run ends at the step `steps`.
    """

    def __init__(self, directory: str, run: Run, samples: pipeline.Source, steps: int, begin: int):
        self._directory, self._network, self._vocabulary = directory, run.network, run.vocabulary
        self._train = tf.summary.create_file_writer(tf.io.gfile.join(directory, "train"))
        self._val = tf.summary.create_file_writer(tf.io.gfile.join(directory, "val"))
        self._bar = tqdm(total=steps, initial=begin, unit=" steps", disable=None)
        [self._samples] = run.network.images(samples, _SAMPLES).take(1)
        self._references = self._samples.pop(schema.CAPTIONS)
        if begin == 0:
            self._describe(run.config)

    def training(self, step: int, measured: dict[str, float]) -> None:
        """After a loop of training."""
        _write_scalars(self._train, step, measured)
        self._bar.update(step - self._bar.n)
        name, value = next(iter(measured.items()))  # what the objective tells first
        self._bar.set_postfix_str(f"{name} {value:.3g}")
        if not sys.stderr.isatty():
            speed = measured["words_per_second"]
            logging.info("step %d  %s %.4g  %.0f words/s", step, name, value, speed)

    def evaluation(self, step: int, measured: dict[str, float], is_best: bool) -> None:
        """After an evaluation: the figures, and what the model says of the sample images."""
        _write_scalars(self._val, step, measured)
        with self._val.as_default(step=step):
            tf.summary.text("captions", self._table())
        perplexity = f"validation perplexity {measured['perplexity']:.3f}"
        cider = f", CIDEr {measured['cider']:.3f}" if "cider" in measured else ""
        best = " (best)" if is_best else ""
        self._bar.write(f"step {step}: {perplexity}{cider}{best}", file=sys.stderr)

    def end(self, perplexity: float) -> tuple[tuple[str, str], ...]:
        """After the last step: word vectors and the score; returns captions of the samples."""
        self._bar.close()
        self._write_projector()
        if math.isfinite(perplexity):
            _write_scalars(self._val, self._bar.n, {"best_perplexity": perplexity})
        return tuple(self._captions())

    def _write_projector(self) -> None:
        """Embedding layer II of every word, with the words as labels."""
        self._vocabulary.save(tf.io.gfile.join(self._directory, "words.tsv"))
        with tf.io.gfile.GFile(tf.io.gfile.join(self._directory, "vectors.tsv"), "w") as file:
            np.savetxt(file, self._network.model.word_vectors().numpy(), "%.5g", delimiter="\t")
        config = projector.ProjectorConfig()
        paths = {"tensor_path": "vectors.tsv", "metadata_path": "words.tsv"}
        config.embeddings.add(tensor_name="word embedding II", **paths)
        projector.visualize_embeddings(self._directory, config)

    def _describe(self, config: RunConfig) -> None:
        model = self._network.model
        inputs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), model.input)
        graph = tf.function(lambda batch: model(batch)).get_concrete_function(inputs).graph
        with self._val.as_default(step=0):
            hparams.hparams({**config.model.to_dict(), **config.train.to_dict()})
            tf.summary.graph(graph)

    @tf.function
    def _greedy(self, features: tf.Tensor) -> decode.Decoded:
        model = self._network.model
        return decode.greedy(*decode.begin(model, model.project_image(features)))

    def _captions(self) -> list[tuple[str, str]]:
        """The sample images by name, with what the model says of them now."""
        decoded = self._greedy(self._network.features(self._samples))
        sentences = self._vocabulary.sentences(decoded.ids[:, 0]).numpy()
        names = self._samples[schema.IDS].numpy()
        return [(n.decode(), s.decode()) for n, s in zip(names, sentences, strict=True)]

    def _table(self) -> str:
        rows = ["| image | generated | reference |", "|---|---|---|"]
        captions = zip(self._captions(), self._references.to_list(), strict=True)
        for (image, sentence), references in captions:
            reference = references[0].decode() if references else ""
            rows.append(f"| {image} | {sentence} | {reference} |")
        return "\n".join(rows)


def _write_scalars(writer: tf.summary.SummaryWriter, step: int, values: dict[str, float]) -> None:
    with writer.as_default(step=step):
        for name, value in values.items():
            tf.summary.scalar(name, value)
    writer.flush()

"""What a run shows: lines in the log, a bar on a terminal, and TensorBoard."""

import itertools
import sys

import numpy as np
import tensorflow as tf
from absl import logging
from tensorboard.plugins import projector
from tensorboard.plugins.hparams import api as hparams

from mrnn_tf import decode, schema
from mrnn_tf.config import RunConfig
from mrnn_tf.data import pipeline
from mrnn_tf.progress import Progress
from mrnn_tf.run import Run
from trainer import sample_cards

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
        self._bar = Progress(total=steps, initial=begin, unit=" steps")
        [self._samples] = run.network.images(samples, _SAMPLES).take(1)
        self._references = self._samples.pop(schema.CAPTIONS)
        pictures = itertools.islice(pipeline.pictures(samples.directory, samples.split), _SAMPLES)
        self._pictures = {name: sample_cards.decode(encoded) for name, encoded in pictures}
        if begin == 0:
            self._describe(run.config)

    def training(self, step: int, measured: dict[str, float]) -> None:
        """After a loop of training."""
        _write_scalars(self._train, step, measured)
        name, value = next(iter(measured.items()))  # what the objective tells first
        speed = f"{measured['words_per_second']:.0f} words/s"
        self._bar.set_postfix_str(f"{name} {value:.4g}, {speed}", refresh=False)
        self._bar.update(step - self._bar.n)
        if not sys.stderr.isatty():
            logging.info("step %d  %s %.4g  %s", step, name, value, speed)

    def evaluation(
        self, step: int, measured: dict[str, float], is_best: bool, best_perplexity: float
    ) -> None:
        """After an evaluation: the figures, and the best perplexity so far."""
        _write_scalars(self._val, step, {**measured, "best_perplexity": best_perplexity})
        perplexity = f"validation perplexity {measured['perplexity']:.3f}"
        cider = f", CIDEr {measured['cider']:.3f}" if "cider" in measured else ""
        best = " (best)" if is_best else ""
        self._bar.say(f"step {step}: {perplexity}{cider}{best}")

    def samples(self, step: int) -> None:
        """What the model says of the sample images: a table, and a picture of each."""
        rows = ["| image | generated | reference |", "|---|---|---|"]
        captions = zip(self._captions(), self._references.to_list(), strict=True)
        with self._val.as_default(step=step):
            for (name, sentence), texts in captions:
                references = [text.decode(errors="replace") for text in texts]
                rows.append(f"| {name} | {sentence} | {references[0] if references else ''} |")
                if name in self._pictures:
                    sample_cards.write(name, self._pictures[name], sentence, references)
            tf.summary.text("captions", "\n".join(rows))
        self._val.flush()

    def end(self) -> tuple[tuple[str, str], ...]:
        """After the last step: word vectors; returns captions of the samples."""
        self._bar.close()
        self._write_projector()
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


def _write_scalars(writer: tf.summary.SummaryWriter, step: int, values: dict[str, float]) -> None:
    with writer.as_default(step=step):
        for name, value in values.items():
            tf.summary.scalar(name, value)
    writer.flush()

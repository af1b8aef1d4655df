"""What the embedded dataset must be rich enough for: a trained model that needs the picture."""

import numpy as np
import programs
import pytest
import tensorflow as tf
from nltk.translate.bleu_score import corpus_bleu

from mrnn_tf import decode, schema
from mrnn_tf.data import pipeline
from mrnn_tf.run import Run
from mrnn_tf.text import tokenize

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    done = programs.start(
        folder, "trainer.prepare", "--dataset", "demo", "--output", folder / "data"
    ).wait(1200)
    assert done.code == 0, done.err
    return folder


def trained(folder, variant):
    arguments = ["--data", folder / "data", "--job_dir", folder / variant, "--preset", "demo"]
    done = programs.start(folder, "trainer.task", *arguments, f"--variant={variant}").wait(1800)
    assert done.code == 0, done.err
    return Run.load(str(folder / variant))


@pytest.fixture(scope="module")
def mrnn(folder):
    return trained(folder, "mrnn")


def images(run, folder, split):
    [batch] = pipeline.image_batches(run.source(str(folder / "data"), split), 10_000)
    return batch


def words(texts):
    return [[word.decode() for word in row] for row in tokenize(texts).to_list()]


def bleu(run, folder):
    batch = images(run, folder, "test")
    image = run.network.model.project_image(batch["features"])
    found = decode.greedy(*decode.begin(run.network.model, image))
    hypotheses = words(run.vocabulary.sentences(found.ids[:, 0]))
    return corpus_bleu([words(texts) for texts in batch["captions"].to_list()], hypotheses)


def test_the_picture_makes_bleu_at_least_half_as_good_again(folder, mrnn):
    with_image, without = bleu(mrnn, folder), bleu(trained(folder, "rnn_base"), folder)
    print(f"BLEU-4 on test: {with_image:.3f} with the image, {without:.3f} without")
    assert with_image >= 1.5 * without


def test_sentences_are_found_by_their_image(folder, mrnn):
    model, batch = mrnn.network.model, images(mrnn, folder, "test")
    texts = batch["captions"].flat_values
    owner = batch["captions"].value_rowids().numpy()
    sample = images(mrnn, folder, "train")["features"][:100]
    queries, others = model.project_image(batch["features"]), model.project_image(sample)

    @tf.function
    def log_probs(h, targets, image):
        """log P [images] of one sentence by its word part [T, M]."""
        scores = tf.nn.log_softmax(model.logits_from(h[tf.newaxis], image))
        places = tf.repeat(targets[tf.newaxis], tf.shape(scores)[0], axis=0)
        return tf.reduce_sum(tf.gather(scores, places, batch_dims=2), axis=-1)

    normalised = []
    for text in texts.numpy():
        ids = mrnn.vocabulary.ids([text])[0]
        h = model.word_part(tf.concat([[schema.START_ID], ids], 0)[tf.newaxis])[0]
        targets = tf.concat([ids, [schema.END_ID]], 0)
        marginal = tf.reduce_logsumexp(log_probs(h, targets, others)) - np.log(len(sample))
        normalised.append((log_probs(h, targets, queries) - marginal).numpy())
    best = np.stack(normalised, axis=1).argmax(axis=1)  # of [images, sentences]
    recall = (owner[best] == np.arange(len(best))).mean()
    chance = 1 / len(best)
    print(f"image to text R@1 on test: {recall:.3f}, chance {chance:.4f}")
    assert recall >= 10 * chance

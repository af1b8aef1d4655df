"""The training loop in this process: strategies, divergence, early stopping, own encoder."""

import dataclasses
import io
import itertools
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tiny
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mrnn_tf import run, schema, text
from mrnn_tf.config import ModelConfig, TrainConfig
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError
from mrnn_tf.inference import attached_encoder
from mrnn_tf.model import loss
from mrnn_tf.vision import encoders
from trainer import sample_cards, train
from trainer.evaluation import captions
from trainer.report import curves

STILL = {"dropout_embedding": 0.0, "dropout_recurrent": 0.0, "dropout_multimodal": 0.0}
MODEL = ModelConfig(embedding_1=6, embedding_2=8, recurrent=8, multimodal=10, **STILL)
CONFIG = TrainConfig(
    epochs=5.0, batch_size=18, learning_rate=0.02, schedule="constant", warmup_steps=1, l2=1e-4,
    steps_per_loop=7, evaluate_epochs=2.5, clip_norm=0.5, deterministic=True,
)  # fmt: skip


def go(data, folder, strategy=None, model=MODEL, encoder_weights=None, **changes):
    options = train.TrainOptions(
        data=data,
        job_dir=f"{folder}/job",
        model=model,
        train=dataclasses.replace(CONFIG, **changes),
        encoder_weights=encoder_weights,
    )
    return train.train(options, strategy)


def test_two_mirrored_devices_agree_with_one(tiny_data, tmp_path):
    one = go(tiny_data, tmp_path / "one")
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    two = go(tiny_data, tmp_path / "two", mirrored)
    assert one.step == two.step == 20
    assert one.perplexity < 15
    assert abs(np.log2(one.perplexity) - np.log2(two.perplexity)) < 1e-4


def test_the_reported_perplexity_is_that_of_the_restored_model(tiny_data, tmp_path):
    result = go(tiny_data, tmp_path)
    trained = run.Run.load(f"{tmp_path}/job")
    bits = words = 0.0
    for batch in pipeline.evaluation_batches(trained.source(tiny_data, "val"), 7):
        some = loss.word_costs(trained.network.logits(batch), batch[schema.TARGET_IDS])
        bits, words = bits + float(some[0]), words + float(some[1])
    np.testing.assert_allclose(loss.perplexity(bits, words), result.perplexity, rtol=1e-5)


def test_tensorboard_shows_the_run(tiny_data, tmp_path):
    go(tiny_data, tmp_path)
    logs = tmp_path / "job" / "logs"
    training = EventAccumulator(str(logs / "train")).Reload()
    scalars = {"cost", "perplexity", "learning_rate", "words_per_second"}
    scalars |= {"gradient_norm", "highest_gradient_norm"}
    assert set(training.Tags()["tensors"]) == scalars
    validation = EventAccumulator(str(logs / "val")).Reload()
    shown = {"perplexity", "perplexity_without_unknown", "captions", "best_perplexity"}
    assert shown <= set(validation.Tags()["tensors"])
    perplexities = [
        curves.scalar(str(logs / "val"), tag) for tag in ("perplexity", "best_perplexity")
    ]
    assert [len(points) for points in perplexities] == [2, 2]
    assert perplexities[1][-1] == min(perplexities[0], key=lambda point: point[1])
    assert validation.Tags()["graph"]
    [captions, _] = validation.Tensors("captions")
    assert b"| val-0.jpg |" in captions.tensor_proto.string_val[0]
    vocabulary = text.Vocabulary.load(f"{tmp_path}/job/vocabulary.txt")
    assert (logs / "words.tsv").read_text().split() == list(vocabulary.words)
    assert np.loadtxt(logs / "vectors.tsv").shape == (len(vocabulary), 8)
    assert "words.tsv" in (logs / "projector_config.pbtxt").read_text()


def test_tensorboard_shows_sample_pictures_with_captions_as_the_run_goes_on(tmp_path):
    data = tiny.write(f"{tmp_path}/data", pictures=True)
    go(data, tmp_path)
    board = EventAccumulator(f"{tmp_path}/job/logs/val").Reload()
    samples = [tag for tag in board.Tags()["tensors"] if tag.startswith("samples/")]
    assert len(samples) == 8
    events = board.Tensors("samples/val-0.jpg")
    assert [event.step for event in events] == [10, 20]
    width, height, encoded = events[-1].tensor_proto.string_val
    card = Image.open(io.BytesIO(encoded))
    assert card.size == (int(width), int(height))
    [(_, stored)] = itertools.islice(pipeline.pictures(data, "val"), 1)
    shown = sample_cards.decode(stored)
    assert card.height > shown.height
    below = np.asarray(card.convert("L"))[shown.height :]
    assert below.min() < 100 and np.median(below) > 250  # dark letters on white
    difference = np.asarray(card.crop((0, 0, *shown.size)), int) - np.asarray(shown, int)
    assert np.abs(difference).mean() < 5


def test_repeated_evaluations_trace_nothing_again(tiny_job, tiny_data):
    trained = run.Run.load(tiny_job)
    source = trained.source(tiny_data, "val")
    network, scores = trained.network, captions.BeamScores(trained, source)
    network.take_mean(source)
    first, traced = scores(), scores._search.experimental_get_tracing_count()
    before = network._sums.experimental_get_tracing_count()
    network.take_mean(source)
    assert scores() == first and first["cider"] > 0
    assert scores._search.experimental_get_tracing_count() == traced
    assert network._sums.experimental_get_tracing_count() == before


def test_a_cost_that_is_no_number_stops_the_run(tiny_data, tmp_path):
    with pytest.raises(train.DivergedError, match=r"at step \d+; the last good checkpoint is none"):
        go(tiny_data, tmp_path, optimizer="sgd", learning_rate=1e30, clip_norm=0.0)


def test_patience_ends_a_run_that_does_not_get_better(tiny_data, tmp_path):
    result = go(tiny_data, tmp_path, learning_rate=0.0, patience=2, epochs=50.0)
    assert result.finished and result.step == 3 * 10


def test_a_run_on_a_remote_file_system(tiny_data):
    for name in tf.io.gfile.listdir(tiny_data):
        tf.io.gfile.makedirs("ram://run/data")
        tf.io.gfile.copy(f"{tiny_data}/{name}", f"ram://run/data/{name}", overwrite=True)
    assert go("ram://run/data", "ram://run", epochs=1.0).finished
    assert run.Run.load("ram://run/job", "latest").step == 4


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Four images in records with an untrained encoder's features, which are not used."""
    folder = tmp_path_factory.mktemp("photos")
    directory = str(folder / "data")
    tf.io.gfile.makedirs(directory)
    encoder = encoders.create("mobilenet_v2", "random")
    [path] = records.shard_paths(directory, "train", 1)
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(4):
            file = folder / f"{i}.png"
            Image.new("RGB", (30 + i, 40), (60 * i, 0, 255 - 60 * i)).save(file)
            features = np.zeros(encoder.feature_size, np.float32)
            captions = tiny.captions_of(i % 3, i)[:1]
            writer.write(records.serialize(str(i), captions, features, file.read_bytes()))
    vocabulary = text.Vocabulary.build(["a red green blue dog cat car boat"], 1)
    vocabulary.save(f"{directory}/vocabulary.txt")
    records.DatasetInfo(
        dataset="photos",
        splits={"train": records.SplitCounts(4, 4, 1)},
        stores=("features", "images"),
        encoder={"identity": encoder.identity, **encoder.describe()},
        feature_size=encoder.feature_size,
        tokenizer={},
        vocabulary_size=len(vocabulary),
        problems={},
        fingerprint="photos",
        tool_version="",
    ).save(directory)
    return directory


def test_the_encoder_is_trained_with_the_model(photos, tiny_data, tmp_path):
    changes = {"epochs": 2.0, "batch_size": 4, "encoder_learning_rate": 1e-3, "l2": 0.0}
    result = go(photos, tmp_path, encoder_weights="random", finetune_encoder=True, **changes)
    assert result.step == 2
    trained = run.Run.load(f"{tmp_path}/job", "latest")
    original = encoders.create("mobilenet_v2", "random").model.trainable_variables
    moved = trained.network.encoder_model.trainable_variables
    assert any(
        np.abs(a.numpy() - b.numpy()).max() > 1e-5 for a, b in zip(original, moved, strict=True)
    )
    assert trained.config.encoder["identity"].startswith("finetuned:mobilenet_v2")
    source = trained.source(photos, "train")
    [batch] = pipeline.with_pixels(pipeline.image_batches(source, 4), trained.network.encoder)
    assert trained.network.features(batch).shape == (4, 1280)
    with pytest.raises(ValueError, match="holds features only"):
        trained.source(tiny_data, "train")
    attached = attached_encoder(trained)
    features = attached.encode(batch["pixels"])
    np.testing.assert_allclose(features, trained.network.features(batch), rtol=1e-3, atol=1e-4)
    with pytest.raises(UserError, match="`encoder`: the run has trained its own"):
        attached_encoder(trained, "mobilenet_v2")


def test_training_on_cider_goes_on_from_a_run_and_raises_it(tiny_data, tiny_job, tmp_path):
    model = run.load_config(tiny_job).model
    changes = {
        "objective": "cider",
        "initial_run": tiny_job,
        "batch_size": 24,
        "candidates": 4,
        "l2": 0.0,
        "learning_rate": 0.01,
        "epochs": 12.0,
        "evaluate_epochs": 4.0,
    }
    result = go(tiny_data, tmp_path / "one", model=model, **changes)
    assert result.finished and result.step == 12 * 24 * 4 // 24
    rewards = curves.scalar(f"{tmp_path}/one/job/logs/train", "reward")
    assert rewards[-1][1] > rewards[0][1] + 0.2
    ciders = dict(curves.scalar(f"{tmp_path}/one/job/logs/val", "cider"))
    best = run.Run.load(f"{tmp_path}/one/job")
    assert ciders[best.step] == max(ciders.values())

    other = dataclasses.replace(model, multimodal=30)
    with pytest.raises(ValueError, match=r"`initial_run` .* model.multimodal is 24 there"):
        go(tiny_data, tmp_path / "three", model=other, **changes)
    with pytest.raises(ValueError, match="`batch_size` 18 must be a multiple of 4"):
        go(tiny_data, tmp_path / "four", model=model, **(changes | {"batch_size": 18}))


def test_a_run_that_begins_with_another_keeps_its_words(tiny_data, tiny_job, tmp_path):
    other = shutil.copytree(tiny_data, tmp_path / "other")
    text.Vocabulary.build(["a red dog"], 1).save(f"{other}/vocabulary.txt")
    info = records.DatasetInfo.load(tiny_data)
    dataclasses.replace(info, vocabulary_size=7, fingerprint="other").save(str(other))
    model = run.load_config(tiny_job).model
    go(str(other), tmp_path / "tuned", model=model, initial_run=tiny_job, epochs=1.0)
    tuned, before = run.Run.load(f"{tmp_path}/tuned/job"), run.Run.load(tiny_job)
    assert tuned.vocabulary.words == before.vocabulary.words

"""Evaluation as a user runs it, on a run that has learned the tiny dataset."""

import dataclasses
import json
import re
import shutil
import types
from pathlib import Path

import numpy as np
import programs
import pytest
import tensorflow as tf
import tiny

from mrnn_tf.data import pipeline, records
from mrnn_tf.metrics import captions, coco
from mrnn_tf.run import Network, Run
from mrnn_tf.split import Split
from trainer import loops
from trainer.evaluate import EvaluateOptions
from trainer.evaluate import evaluate as evaluate_run
from trainer.evaluation.captions import Decoding, caption_split, perplexity


def evaluate(folder, job_dir, data, *arguments, environment=None):
    given = ["--job_dir", job_dir, "--data", data, "--output", folder / "out", "--nometeor"]
    return programs.run(folder, "trainer.evaluate", *given, *arguments, environment=environment)


def read(folder, name):
    return json.loads((folder / "out" / name).read_text())


@pytest.fixture(scope="module")
def evaluated(tiny_job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    data = tiny.write(str(folder / "data"), pictures=True)
    done = evaluate(folder, tiny_job, data, "--beam=3", "--widths=1,3", "--n_best=4")
    assert done.code == 0, done.err
    assert "BLEU-4" in done.out and f"next: open {folder}/out/report.html" in done.out
    return folder


def test_every_image_has_its_captions(evaluated):
    results = coco.read_results(str(evaluated / "out" / "results.json"))
    assert sorted(results) == sorted(f"val-{i}.jpg" for i in range(12))
    for image in read(evaluated, "nbest.json"):
        assert len(set(image["captions"])) == len(image["captions"]) == 4
        assert len(image["log_probs"]) == 4 and max(image["log_probs"]) < 0


def test_the_run_says_what_the_pictures_show(evaluated):
    results = coco.read_results(str(evaluated / "out" / "results.json"))
    right = sum(
        f"{tiny.COLOURS[i % 3]} {tiny.THINGS[i % 4]}" in results[f"val-{i}.jpg"] for i in range(12)
    )
    assert right >= 10


def test_the_scores_are_those_of_the_files_beside_them(evaluated):
    references = coco.read_references(str(evaluated / "out" / "references.json"))
    results = coco.read_results(str(evaluated / "out" / "results.json"))
    expected = captions.evaluate(references, results, meteor=False).overall
    found = read(evaluated, "scores.json")["captions"]
    assert list(found) == ["greedy", "beam 1", "beam 3"]
    assert {key: found["beam 3"][key] for key in expected} == pytest.approx(expected)
    known = [each for i in range(3) for j in range(4) for each in tiny.captions_of(i, j)]
    known = captions.tokenize(known)
    novel = np.mean([caption not in known for caption in captions.tokenize(results.values())])
    assert found["beam 3"]["novel"] == pytest.approx(novel)


def test_the_perplexity_is_that_of_the_training(evaluated, tiny_job):
    scores = read(evaluated, "scores.json")
    checkpoint = tf.train.load_checkpoint(
        sorted(Path(tiny_job, "checkpoints").glob("model-*.index"))[-1].with_suffix("").as_posix()
    )
    best = checkpoint.get_tensor("progress/best_perplexity/.ATTRIBUTES/VARIABLE_VALUE")
    assert scores["captions"]["beam 3"]["perplexity"] == pytest.approx(float(best), rel=1e-5)
    assert scores["step"] == Run.load(tiny_job).step


def test_the_report_shows_pictures_and_evidence(evaluated):
    page = (evaluated / "out" / "report.html").read_text()
    _, *articles = page.split("<article")
    assert len(articles) == 12 and all(each.count("data:image/jpeg") == 1 for each in articles)
    evidence = {}
    for nats, word in re.findall(r'evidence ([+-][\d.]+) nats[^>]*">([a-z]+)<', page):
        evidence.setdefault(word, []).append(float(nats))
    things = [value for word in tiny.THINGS for value in evidence.get(word, [])]
    assert np.mean(things) > 0.5 > abs(np.mean(evidence["a"]))


def test_a_dataset_without_captions_is_captioned_only(tiny_job, tiny_data, tmp_path):
    data = tiny.write(str(tmp_path / "bare"), counts=(("test", 5),), captioned=False)
    done = evaluate(tmp_path, tiny_job, data, "--split=test", "--reference_data", tiny_data)
    assert done.code == 0, done.err
    assert "5 images captioned; the records hold no references" in done.out
    assert len(read(tmp_path, "results.json")) == 5
    assert read(tmp_path, "scores.json")["captions"] == {}
    assert not (tmp_path / "out" / "references.json").exists()
    assert (tmp_path / "out" / "report.html").read_text().count("<article") == 5


def test_another_dataset_uses_the_training_captions_of_its_reference(tiny_job, tiny_data, tmp_path):
    data = tiny.write(str(tmp_path / "other"), counts=(("test", 6),))
    done = evaluate(tmp_path, tiny_job, data, "--split=test", "--reference_data", tiny_data)
    assert done.code == 0, done.err
    results = coco.read_results(str(tmp_path / "out" / "results.json"))
    assert len(results) == 6 and all(results.values())
    scores = read(tmp_path, "scores.json")["captions"]["beam 5"]
    assert scores["novel"] == 0
    assert scores["bleu_4"] > 0.3


def test_features_that_are_not_finite_are_refused_by_name(tiny_job, tiny_data, tmp_path):
    data = tiny.write(str(tmp_path / "other"), counts=(("test", 6),))
    nan = np.full(tiny.FEATURE_SIZE, np.nan, np.float32)
    path = records.DatasetInfo.load(data).shards(data, "test")[0]
    rows = [bytes(row) for row in tf.data.TFRecordDataset(path).as_numpy_iterator()]
    with tf.io.TFRecordWriter(path) as writer:
        for row in [records.serialize("test-0.jpg", ["a red dog"], nan), *rows[1:]]:
            writer.write(row)
    records.DatasetInfo.load(data).save(data)
    done = evaluate(tmp_path, tiny_job, data, "--split=test", "--reference_data", tiny_data)
    assert done.code == 1
    assert "holds NaN or infinity in the features of test-0.jpg" in done.error
    assert not (tmp_path / "out").exists()


def test_evaluation_from_python_with_curves_from_elsewhere(tiny_job, tiny_data, tmp_path, capsys):
    logs = shutil.copytree(Path(tiny_job) / "logs", tmp_path / "logs")
    job_dir = shutil.copytree(
        tiny_job, tmp_path / "job", ignore=lambda *_: ["logs"], dirs_exist_ok=True
    )
    given = {"job_dir": job_dir, "data": tiny_data, "tasks": ("captions",), "meteor": False}
    options = EvaluateOptions(**given, beam=2, widths=(), n_best=2, tensorboard_dir=logs)
    scores = evaluate_run(options)
    written = json.loads((job_dir / "report" / "scores.json").read_text())
    expected = {"details.json", "nbest.json", "references.json", "results.json"}
    assert {*written.pop("checksums")} == expected
    assert written.pop("checksum") and written == json.loads(json.dumps(scores))
    assert list(scores["captions"]) == ["greedy", "beam 2"]
    assert f"next: open {job_dir}/report/report.html" in capsys.readouterr().out
    assert "validation perplexity" in (job_dir / "report" / "report.html").read_text()
    evaluate_run(dataclasses.replace(options, tensorboard_dir=None))
    assert "validation perplexity" not in (job_dir / "report" / "report.html").read_text()
    arguments = ["--tasks=captions", "--widths=2", "--beam=2", "--n_best=2"]
    environment = {"AIP_TENSORBOARD_LOG_DIR": str(logs)}
    done = evaluate(tmp_path, job_dir, tiny_data, *arguments, environment=environment)
    assert done.code == 0, done.err
    assert "validation perplexity" in (tmp_path / "out" / "report.html").read_text()


def test_the_perplexity_is_that_of_the_training_loop_s_evaluator(tiny_job, tiny_data):
    run = Run.load(tiny_job)
    source = run.source(tiny_data, "val")
    expected = loops.Evaluator(run.network, pipeline.evaluation_batches(source, 5)).evaluate(
        tf.constant(-1)
    )
    measured = perplexity(run, Split.read(run, tiny_data, "val"), 5)
    assert measured == pytest.approx({name: expected[name] for name in measured}, rel=1e-5)
    assert len(measured) == 2


def test_a_fine_tuned_encoder_is_not_asked_again(tiny_job, tiny_data):
    run = Run.load(tiny_job)
    split = Split.read(run, tiny_data, "val")
    model = types.SimpleNamespace(weights=[])  # it cannot encode
    encoder = types.SimpleNamespace(model=model)
    tuned = dataclasses.replace(run, network=Network(run.network.model, encoder))
    assert perplexity(tuned, split) == perplexity(run, split)
    decoding = Decoding(beam=2, n_best=3, widths=(1,))
    captioned = caption_split(tuned, split, decoding, batch_size=5)
    assert captioned.best == caption_split(run, split, decoding).best
    assert list(captioned.best) == ["greedy", "beam 1", "beam 2"]
    assert list(captioned.n_best) == list(captioned.best["greedy"]) == list(split.ids)


def test_missing_captions_are_left_out(tiny_job, tiny_data):
    run = Run.load(tiny_job)
    split = Split.read(run, tiny_data, "val")
    split.features[0] = 0.0  # stands for a picture that could not be decoded
    captioned = caption_split(run, split, Decoding(beam=2, n_best=3, widths=()))
    assert captioned.best["beam 2"][split.ids[0]] == ""
    assert not captioned.n_best[split.ids[0]].captions and not captioned.chosen[split.ids[0]]
    assert len(captioned.chosen[split.ids[1]]) == 2


def test_parameters_are_what_is_trained(evaluated, tiny_job):
    trained = Run.load(tiny_job).network.model.trainable_variables
    count = sum(int(np.prod(variable.shape)) for variable in trained)
    assert read(evaluated, "scores.json")["model"].endswith(f", {count:,} parameters")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split=test"], "has no split 'test'"),
        (["--widths=1,x"], "--widths must be a list of int; got 1,x"),
        (["--job_dir=/nowhere"], "/nowhere holds no config.json"),
        (["--data=/nowhere"], "/nowhere holds no dataset.json"),
        (["--widths=0"], "--widths must be a tuple of int, at least 1"),
        (["--beam=0"], "--beam must be of type int, at least 1"),
        (["--tasks="], "--tasks must be of captions, rerank, retrieval"),
        (["--normaliser=null"], "normaliser"),
    ],
)
def test_bad_input_is_one_sentence(tiny_job, tiny_data, tmp_path, arguments, message):
    done = evaluate(tmp_path, tiny_job, tiny_data, *arguments)
    assert done.code == 1
    assert message in done.error
    assert not (tmp_path / "out").exists()

"""Ranks of a whole split, against those of the full matrix."""

import json

import numpy as np
import programs
import pytest
import tensorflow as tf
import tiny

from mrnn_tf.metrics import ranking
from mrnn_tf.retrieval import marginal, sentences
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.run import Run
from trainer import pool, retrieval

SETTINGS = retrieval.Settings(sample=11, seed=3)


@pytest.fixture(scope="module")
def run(tiny_job):
    return Run.load(tiny_job)


@pytest.fixture(scope="module")
def evaluated(run, tiny_data, tmp_path_factory):
    work = str(tmp_path_factory.mktemp("ranks") / "work")
    found = retrieval.evaluate(run, run.source(tiny_data, "val"), tiny_data, SETTINGS, work)
    assert not tf.io.gfile.exists(work)
    return found


@pytest.fixture(scope="module")
def full(run, tiny_data):
    """The pool, all of its log P(s|I), and those by the sampled images."""
    scorer = Scorer(run.network.model)
    everything = pool.load(run, scorer, run.source(tiny_data, "val"))
    sample = pool.sampled_images(run, scorer, tiny_data, SETTINGS.sample, SETTINGS.seed)
    read = sentences.read(run.network.model, everything.words)
    return everything, scorer.matrix(read, everything.images), scorer.matrix(read, sample), sample


def first_ranks(scores, owner):
    """Of every image the rank of the first of its own sentences."""
    best = [scores[owner == i, i].max() for i in range(scores.shape[1])]
    return 1 + (scores > np.array(best) + 1e-4).sum(axis=0)


def test_images_are_ranked_as_by_the_full_matrix(evaluated, full):
    everything, scores, _, _ = full
    own = scores[np.arange(len(scores)), everything.owner]
    ranks = 1 + (scores > own[:, None] + 1e-4).sum(axis=1)
    assert evaluated[0].scores["text to image"] == ranking.summary(ranks)
    curve = ranking.match_curve(ranks[:, None], [scores.shape[1]] * len(ranks))
    assert evaluated[0].curves["text to image"] == curve


def test_sentences_are_ranked_as_by_the_full_matrix_with_every_normaliser(run, evaluated, full):
    everything, scores, sampled, sample = full
    read = sentences.read(run.network.model, everything.words)
    at_mean = Scorer(run.network.model).matrix(read, sample.mean(axis=0)[None])
    expected = {
        "sample": marginal.log_mean_exp(sampled),
        "mean": at_mean[:, 0],
        "none": np.zeros(len(scores)),
    }
    found = evaluated[0].scores
    assert list(found)[1] == "image to text, sample" and len(found) == 4
    for name, norm in expected.items():
        ranks = first_ranks(scores - norm[:, None], everything.owner)
        assert found[f"image to text, {name}"] == ranking.summary(ranks), name
    assert found["image to text, sample"]["r_5"] >= 60


def test_matches_are_found_among_the_sentences_of_the_nearest_images(evaluated, full):
    everything, scores, sampled, _ = full
    normalised = scores - marginal.log_mean_exp(sampled)[:, None]
    ranks = [1 + (normalised[:, i] > normalised[everything.owner == i, i][:, None] + 1e-4).sum(1)
             for i in range(12)]  # fmt: skip
    curve = ranking.match_curve(ranks, [36] * 12)  # all images are near where there are twelve
    np.testing.assert_allclose(evaluated[0].curves["image to text"], curve, atol=1e-9)


def test_few_softmax_rows_are_needed(evaluated):
    assert 0 < evaluated[0].rows < 0.75


def test_some_searches_are_shown(evaluated, full):
    searches = evaluated[1]
    assert len(searches.images) == 6 and len(searches.sentences) >= 2
    query, found = searches.images[0]
    assert query == full[0].texts[0] and len(found) == 3
    assert found == sorted(found, key=lambda item: -item[1])


def test_a_stopped_evaluation_goes_on(run, tiny_data, tmp_path, monkeypatch, evaluated):
    monkeypatch.setattr(retrieval, "_BLOCK", 9)
    work = str(tmp_path / "work")
    arguments = (run, run.source(tiny_data, "val"), tiny_data, SETTINGS, work)
    calls = []
    real = retrieval.exact.at_least

    def stops(*given):
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(retrieval.exact, "at_least", stops)
    with pytest.raises(KeyboardInterrupt):
        retrieval.evaluate(*arguments)
    matrices = []
    monkeypatch.setattr(Scorer, "matrix", lambda *given: matrices.append(given))
    monkeypatch.setattr(retrieval.marginal, "log_marginals", lambda *given: matrices.append(given))
    again, _ = retrieval.evaluate(*arguments)
    assert again.scores == evaluated[0].scores
    assert len(calls) == 5 and not matrices  # two blocks were saved, and all of the first pass


def test_a_null_image_is_a_normaliser_where_one_was_learned(run, tiny_data, tmp_path):
    settings = retrieval.Settings(normaliser="null", sample=3)
    with pytest.raises(ValueError, match="--normaliser null: the run was trained without"):
        retrieval.evaluate(
            run, run.source(tiny_data, "val"), tiny_data, settings, str(tmp_path / "work")
        )


def evaluate(folder, job_dir, data, *arguments):
    given = ["--job_dir", job_dir, "--data", data, "--output", folder / "out", "--nometeor"]
    return programs.run(folder, "trainer.evaluate", *given, *arguments)


def test_the_program_ranks_and_shows(tiny_job, tiny_data, tmp_path):
    arguments = ["--tasks=retrieval", "--sample=5", "--images=7"]
    done = evaluate(tmp_path, tiny_job, tiny_data, *arguments)
    assert done.code == 0, done.err
    assert "text to image" in done.out and "BLEU" not in done.out
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())["retrieval"]
    assert scores["text to image"]["queries"] == 21
    assert scores["image to text, sample"]["queries"] == 7
    page = (tmp_path / "out" / "report.html").read_text()
    assert "R@10" in page and "percent retrieved" in page and "Sentences of an image" in page
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["report.html", "scores.json"]


def test_what_cannot_be_ranked_is_refused(tiny_job, tmp_path):
    bare = tiny.write(str(tmp_path / "bare"), (("val", 3),), captioned=False)
    done = evaluate(tmp_path, tiny_job, bare, "--tasks=retrieval")
    assert done.code == 1 and "needs training images" in done.error
    assert "--reference_data" in done.error
    done = evaluate(tmp_path, tiny_job, bare, "--tasks=search")
    assert done.code == 1 and "--tasks must be of captions, rerank, retrieval" in done.error

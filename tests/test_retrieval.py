"""Ranks of a whole split, against those of the full matrix."""

import dataclasses
import json

import numpy as np
import programs
import pytest
import tensorflow as tf
import tiny

from mrnn_tf.metrics import ranking
from mrnn_tf.retrieval import marginal
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.run import Run, build
from mrnn_tf.split import Split
from trainer.evaluation import retrieval
from trainer.evaluation.retrieval import Pool, RetrievalSettings, rank_split

SETTINGS = RetrievalSettings(sample=11, sample_seed=3)


@pytest.fixture(scope="module")
def run(tiny_job):
    return Run.load(tiny_job)


@pytest.fixture(scope="module")
def splits(run, tiny_data):
    return Split.read(run, tiny_data, "val"), Split.read(run, tiny_data, "train").features


@pytest.fixture(scope="module")
def evaluated(run, splits, tmp_path_factory):
    work = str(tmp_path_factory.mktemp("ranks") / "work")
    ranking = rank_split(run, *splits, SETTINGS, work)
    assert not tf.io.gfile.exists(work)
    return ranking


@pytest.fixture(scope="module")
def full(run, splits):
    """The pool, all of its log P(s|I), and those by the sampled images."""
    scorer = Scorer(run.network.model)
    split, training = splits
    everything = Pool.of(run, scorer, split)
    rows = marginal.sample_rows(len(training), SETTINGS.sample, SETTINGS.sample_seed)
    sample = scorer.project(training[rows])
    read = scorer.read(everything.words)
    return everything, scorer.matrix(read, everything.images), scorer.matrix(read, sample), sample


def first_ranks(scores, owner):
    """Of every image the rank of the first of its own sentences."""
    best = [scores[owner == i, i].max() for i in range(scores.shape[1])]
    return 1 + (scores > np.array(best) + 1e-4).sum(axis=0)


def test_images_are_ranked_as_by_the_full_matrix(evaluated, full):
    everything, scores, _, _ = full
    own = scores[np.arange(len(scores)), everything.owner]
    ranks = 1 + (scores > own[:, None] + 1e-4).sum(axis=1)
    assert evaluated.figures["text to image"] == ranking.summary(ranks)
    curve = ranking.match_curve(ranks[:, None], [scores.shape[1]] * len(ranks))
    assert evaluated.curves["text to image"] == curve


def test_sentences_are_ranked_as_by_the_full_matrix_with_every_normaliser(run, evaluated, full):
    everything, scores, sampled, sample = full
    scorer = Scorer(run.network.model)
    at_mean = scorer.matrix(scorer.read(everything.words), sample.mean(axis=0)[None])
    words = np.count_nonzero(everything.words, axis=1)[:, None]
    normalised = {
        "sample": scores - marginal.log_mean_exp(sampled)[:, None],
        "mean": scores - at_mean,
        "none": scores,
        # The perplexity of a sentence to that with the mean image, by which Kiros et al. rank.
        "kiros": np.exp(-at_mean / words) / np.exp(-scores / words),
    }
    found = evaluated.figures
    assert list(found)[1] == "image to text, sample" and len(found) == 5
    for name, values in normalised.items():
        ranks = first_ranks(values, everything.owner)
        assert found[f"image to text, {name}"] == ranking.summary(ranks), name
        np.testing.assert_array_equal(evaluated.ranks[f"image to text, {name}"], ranks)
    assert found["image to text, sample"]["r_5"] >= 60


def test_matches_are_found_among_the_sentences_of_the_nearest_images(evaluated, full):
    everything, scores, sampled, _ = full
    normalised = scores - marginal.log_mean_exp(sampled)[:, None]
    ranks = [1 + (normalised[:, i] > normalised[everything.owner == i, i][:, None] + 1e-4).sum(1)
             for i in range(12)]  # fmt: skip
    curve = ranking.match_curve(ranks, [36] * 12)  # all images are near where there are twelve
    np.testing.assert_allclose(evaluated.curves["image to text"], curve, atol=1e-9)


def test_the_shortlist_of_iapr_tc_12_is_the_hundred_nearest_images(run, tiny_data, tmp_path):
    """The protocol of Kiros et al. on a dataset with one sentence an image, and over a hundred."""
    data = tiny.write(str(tmp_path / "data"), (("test", 130),), captions_each=1)
    split = Split.read(run, data, "test")
    training = Split.read(run, tiny_data, "train").features
    found = rank_split(run, split, training, SETTINGS, str(tmp_path / "work"))
    scorer = Scorer(run.network.model)
    everything = Pool.of(run, scorer, split)
    rows = marginal.sample_rows(len(training), SETTINGS.sample, SETTINGS.sample_seed)
    read = scorer.read(everything.words)
    sampled = scorer.matrix(read, scorer.project(training[rows]))
    scores = scorer.matrix(read, everything.images) - marginal.log_mean_exp(sampled)[:, None]
    ranks = []
    for image, features in enumerate(split.features):
        distances = np.linalg.norm(split.features - features, axis=1)
        near = np.argsort(distances, kind="stable")[:100]
        assert image in near
        ranks.append([1 + (scores[near, image] > scores[image, image] + 1e-4).sum()])
    expected = ranking.match_curve(np.array(ranks), [100] * 130)
    np.testing.assert_allclose(found.curves["image to text"], expected, atol=1e-9)
    assert dict(found.curves["image to text"])[100.0] == 1.0


def test_few_softmax_rows_are_needed(evaluated):
    assert 0 < evaluated.softmax_share < 0.75


def test_some_searches_are_shown(evaluated, full):
    searches = evaluated.searches
    assert len(searches["text to image"]) == 6 and len(searches["image to text"]) >= 2
    query, found = searches["text to image"][0]
    assert query == full[0].texts[0] and len(found) == 3
    assert found == sorted(found, key=lambda item: -item[1])


def test_a_stopped_evaluation_goes_on(run, splits, tmp_path, monkeypatch, evaluated):
    monkeypatch.setattr(retrieval, "_BLOCK", 9)
    arguments = (run, *splits, SETTINGS, str(tmp_path / "work"))
    calls = []
    real = Scorer.at_least

    def stops(self, *given):
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real.__get__(self, Scorer)(*given)

    monkeypatch.setattr(Scorer, "at_least", stops)
    with pytest.raises(KeyboardInterrupt):
        rank_split(*arguments)
    marginals = []
    monkeypatch.setattr(retrieval.search, "log_marginals", lambda *given: marginals.append(given))
    again = rank_split(*arguments)
    assert again.figures == evaluated.figures
    assert len(calls) == 5 and not marginals  # two blocks were saved, and all of the first pass


def test_nan_anywhere_is_refused_and_not_ranked(run, splits, tmp_path):
    """One NaN makes every comparison false: it would report a recall of 100 %."""
    split, training = splits
    work = str(tmp_path / "work")
    bad = np.array(training)
    bad[marginal.sample_rows(len(bad), 5, 0)[2], 3] = np.nan
    few = RetrievalSettings(sample=5)
    with pytest.raises(ValueError, match="`training_features` must be finite"):
        rank_split(run, split, bad, few, work)
    for value in (np.nan, 0.0):
        features = np.array(split.features)
        features[4] = value
        bad_split = dataclasses.replace(split, features=features)
        with pytest.raises(ValueError, match=rf"The features of {split.ids[4]} are zero or not"):
            rank_split(run, bad_split, training, few, work)
    broken = Run(run.config, run.vocabulary, build(run.config), 1)
    broken.network.model.embedding_1.embeddings.assign(
        broken.network.model.embedding_1.embeddings * np.nan
    )
    with pytest.raises(ValueError, match="is not finite"):
        rank_split(broken, split, training, few, work)


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
    for curve in (scores["matches"][way] for way in ("text to image", "image to text")):
        assert curve[0] == [0.0, 0.0] and curve[-1] == [100.0, 1.0]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "R@10" in page and "percent retrieved" in page and "Sentences of an image" in page
    names = ["details.json", "report.html", "scores.json"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == names
    details = json.loads((tmp_path / "out" / "details.json").read_text())["retrieval"]
    assert len(details["ranks"]["image to text, kiros"]) == 7


def test_what_cannot_be_ranked_is_refused(tiny_job, tmp_path):
    bare = tiny.write(str(tmp_path / "bare"), (("val", 3),), captioned=False)
    done = evaluate(tmp_path, tiny_job, bare, "--tasks=retrieval")
    assert done.code == 1 and "needs training images" in done.error
    assert "--reference_data" in done.error
    done = evaluate(tmp_path, tiny_job, bare, "--tasks=search")
    assert done.code == 1 and "--tasks must be of captions, rerank, retrieval" in done.error

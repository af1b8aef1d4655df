import numpy as np
import pytest
import searching

from mrnn_tf import schema
from mrnn_tf.retrieval import marginal, sentences
from mrnn_tf.retrieval.scoring import Scorer


@pytest.fixture(scope="module")
def searched():
    scorer, read, images, expected = searching.searched(sentence_count=12, image_count=60)
    return scorer, read, scorer.expand(read, images.mean(axis=0)), images, expected


def plain(expected):
    """The log of the mean of P(s|I) over all images."""
    return np.log(np.exp(expected).mean(axis=1))


def marginals_of(scorer, words, images, *scored):
    expansion = scorer.expand(scorer.read(words), images.mean(axis=0))
    return marginal.log_marginals(scorer, expansion, images, *scored)


def test_the_marginal_is_the_mean_probability_over_the_sample(searched):
    scorer, _, expansion, images, expected = searched
    found = marginal.log_marginals(scorer, expansion, images, len(images))
    np.testing.assert_allclose(found, plain(expected), atol=1e-4)
    assert found.dtype == np.float64
    few = images[:20]  # fewer than are scored
    assert len(few) < marginal.SCORED
    found = marginal.log_marginals(scorer, expansion, few)
    np.testing.assert_allclose(found, plain(expected[:, :20]), atol=1e-4)
    found = marginal.log_marginals(scorer, expansion, images[:1])
    np.testing.assert_allclose(found, expected[:, 0], atol=1e-4)
    with pytest.raises(ValueError, match="`sample` must hold an image"):
        marginal.log_marginals(scorer, expansion, images[:0])
    bad = images.copy()
    bad[5, 1] = np.nan
    with pytest.raises(ValueError, match=r"`sample` must hold .* no NaN"):
        marginal.log_marginals(scorer, expansion, bad)
    broken = expansion._replace(vectors=expansion.vectors * np.nan)
    with pytest.raises(ValueError, match="not finite"):
        marginal.log_marginals(scorer, broken, images)


def test_few_images_stand_for_all():
    scorer = Scorer(searching.network())
    images = 0.2 * scorer.project(searching.features(400))  # a random network is far from linear
    read = scorer.read(sentences.pad(searching.random_sentences(80)))
    expected = scorer.matrix(read, images).astype(np.float64)
    expansion = scorer.expand(read, images.mean(axis=0))
    errors = marginal.log_marginals(scorer, expansion, images, 24) - plain(expected)
    likeliest = np.argsort(-expansion.vectors.numpy() @ images.T, axis=1)[:, :24]
    scored = np.exp(np.take_along_axis(expected, likeliest, axis=1))
    of_likeliest = np.log(scored.sum(axis=1) / len(images)) - plain(expected)
    assert abs(errors.mean()) < 0.05  # no bias
    assert np.abs(errors).mean() < 0.5 * np.abs(of_likeliest).mean()


@pytest.mark.parametrize("count", [1, 2, 7, 31, 40])
def test_images_are_taken_by_their_probabilities(count):
    estimates = np.random.default_rng(0).normal(0, 3, (200, 40))
    estimates[0], estimates[1] = 0.0, -1e5 * np.arange(40)  # all alike; one above all others
    images, probabilities = marginal._take(estimates, count)
    assert images.shape == probabilities.shape == (200, count)
    assert all(len({*row}) == count for row in images)
    is_certain = probabilities[:, 0] == 1
    assert (images[:, 0] == estimates.argmax(axis=1))[is_certain].all()
    assert (probabilities > 0).all() and (probabilities <= 1 + 1e-9).all()
    # The weights count all images: of a probability that follows the estimate nothing is lost.
    log_probs = marginal._SLOPE * estimates[2:]
    taken = np.take_along_axis(log_probs, images[2:], axis=1) - np.log(probabilities[2:])
    sums = np.log(np.exp(log_probs).sum(axis=1))
    np.testing.assert_allclose(np.log(np.exp(taken).sum(axis=1)), sums, atol=1e-9)


def test_sentences_that_begin_alike_share_softmax_rows(searched, monkeypatch):
    scorer, *_, images, _ = searched
    ids = [[4, 5, 6], [4, 5, 6], [4, 5, 7, 8], [], [4, 5]]
    alone = [marginals_of(scorer, sentences.pad([sentence]), images, 10) for sentence in ids]
    counts, shared = [], scorer.shared

    def counting(read, places, first, images, columns):
        counts.append((len(places), len(columns)))
        return shared(read, places, first, images, columns)

    monkeypatch.setattr(scorer, "shared", counting)
    found = marginals_of(scorer, sentences.pad(ids), images, len(images))
    # Before nothing, 4, 4 5, 4 5 6, 4 5 7 and 4 5 7 8 stand six rows of each image.
    assert counts == [(17 * len(images), 6 * len(images))]
    found = marginals_of(scorer, sentences.pad(ids), images, 10)
    np.testing.assert_allclose(found, np.concatenate(alone), atol=1e-5)
    assert found[0] == found[1]


def test_prefixes_are_equal_where_the_words_before_are():
    words = sentences.pad([[4, 5, 6], [4, 5, 7], [5, 5, 6], []])
    numbers = sentences.prefixes(words)
    before = [
        [tuple(row[:t]) for t in range(len(row))] for row in np.where(words, words, schema.PAD_ID)
    ]
    flat = [prefix for row in before for prefix in row]
    same = np.array([[one == other for other in flat] for one in flat])
    assert np.array_equal(numbers.ravel()[:, None] == numbers.ravel(), same)


def test_the_mean_survives_what_float32_cannot_hold():
    assert marginal.log_mean_exp([[-1000.0, -1000.0]]) == pytest.approx(-1000.0)
    assert marginal.log_mean_exp([[0.0, -1e9]]) == pytest.approx(np.log(0.5))


def test_samples_repeat_by_their_seed_and_hold_no_image_twice():
    chosen = marginal.sample_rows(100, 20, seed=3)
    assert chosen.tolist() == marginal.sample_rows(100, 20, seed=3).tolist()
    assert chosen.tolist() != marginal.sample_rows(100, 20, seed=4).tolist()
    assert len(set(chosen.tolist())) == 20 and (np.diff(chosen) > 0).all()
    assert marginal.sample_rows(5, 20, seed=0).tolist() == [0, 1, 2, 3, 4]

import numpy as np
import pytest
import searching

from mrnn_tf import schema
from mrnn_tf.retrieval import marginal, sentences
from mrnn_tf.retrieval.expansion import expand
from mrnn_tf.retrieval.search import SentenceTable, search_images, search_sentences, shortlist_size

K = 5


@pytest.fixture(scope="module")
def pool():
    scorer, read, images, expected = searching.searched(sentence_count=60, image_count=50)
    return scorer, read, images, expected, images.mean(axis=0)


@pytest.fixture(scope="module")
def table(pool):
    scorer, read, images, _, mean = pool
    expansion = expand(scorer, read, mean)
    marginals = marginal.log_marginals(scorer, read, expansion, images[:7])
    return SentenceTable(read.words, expansion.vectors, expansion.log_probs.sum(1), marginals)


def best(scores):
    return np.argsort(-scores, axis=1, kind="stable")[:, :K], -np.sort(-scores, axis=1)[:, :K]


@pytest.mark.parametrize("shortlist", [None, 50])
def test_images_are_those_of_the_highest_scores(pool, shortlist):
    scorer, read, images, expected, mean = pool
    found = search_images(scorer, read.words, images, mean, K, shortlist)
    asked = (read.words > schema.UNKNOWN_ID).any(axis=1)
    rows, scores = best(expected[asked])
    np.testing.assert_array_equal(found.rows[asked], rows)
    np.testing.assert_allclose(found.scores[asked], scores, atol=1e-4)


@pytest.mark.parametrize("shortlist", [None, 60])
def test_sentences_are_those_of_the_highest_normalised_scores(pool, table, shortlist):
    scorer, _, images, expected, mean = pool
    found = search_sentences(scorer, table, images, mean, K, shortlist)
    rows, scores = best((expected - table.marginals[:, np.newaxis]).T)
    np.testing.assert_allclose(found.scores, scores, atol=1e-4)
    assert (found.rows == rows).mean() > 0.95  # the rest are equal sentences


def test_a_short_list_gives_exact_scores_of_what_it_holds(pool):
    scorer, read, images, expected, mean = pool
    found = search_images(scorer, read.words[:20], images, mean, K, 8)
    own = np.take_along_axis(expected[:20], found.rows, axis=1)
    np.testing.assert_allclose(found.scores, own, atol=1e-4)
    assert (np.diff(found.scores, axis=1) <= 0).all()


def test_of_a_shortlist_the_best_are_found_with_fewer_softmax_rows(pool):
    scorer, read, images, expected, mean = pool
    asked = (read.words > schema.UNKNOWN_ID).any(axis=1)
    near = expand(scorer, read, mean).vectors @ (images - mean).T
    listed = np.argsort(-near, axis=1)[:, :30]
    rest = np.ones(expected.shape, bool)
    np.put_along_axis(rest, listed, False, axis=1)
    rows, scores = best(np.where(rest, -np.inf, expected)[asked])
    scorer.rows = 0
    found = search_images(scorer, read.words[asked], images, mean, K, 30)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_allclose(found.scores, scores, atol=1e-4)
    assert scorer.rows < 30 * np.count_nonzero(read.words[asked])


def test_a_shortlist_grows_with_the_items():
    assert [shortlist_size(count) for count in (0, 1_000, 10_000, 100_000)] == [200, 200, 400, 1265]


def test_a_query_without_a_known_word_finds_nothing(pool):
    scorer, _, images, _, mean = pool
    words = sentences.pad([[], [schema.UNKNOWN_ID, schema.UNKNOWN_ID], [schema.UNKNOWN_ID, 7]])
    found = search_images(scorer, words, images, mean, K)
    assert (found.rows[:2] == -1).all() and (found.scores[:2] == -np.inf).all()
    assert (found.rows[2] >= 0).all()


@pytest.mark.parametrize("shortlist", [None, 10])
def test_where_there_are_fewer_than_k_the_rest_is_missing(pool, table, shortlist):
    scorer, read, images, _, mean = pool
    found = search_images(scorer, read.words[:2], images[:3], mean, K, shortlist)
    assert sorted(found.rows[0]) == [-1, -1, 0, 1, 2]
    assert (found.scores[:, 3:] == -np.inf).all()
    few = SentenceTable(*(each[:2] for each in table))
    found = search_sentences(scorer, few, images[:1], mean, K, shortlist)
    assert sorted(found.rows[0]) == [-1, -1, -1, 0, 1]
    nothing = search_images(scorer, read.words[:2], images[:0], mean, K, shortlist)
    assert (nothing.rows == -1).all()

import numpy as np
import pytest
import searching
import tensorflow as tf

from mrnn_tf import schema
from mrnn_tf.retrieval import marginal, search, sentences
from mrnn_tf.retrieval.centres import Centres
from mrnn_tf.retrieval.search import Searcher, SentenceTable, shortlist_size

K = 5


@pytest.fixture(scope="module")
def pool():
    scorer, read, images, expected = searching.searched(sentence_count=60, image_count=50)
    return scorer, read.words.numpy(), images, expected


@pytest.fixture(scope="module")
def table(pool):
    scorer, words, images, _ = pool
    expansion = scorer.expand(scorer.read(words), images.mean(axis=0))
    marginals = marginal.log_marginals(scorer, expansion, images[:7])
    at_mean = expansion.log_probs.numpy().sum(axis=1)
    return SentenceTable(words, expansion.vectors.numpy(), at_mean, marginals)


@pytest.fixture(scope="module")
def searcher(pool, table):
    scorer, _, images, _ = pool
    return Searcher(scorer, Centres.of(images, count=3), images, table)


def numpy(hits):
    return hits.rows.numpy(), hits.scores.numpy()


def best(scores):
    return np.argsort(-scores, axis=1, kind="stable")[:, :K], -np.sort(-scores, axis=1)[:, :K]


@pytest.mark.parametrize("shortlist", [None, 50])
def test_images_are_those_of_the_highest_scores(pool, searcher, shortlist):
    _, words, _, expected = pool
    rows, scores = numpy(searcher.search_images(words, K, shortlist))
    asked = (words > schema.UNKNOWN_ID).any(axis=1)
    expected_rows, expected_scores = best(expected[asked])
    np.testing.assert_array_equal(rows[asked], expected_rows)
    np.testing.assert_allclose(scores[asked], expected_scores, atol=1e-4)


@pytest.mark.parametrize("count", [0, 7, 8, 9, 30])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
def test_products_with_vectors_of_any_type(monkeypatch, count, dtype):
    monkeypatch.setattr(search, "_CAST_AT_ONCE", 8)
    rng = np.random.default_rng(0)
    queries = rng.random((3, 5), np.float32)
    vectors = tf.Variable(tf.cast(rng.random((count, 5)), dtype))
    expected = queries @ tf.cast(vectors, tf.float32).numpy().T
    products = tf.function(search._products)(queries, vectors)
    np.testing.assert_allclose(products, expected, rtol=1e-5)


def test_vectors_of_16_bits_find_the_same(pool, table, searcher):
    scorer, _, images, _ = pool
    small = table._replace(vectors=table.vectors.astype(tf.bfloat16.as_numpy_dtype))
    smaller = Searcher(scorer, Centres.of(images), images, small)
    assert smaller.arrays["vectors"].dtype == tf.bfloat16
    rows, scores = numpy(smaller.search_sentences(images, K, 20))
    expected_rows, expected_scores = numpy(searcher.search_sentences(images, K, 20))
    assert (rows == expected_rows).mean() > 0.95
    np.testing.assert_allclose(scores, expected_scores, atol=1e-1)


@pytest.mark.parametrize("shortlist", [None, 60])
def test_sentences_are_those_of_the_highest_normalised_scores(pool, table, searcher, shortlist):
    _, _, images, expected = pool
    rows, scores = numpy(searcher.search_sentences(images, K, shortlist))
    expected_rows, expected_scores = best((expected - table.marginals[:, np.newaxis]).T)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-4)
    assert (rows == expected_rows).mean() > 0.95  # the rest are equal sentences


def test_a_short_list_gives_exact_scores_of_what_it_holds(pool, searcher):
    _, words, _, expected = pool
    rows, scores = numpy(searcher.search_images(words[:20], K, 8))
    own = np.take_along_axis(expected[:20], rows, axis=1)
    np.testing.assert_allclose(scores, own, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 0).all()


def test_of_a_shortlist_the_best_are_found_with_fewer_softmax_rows(pool, searcher):
    scorer, words, images, expected = pool
    asked = (words > schema.UNKNOWN_ID).any(axis=1)
    centres = Centres.of(images, count=3)
    nearest = np.linalg.norm(images - centres.points[:, np.newaxis], axis=-1).argmin(axis=0)
    near = np.empty(expected.shape)
    for centre, point in enumerate(centres.points):
        at = scorer.expand(scorer.read(words), point)
        told = at.vectors.numpy() @ (images - point).T + at.log_probs.numpy().sum(1, keepdims=True)
        near[:, nearest == centre] = told[:, nearest == centre]
    listed = np.argsort(-near, axis=1)[:, :30]
    rest = np.ones(expected.shape, bool)
    np.put_along_axis(rest, listed, False, axis=1)
    expected_rows, expected_scores = best(np.where(rest, -np.inf, expected)[asked])
    hits = searcher.search_images(words[asked], K, 30)
    np.testing.assert_array_equal(hits.rows, expected_rows)
    np.testing.assert_allclose(hits.scores, expected_scores, atol=1e-4)
    assert hits.softmax_rows < 30 * np.count_nonzero(words[asked])


def test_a_traced_search_is_the_same_search(pool, searcher):
    """Inside another function, as in a servable, and with any number of queries."""
    _, words, images, _ = pool
    for method, queries in ((searcher.search_images, words), (searcher.search_sentences, images)):
        spec = tf.TensorSpec([None, None], queries.dtype)
        traced = tf.function(lambda some, method=method: method(some, K), input_signature=[spec])
        whole = method(queries, K)
        for count in (0, 1, 20):
            hits = traced(queries[:count])
            np.testing.assert_array_equal(hits.rows, whole.rows[:count])
            np.testing.assert_allclose(hits.scores, whole.scores[:count], rtol=1e-5)


def test_a_shortlist_grows_with_the_items():
    assert [shortlist_size(count) for count in (0, 1_000, 10_000, 100_000)] == [200, 200, 400, 1265]
    sizes = [search.image_shortlist(count) for count in (0, 10_000, 100_000, 1_000_000)]
    assert sizes == [200, 200, 791, 6280]


def test_a_query_without_a_known_word_finds_nothing(searcher):
    words = sentences.pad([[], [schema.UNKNOWN_ID, schema.UNKNOWN_ID], [schema.UNKNOWN_ID, 7]])
    rows, scores = numpy(searcher.search_images(words, K))
    assert (rows[:2] == -1).all() and (scores[:2] == -np.inf).all()
    assert (rows[2] >= 0).all()


@pytest.mark.parametrize("shortlist", [None, 10])
def test_a_query_that_is_not_finite_finds_nothing_and_harms_no_other(pool, searcher, shortlist):
    images = pool[2][:3].copy()
    images[1, 2] = np.nan
    rows, scores = numpy(searcher.search_sentences(images, K, shortlist))
    assert (rows[1] == -1).all() and (scores[1] == -np.inf).all()
    alone = searcher.search_sentences(images[::2], K, shortlist)
    np.testing.assert_array_equal(rows[::2], alone.rows)


@pytest.mark.parametrize(
    "name", ["mean", "points", "images", "vectors", "at_mean", "marginals", "kernel"]
)
def test_nan_in_what_is_searched_is_refused(pool, table, name, monkeypatch):
    scorer, _, images, _ = pool
    given = {**Centres.of(images)._asdict(), "images": images, **table._asdict()}
    if name == "kernel":
        scorer = searching.Scorer(searching.network())
        scorer.readout.kernel[0, 0].assign(np.nan)
    else:
        given[name] = given[name].copy()
        given[name].flat[-1] = np.nan
    centres = Centres(*(given.pop(part) for part in Centres._fields))
    images = given.pop("images")
    with pytest.raises(ValueError, match=f"`{name}` must be finite"):
        Searcher(scorer, centres, images, SentenceTable(**given))


@pytest.mark.parametrize("shortlist", [None, 10])
def test_where_there_are_fewer_than_k_the_rest_is_missing(pool, table, shortlist):
    scorer, words, images, _ = pool
    few = SentenceTable(*(part[:2] for part in table))
    searcher = Searcher(scorer, Centres.of(images), images[:3], few)
    rows, scores = numpy(searcher.search_images(words[:2], K, shortlist))
    assert sorted(rows[0]) == [-1, -1, 0, 1, 2]
    assert (scores[:, 3:] == -np.inf).all()
    rows, _ = numpy(searcher.search_sentences(images[:1], K, shortlist))
    assert sorted(rows[0]) == [-1, -1, -1, 0, 1]
    empty = SentenceTable(*(part[:0] for part in table))
    nothing = Searcher(scorer, Centres.of(images[:1]), images[:0], empty)
    assert (nothing.search_images(words[:2], K, shortlist).rows.numpy() == -1).all()
    assert (nothing.search_sentences(images[:2], K, shortlist).rows.numpy() == -1).all()


def test_the_scores_of_words_add_up_to_the_score(pool, searcher):
    _, words, _, _ = pool
    hits = searcher.search_images(words[-3:], K)
    assert (hits.rows[-1] == -1).numpy().all()  # the last one is empty
    by_word = searcher.word_scores(words[-3:], hits.rows).numpy()
    assert by_word.shape == (3, K, words.shape[1])
    np.testing.assert_allclose(by_word[:2].sum(axis=2), hits.scores[:2], atol=1e-4)
    padding = np.repeat((words[-3:] == schema.PAD_ID)[:, np.newaxis], K, axis=1)
    assert (by_word[padding] == 0).all() and (by_word[2] == 0).all()
    assert (by_word[:2][~padding[:2]] < 0).all()


def test_a_prefix_is_ranked_without_the_end_token(pool, searcher):
    scorer, words, images, _ = pool
    prefixes = np.where(words == schema.END_ID, schema.PAD_ID, words)[:20]
    expected = scorer.matrix(scorer.read(prefixes), images)
    expected_rows, expected_scores = best(expected)
    rows, scores = numpy(searcher.search_images(prefixes, K))
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-4)


def test_more_queries_than_one_block_takes(pool, searcher):
    _, words, _, _ = pool
    whole = searcher.search_images(words, K, 20)
    parts = [searcher.search_images(words[at : at + 7], K, 20) for at in range(0, len(words), 7)]
    np.testing.assert_array_equal(whole.rows, np.concatenate([part.rows for part in parts]))

"""Similarities, against plain implementations and the packages that define them; then consensus."""

import collections

import numpy as np
import pytest
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from pycocoevalcap.cider.cider import Cider as CocoCider

from mrnn_tf.consensus.neighbours import MISSING
from mrnn_tf.consensus.ngrams import UNKNOWN, Corpus
from mrnn_tf.consensus.oracle import Oracle
from mrnn_tf.consensus.reranking import Comparison, mean_of_highest, nearness, order
from mrnn_tf.consensus.similarity import SIMILARITIES, Bleu, Cider, SentenceBleu
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.cider import CiderD

WORDS = ["a", "the", "dog", "cat", "runs", "sits", "on", "in", "grass", "red", "big", "and"]
HYPOTHESES = [
    "a dog runs on the grass",
    "the the the dog the",
    "on a on a on a on a",
    "a zebra zebra sits on a zebra zebra",
    "dog",
    "a dog",
    "",
    "xyzzy",
]


def sentences(count, seed, shortest=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(shortest, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def captions():
    """The captions of images: none, one, or several; some empty, some short."""
    texts = iter(sentences(200, 0))
    return [[next(texts) for _ in range(i % 4)] for i in range(60)]


@pytest.fixture(scope="module")
def corpus(captions):
    return Corpus.of(captions)


def flat(captions):
    return [caption for some in captions for caption in some]


def plain_bleu(hypothesis, reference):
    """The mean F1 of n-grams of the orders that one of the two has."""
    scores = []
    for n in range(1, 5):
        mine, theirs = (
            collections.Counter(tuple(s[i : i + n]) for i in range(len(s) - n + 1))
            for s in (hypothesis.split(), reference.split())
        )
        if mine or theirs:
            shared = sum((mine & theirs).values())
            scores.append(2 * shared / (sum(mine.values()) + sum(theirs.values())))
    return np.mean(scores) if scores else 0.0


def plain_sentence_bleu(hypothesis, reference):
    smoothing = SmoothingFunction().method1
    return sentence_bleu([reference.split()], hypothesis.split(), smoothing_function=smoothing)


def table(function, left, right):
    return np.array([[function(a, b) for b in right] for a in left])


@pytest.fixture
def plain(captions):
    cider = CiderD(captions)
    return {
        "bleu": plain_bleu,
        "sentence_bleu": plain_sentence_bleu,
        "cider": lambda a, b: cider.similarity(cider.vector(a), cider.vector(b)),
    }


@pytest.mark.parametrize("name", SIMILARITIES)
def test_a_similarity_is_that_of_every_pair(name, captions, corpus, plain):
    hypotheses = HYPOTHESES + sentences(20, 1) + flat(captions)[:10]
    counted = corpus.sentences(hypotheses)
    found = SIMILARITIES[name](corpus).to_captions(counted, corpus.rows(range(len(captions))))
    expected = table(plain[name], hypotheses, flat(captions))
    assert expected.max() > 0.9
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_hypotheses_compare_with_each_other_by_words_the_corpus_lacks_too(name, corpus, plain):
    found = SIMILARITIES[name](corpus).to_each_other(corpus.sentences(HYPOTHESES))
    np.testing.assert_allclose(found, table(plain[name], HYPOTHESES, HYPOTHESES), atol=1e-6)
    assert found[3, 7] == 0.0 < found[3, 3]


def test_cider_is_pycocoevalcaps_where_the_frequencies_are_the_same():
    references = {i: sentences(4, 100 + i, shortest=3) for i in range(30)}
    results = {i: sentences(1, 200 + i, shortest=3) for i in references}
    _, expected = CocoCider().compute_score(references, results)
    corpus = Corpus.of(references.values())
    cider = Cider(corpus)
    found = [
        cider.to_captions(corpus.sentences(results[i]), corpus.rows([i])).mean() for i in references
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_short_sentence_is_itself():
    corpus = Corpus.of([["dog", "a dog", "the a dog", "a cat runs here"]])
    found = Bleu(corpus).to_captions(corpus.sentences(["a dog"]), corpus.rows([0]))[0]
    assert found[1] == 1.0
    np.testing.assert_allclose(found, [2 / 3 / 2, 1, (4 / 5 + 2 / 3 + 0) / 3, (1 / 3 + 0) / 4])


def test_captions_are_tokenised_as_everywhere():
    corpus = Corpus.of([["A DOG, runs!"], ["a dog"]])
    assert corpus.words == ("a", "dog", "runs")
    assert corpus.lengths.tolist() == [3, 2]
    assert corpus.frequencies[:3].tolist() == [2, 2, 1]
    assert corpus.orders.tolist() == [1, 1, 1, 2, 2, 3]
    counted = corpus.sentences(["dog dog cat"])
    assert counted.nodes.tolist() == [1, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]
    assert counted.counts.tolist() == [[2, 1, 1, 1, 1]]


def test_frequencies_come_from_the_corpus_only():
    rare, common = Corpus.of([["a dog"], ["a cat"]]), Corpus.of([["a dog"], ["a dog"], ["a cat"]])
    for corpus, dog in ((rare, np.log(2)), (common, np.log(3 / 2))):
        weights = Cider(corpus).weights
        assert weights[corpus.sentences(["dog"]).nodes] == pytest.approx([dog])
        assert weights[corpus.sentences(["boat"]).nodes] == pytest.approx([weights.max()])
    with pytest.raises(ValueError, match="`corpus` must hold an image"):
        Cider(Corpus.of([]))
    assert SentenceBleu(Corpus.of([])).to_each_other(rare.sentences(["a b c d"] * 2)).min() == 1.0


def test_the_score_is_the_mean_of_the_most_similar_captions_of_the_nearest(captions, corpus, plain):
    near = np.array([5, 7, 11, 30])
    compared = Comparison("cider", corpus)(HYPOTHESES, near)
    for k, m in ((4, 3), (2, 3), (1, 1), (4, 1000), (1000, 5)):
        there = [caption for image in near[:k] for caption in captions[image]]
        similar = np.sort(table(plain["cider"], HYPOTHESES, there), axis=1)[:, ::-1]
        np.testing.assert_allclose(
            compared.by_neighbours(k, m), similar[:, :m].mean(axis=1), atol=1e-9
        )


def test_missing_neighbours_and_those_without_captions_do_not_count(captions, corpus):
    compare = Comparison("bleu", corpus)
    plainly = compare(HYPOTHESES, np.array([5, 7]))
    padded = compare(HYPOTHESES, np.array([5, MISSING, 4, 7, MISSING]))  # 4 has no captions
    assert captions[4] == []
    np.testing.assert_array_equal(padded.by_neighbours(5, 3), plainly.by_neighbours(2, 3))
    alone = compare(HYPOTHESES, np.array([MISSING, 4]))
    np.testing.assert_array_equal(alone.by_neighbours(2, 3), np.zeros(len(HYPOTHESES)))
    assert order(alone.by_neighbours(2, 3)) == list(range(len(HYPOTHESES)))


def test_a_nearer_neighbour_may_count_more():
    corpus = Corpus.of([["a dog runs"], ["a red car"], ["the red car"]])
    near, hypotheses = np.array([0, 1, 2]), ["a dog", "a red car"]
    compare = Comparison("bleu", corpus)
    assert order(compare(hypotheses, near).by_neighbours(3, 3)) == [1, 0]
    weights = nearness(np.array([0.1, 1.0, 1.1]), temperature=0.2)
    assert order(compare(hypotheses, near, weights).by_neighbours(3, 3)) == [0, 1]
    similarities = np.array([[1.0, 0.5, 0.2]])
    assert mean_of_highest(similarities, np.array([1.0, 2.0, 4.0]), 2) == pytest.approx(
        [(1.0 + 1.0) / 6]
    )
    with pytest.raises(ValueError, match="`temperature`"):
        nearness(near, 0.0)


def test_mbr_takes_what_is_most_like_the_others():
    compare = Comparison("bleu", Corpus.of([]))
    found = compare(["a red boat", "a dog runs", "a dog runs fast", "the dog runs"])
    assert order(found.by_hypotheses())[0] == 1
    assert order(found.by_hypotheses())[-1] == 0
    assert compare(["a dog"]).by_hypotheses().tolist() == [0.0]
    assert compare([]).by_hypotheses().tolist() == []


def test_both_are_one_pool_with_a_weight(corpus):
    compared = Comparison("cider", corpus)(HYPOTHESES, np.array([5, 7, 11]))
    ends = compared.by_neighbours(3, 4), compared.by_hypotheses()
    for weight in (0.0, 0.3, 1.0):
        expected = (1 - weight) * ends[0] + weight * ends[1]
        np.testing.assert_allclose(compared.by_both(3, 4, weight), expected)
    with pytest.raises(ValueError, match="`weight` must be between"):
        compared.by_both(3, 4, 1.5)
    with pytest.raises(ValueError, match="`k` and `m`"):
        compared.by_neighbours(0, 4)


def test_an_unknown_similarity_is_refused(corpus):
    with pytest.raises(ValueError, match="`similarity` must be one of bleu"):
        Comparison("rouge", corpus)


def test_the_oracle_scores_a_choice_as_the_metrics_do():
    references = {i: ["A dog, runs.", *sentences(4, i, shortest=5), ""] for i in range(12)}
    references["none"] = [""]
    hypotheses = {i: ["", "a dog runs", *sentences(6, 50 + i, shortest=1)] for i in range(12)}
    hypotheses["none"] = ["a dog"]
    oracle = Oracle(references, hypotheses)
    assert "none" not in oracle.cider
    for place in (1, 2, 5):
        chosen = dict.fromkeys(oracle.cider, place)
        expected = metrics.evaluate(
            {i: references[i] for i in range(12)},
            {i: hypotheses[i][place] for i in range(12)},
            meteor=False,
        ).overall
        found = oracle.overall(chosen)
        assert found["cider"] == pytest.approx(expected["cider"], abs=1e-6)
        assert found["bleu_4"] == pytest.approx(expected["bleu_4"], abs=1e-6)
    assert [order(scores)[0] for scores in oracle.cider.values()].count(0) == 0
    assert all(oracle.bleu[i][0] == 0.0 < oracle.bleu[i][1] for i in range(12))

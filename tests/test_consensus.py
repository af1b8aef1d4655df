"""Similarities, against plain implementations and the packages that define them; then consensus."""

import numpy as np
import plain
import pytest
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from pycocoevalcap.cider.cider import Cider as CocoCider

from mrnn_tf.consensus.neighbours import MISSING, Near
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.oracle import Oracle
from mrnn_tf.consensus.reranking import Comparison, RerankSettings, mean_of_highest, order
from mrnn_tf.consensus.similarity import SIMILARITIES, CiderD, NGramF1
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics.nbest import NBest

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


@pytest.fixture
def pairwise(captions):
    return {"bleu": plain.bleu, "cider": plain.cider(captions)}


def flat(captions):
    return [caption for some in captions for caption in some]


@pytest.mark.parametrize("name", SIMILARITIES)
def test_a_similarity_is_that_of_every_pair(name, captions, corpus, pairwise):
    hypotheses = HYPOTHESES + sentences(20, 1) + flat(captions)[:10]
    expected = plain.table(pairwise[name], hypotheses, flat(captions))
    assert expected.max() > 0.9
    similarity = SIMILARITIES[name](corpus)
    found = similarity.to_captions([hypotheses], [range(len(captions))])
    np.testing.assert_allclose(found.values[0], expected, atol=1e-6)
    sizes = [len(some) for some in captions]
    np.testing.assert_array_equal(found.neighbour[0], np.repeat(range(60), sizes))
    found = similarity.to_sentences([hypotheses], [flat(captions)])
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_the_images_of_a_batch_do_not_mix(name, captions, corpus, pairwise):
    hypotheses = [sentences(3, seed) for seed in range(5)]
    images = [[1, 2, 3], [MISSING] * 3, [3, 3, 4], [0, MISSING, 5], [59, 7, 1]]
    values, neighbour = SIMILARITIES[name](corpus).to_captions(hypotheses, images)
    for row, some in enumerate(images):
        theirs = [(i, c) for i, image in enumerate(some) if image >= 0 for c in captions[image]]
        expected = plain.table(pairwise[name], hypotheses[row], [caption for _, caption in theirs])
        np.testing.assert_allclose(values[row, :, : len(theirs)], expected, atol=1e-6)
        assert neighbour[row, : len(theirs)].numpy().tolist() == [i for i, _ in theirs]
        assert not values[row, :, len(theirs) :].numpy().any()
        assert (neighbour[row, len(theirs) :].numpy() == MISSING).all()
    references = [sentences(4, 10 + seed) for seed in range(5)]
    found = SIMILARITIES[name](corpus).to_sentences(hypotheses, references)
    for row, some in enumerate(references):
        expected = plain.table(pairwise[name], hypotheses[row], some)
        np.testing.assert_allclose(found[row], expected, atol=1e-6)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_hypotheses_compare_with_each_other_by_words_the_corpus_lacks_too(name, corpus, pairwise):
    [found] = SIMILARITIES[name](corpus).to_sentences([HYPOTHESES], [HYPOTHESES]).numpy()
    expected = plain.table(pairwise[name], HYPOTHESES, HYPOTHESES)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[3, 7] == 0.0 < found[3, 3]


@pytest.mark.parametrize("name", SIMILARITIES)
def test_nothing_is_similar_to_nothing(name, corpus):
    similarity = SIMILARITIES[name](corpus)
    assert similarity.to_captions(np.zeros([0, 3], str), np.zeros([0, 2], int)).values.shape[0] == 0
    assert similarity.to_captions([["a dog"]], [[MISSING]]).values.shape == (1, 1, 0)
    assert similarity.to_sentences([["a dog"]], np.zeros([1, 0], str)).shape == (1, 1, 0)
    assert not similarity.to_sentences([["", "a"]], [["", "b"]]).numpy().any()


def test_cider_is_pycocoevalcaps_where_the_frequencies_are_the_same():
    references = {i: sentences(4, 100 + i, shortest=3) for i in range(30)}
    results = {i: sentences(1, 200 + i, shortest=3) for i in references}
    _, expected = CocoCider().compute_score(references, results)
    cider = CiderD(Corpus.of(references.values()))
    found = cider.to_captions(list(results.values()), np.arange(30)[:, np.newaxis]).values
    np.testing.assert_allclose(np.mean(found, axis=(1, 2)), expected, atol=1e-9)


def test_a_short_sentence_is_itself():
    corpus = Corpus.of([["dog", "a dog", "the a dog", "a cat runs here"]])
    found = NGramF1(corpus).to_captions([["a dog"]], [[0]]).values[0, 0].numpy()
    assert found[1] == 1.0
    np.testing.assert_allclose(found, [2 / 3 / 2, 1, (4 / 5 + 2 / 3 + 0) / 3, (1 / 3 + 0) / 4])


def test_captions_are_tokenised_as_everywhere():
    corpus = Corpus.of([["A DOG, runs!"], ["a dog"]])
    assert corpus.words == ("a", "dog", "runs")
    assert np.diff(corpus.captions).tolist() == [3, 2]
    having = len(corpus) / np.exp(corpus.weights)
    assert having == pytest.approx([1, 2, 2, 1, 2, 1, 1])  # unknown; a, dog, runs; ...
    parents, words = np.divmod(corpus.keys[:-1], 3)
    assert parents.tolist() == [0, 1, 3] and words.tolist() == [1, 2, 2]
    ended = Corpus.of([["A DOG, runs!"], [""]], end="</s>")
    assert ended.words == ("a", "dog", "runs", "</s>")
    assert np.diff(ended.captions).tolist() == [4, 1]


def test_frequencies_come_from_the_corpus_only():
    rare, common = Corpus.of([["a dog"], ["a cat"]]), Corpus.of([["a dog"], ["a dog"], ["a cat"]])
    for corpus, dog in ((rare, np.log(2)), (common, np.log(3 / 2))):
        np.testing.assert_allclose(corpus.norms[0, :2], dog)  # that of "a" is 0
        similarity = plain.cider([["a dog"]] * (len(corpus) - 1) + [["a cat"]])
        pairs = ["dog boat", "boat", "dog"]
        [found] = CiderD(corpus).to_sentences([pairs], [pairs])
        np.testing.assert_allclose(found, plain.table(similarity, pairs, pairs))
    with pytest.raises(ValueError, match="`corpus` must hold an image"):
        CiderD(Corpus.of([]))
    assert NGramF1(Corpus.of([])).to_sentences([["a b c d"]], [["a b c d"]]).numpy() == 1.0


def compare(method, corpus, hypotheses, near=(), weights=None):
    near = np.array([near], np.int64)
    weights = np.ones(near.shape) if weights is None else np.array([weights])
    return Comparison(method, corpus)({1: NBest(tuple(hypotheses))}, Near(near, weights))


def test_the_score_is_the_mean_of_the_most_similar_captions_of_the_nearest(
    captions, corpus, pairwise
):
    near = np.array([5, 7, 11, 30])
    compared = compare("cider", corpus, HYPOTHESES, near)
    for k, m in ((4, 3), (2, 3), (1, 1), (4, 1000), (1000, 5)):
        theirs = [caption for image in near[:k] for caption in captions[image]]
        similar = np.sort(plain.table(pairwise["cider"], HYPOTHESES, theirs), axis=1)[:, ::-1]
        expected = similar[:, :m].mean(axis=1)
        np.testing.assert_allclose(compared.by_neighbours(k, m)[0], expected, atol=1e-9)
        [found] = compared.scores("cider", RerankSettings(k, m)).values()
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_missing_neighbours_and_those_without_captions_do_not_count(captions, corpus):
    plainly = compare("bleu", corpus, HYPOTHESES, [5, 7])
    padded = compare("bleu", corpus, HYPOTHESES, [5, MISSING, 4, 7, MISSING])  # 4 has no captions
    assert captions[4] == []
    np.testing.assert_array_equal(padded.by_neighbours(5, 3), plainly.by_neighbours(2, 3))
    alone = compare("bleu", corpus, HYPOTHESES, [MISSING, 4])
    np.testing.assert_array_equal(alone.by_neighbours(2, 3), np.zeros((1, len(HYPOTHESES))))
    assert order(alone.by_neighbours(2, 3)[0]) == list(range(len(HYPOTHESES)))


def test_a_nearer_neighbour_may_count_more():
    corpus = Corpus.of([["a dog runs"], ["a red car"], ["the red car"]])
    near, hypotheses = [0, 1, 2], ["a dog", "a red car"]
    assert order(compare("bleu", corpus, hypotheses, near).by_neighbours(3, 3)[0]) == [1, 0]
    weights = np.exp(-np.square([0.1, 1.0, 1.1]) / 0.2)
    weighed = compare("bleu", corpus, hypotheses, near, weights)
    assert order(weighed.by_neighbours(3, 3)[0]) == [0, 1]
    similarities = np.array([[[1.0, 0.5, 0.2]]])
    found = mean_of_highest(similarities, np.array([[1.0, 2.0, 4.0]]), 2)
    assert found[0].numpy() == pytest.approx([(1.0 + 1.0) / 6])


def test_mbr_takes_what_is_most_like_the_others():
    hypotheses = ["a red boat", "a dog runs", "a dog runs fast", "the dog runs"]
    lists = {1: hypotheses, 2: ["a dog"], 3: [], 4: ["a dog runs", "a dog runs"]}
    compared = Comparison("mbr")({image: NBest(tuple(some)) for image, some in lists.items()})
    scores = compared.scores("mbr", RerankSettings())
    assert order(scores[1])[0] == 1
    assert order(scores[1])[-1] == 0
    pairs = plain.table(plain.bleu, hypotheses, hypotheses)
    np.testing.assert_allclose(scores[1], (pairs.sum(axis=1) - 1) / 3)
    assert [scores[image].tolist() for image in (2, 3, 4)] == [[0.0], [], [1.0, 1.0]]


def test_both_are_one_pool_with_a_weight(corpus):
    compared = compare("combined", corpus, HYPOTHESES, [5, 7, 11])
    ends = compared.by_neighbours(3, 4), compared.by_hypotheses
    for weight in (0.0, 0.3, 1.0):
        expected = (1 - weight) * ends[0] + weight * ends[1]
        settings = RerankSettings(3, 4, weight, log_prob=0)
        np.testing.assert_allclose(compared.scores("combined", settings)[1], expected[0])
    with pytest.raises(ValueError, match="`weight` must be between"):
        RerankSettings(3, 4, 1.5)
    with pytest.raises(ValueError, match="`k` and `m`"):
        RerankSettings(0, 4)
    with pytest.raises(ValueError, match="no `log_probs`"):
        compared.scores("combined", RerankSettings())


def test_images_are_compared_alike_in_every_batch(captions, corpus):
    """Batches differ in how many captions the neighbours have."""
    lists = {i: NBest(tuple(sentences(1 + i % 4, i))) for i in range(70)}
    near = np.random.default_rng(0).integers(MISSING, 60, (70, 5))
    near[64:, 1:] = MISSING
    weights = np.random.default_rng(1).random((70, 5))
    together = Comparison("cider", corpus)(lists, Near(near, weights))
    together = together.scores("cider", RerankSettings(4, 3))
    for i in (0, 31, 32, 66, 69):
        alone = compare("cider", corpus, lists[i].captions, near[i], weights[i])
        np.testing.assert_allclose(together[i], alone.scores("cider", RerankSettings(4, 3))[1])


def test_an_unknown_method_is_refused(corpus):
    with pytest.raises(ValueError, match="`method` must be one of mbr, bleu"):
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
    smoothed = SmoothingFunction().method1
    words = [["a", "dog", "runs"], *(caption.split() for caption in references[3][1:-1])]
    for caption, score in zip(hypotheses[3], oracle.bleu[3], strict=True):
        assert score == sentence_bleu(words, caption.split(), smoothing_function=smoothed)


def test_scores_that_are_nan_have_no_order():
    assert order(np.array([0.5, -np.inf, 2.0])) == [2, 0, 1]
    with pytest.raises(ValueError, match="must not hold NaN"):
        order(np.array([0.5, np.nan]))

"""The signatures of an index, against every pair scored one by one."""

import dataclasses

import memory
import numpy as np
import pytest
import tensorflow as tf

from export import index_check, saved_model, warmup
from export.check import same
from export.index_signatures import IndexServable, IndexSettings
from mrnn_tf import schema
from mrnn_tf.config import ModelConfig, RunConfig, TrainConfig
from mrnn_tf.model.layers import scaled_tanh
from mrnn_tf.retrieval.index import NO_IMAGE, Entries, Header, Index, Texts
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import pad
from mrnn_tf.run import Run, build

K = 5
SMALL = IndexSettings(k=K, beam=3, neighbours=4, max_words=10)
FOLDER = "assets.extra/index"


@pytest.fixture(scope="module")
def run(tiny_index):
    return Run.from_saved_model(str(tiny_index))


@pytest.fixture(scope="module")
def index(tiny_index, run):
    return Index.load(str(tiny_index / FOLDER), run.fingerprint)


@pytest.fixture(scope="module")
def functions(run, index):
    return IndexServable(run, index, SMALL).signatures()


@pytest.fixture(scope="module")
def features():
    return np.random.default_rng(1).random((3, 12), np.float32)


def ask(functions, name, value):
    return {k: v.numpy() for k, v in functions[name](tf.constant(value)).items()}


def missing(answer, row):
    texts = [answer[name][row] for name in answer if answer[name].dtype == object]
    ranks = answer[schema.SCORES if schema.SCORES in answer else schema.LOG_PROBS][row]
    return not any(b"".join(each) for each in texts) and (ranks == np.float32(-3.4e38)).all()


def test_images_are_ranked_by_the_probability_of_the_sentence(functions, run, index):
    sentences = ["a red dog", "there is a blue boat zxqv here", "we can all see"]
    scorer = Scorer(run.network.model)
    words = pad(run.vocabulary.ids(sentences).to_list())
    scores = scorer.matrix(scorer.read(words), np.asarray(index.images))
    best = np.argsort(-scores, axis=1)[:, :K]
    found = ask(functions, schema.SEARCH_IMAGES, sentences)
    assert found[schema.IDS].tolist() == [[index.ids[i] for i in row] for row in best]
    np.testing.assert_allclose(
        found[schema.SCORES], np.take_along_axis(scores, best, 1), rtol=1e-4, atol=1e-4
    )
    again = ask(functions, schema.SERVING_DEFAULT, sentences)
    assert again[schema.IDS].tolist() == found[schema.IDS].tolist()


def test_an_exact_search_finds_the_best_of_all_whatever_the_shortlist(run, index):
    sentences = ["a red dog", "there is a blue boat zxqv here", "", "zxqv"]
    words = pad(run.vocabulary.ids(sentences[:2]).to_list())
    scorer = Scorer(run.network.model)
    scores = scorer.matrix(scorer.read(words), np.asarray(index.images))
    best = np.argsort(-scores, axis=1)[:, :K]
    settings = dataclasses.replace(SMALL, shortlist=1)
    functions = IndexServable(run, index, settings).signatures()
    found = ask(functions, schema.SEARCH_IMAGES_EXACT, sentences)
    assert found[schema.IDS][:2].tolist() == [[index.ids[i] for i in row] for row in best]
    assert missing(found, 2) and missing(found, 3)


def test_a_prefix_finds_images_and_tells_what_every_word_adds(functions, run, index):
    prefixes = ["a red", "there is a blue boat", "", "zxqv", "a " * 31]
    found = ask(functions, schema.SEARCH_PREFIX, prefixes)
    scorer = Scorer(run.network.model)
    for row, prefix in enumerate(prefixes[:2]):
        words = np.array(run.vocabulary.ids([prefix]).to_list(), np.int32)
        scores = scorer.matrix(scorer.read(words), np.asarray(index.images))[0]
        best = np.argsort(-scores, kind="stable")[:K]
        assert found[schema.IDS][row].tolist() == [index.ids[i] for i in best]
        np.testing.assert_allclose(found[schema.SCORES][row], scores[best], 1e-4, 1e-4)
        by_word = found[schema.WORD_SCORES][row]
        assert by_word.shape == (K, SMALL.max_prefix_words)
        assert (by_word[:, : words.size] < 0).all() and (by_word[:, words.size :] == 0).all()
        np.testing.assert_allclose(by_word.sum(axis=1), scores[best], 1e-4, 1e-4)
    assert [missing(found, row) for row in (2, 3, 4)] == [True] * 3
    assert (found[schema.WORD_SCORES][2:] == 0).all()


def test_sentences_are_ranked_by_what_they_owe_to_the_image(functions, run, index, features):
    scorer = Scorer(run.network.model)
    sentences = scorer.read(np.asarray(index.words))
    scores = scorer.matrix(sentences, scorer.project(features)).T - index.log_marginals
    found = ask(functions, schema.SEARCH_SENTENCES, features)
    for row in range(len(features)):
        best = np.argsort(-scores[row], kind="stable")[:K]
        np.testing.assert_allclose(found[schema.SCORES][row], scores[row][best], 1e-4, 1e-4)
        # Equal captions have equal scores: the text and its image must belong together.
        for text, owner in zip(found["sentences"][row], found["ids"][row], strict=True):
            assert (text, owner) in {
                (index.captions[s], index.ids[index.owners[s]])
                for s in np.flatnonzero(scores[row] > scores[row][best[-1]] - 1e-4)
            }


def test_similar_images_are_near_by_refined_features(functions, run, index, features):
    refined = run.network.model.refined(features).numpy()
    theirs = scaled_tanh(index.images).numpy()
    distances = np.linalg.norm(theirs - refined[:, np.newaxis], axis=-1)
    best = np.argsort(distances, axis=1)[:, :K]
    found = ask(functions, schema.SIMILAR_IMAGES, features)
    assert found[schema.IDS].tolist() == [[index.ids[i] for i in row] for row in best]
    np.testing.assert_allclose(
        -found[schema.SCORES], np.take_along_axis(distances, best, 1), rtol=1e-4, atol=1e-4
    )
    known = some_entries(index, Scorer(run.network.model).project(features))
    functions = IndexServable(run, known, SMALL).signatures()
    itself = ask(functions, schema.SIMILAR_IMAGES, features)
    assert itself[schema.IDS][:, 0].tolist() == [b"0", b"1", b"2"]
    np.testing.assert_allclose(itself[schema.SCORES][:, 0], 0.0, atol=1e-6)


def test_projections_are_held_once(run, index):
    without_captions = some_entries(index, index.images)  # which have a matrix of that shape too
    variables = IndexServable(run, without_captions, SMALL).tracked().variables
    alike = [each for each in variables if each.shape == index.images.shape]
    assert sum(np.allclose(each, index.images) for each in alike) == 1  # sketches are others


def some_entries(index, images, captions=()):
    """An index with some images, and sentences that belong to none."""
    count = len(captions)
    entries = Entries(
        ids=Texts.of([b"%d" % i for i in range(len(images))]),
        images=np.array(images),
        captions=Texts.of(captions),
        words=np.array(index.words[:count]),
        vectors=np.array(index.vectors[:count]),
        mean_log_probs=np.array(index.mean_log_probs[:count]),
        log_marginals=np.array(index.log_marginals[:count]),
        owners=np.full(count, NO_IMAGE, np.int32),
    )
    return dataclasses.replace(index, **vars(entries))


def test_captions_are_reranked_by_the_captions_of_near_images(functions, run, index):
    features = np.zeros((2, 12), np.float32)
    features[:, [0, 3]] = 1.0  # a red dog
    features[1] = np.nan
    found = ask(functions, schema.CAPTION_RERANKED, features)
    assert b"red dog" in found[schema.CAPTIONS][0, 0]
    assert (np.diff(found[schema.CONSENSUS][0]) <= 0).all() and found[schema.CONSENSUS][0, 0] > 1
    assert missing(found, 1)
    servable = IndexServable(run, index, SMALL)
    [(_, inputs)] = warmup.calls(servable, 3, [schema.CAPTION_RERANKED])
    outputs = ask(functions, schema.CAPTION_RERANKED, inputs[schema.FEATURES])
    for name, value in index_check.expected(
        servable, schema.CAPTION_RERANKED, inputs, outputs
    ).items():
        assert same(outputs[name], value), name


def test_a_query_without_a_known_word_finds_nothing_and_harms_no_other(functions):
    alone = ask(functions, schema.SEARCH_IMAGES, ["a red dog"])
    together = ask(
        functions, schema.SEARCH_IMAGES, ["", "zxqv wvut", "a red dog", " .!", b"\xff\xfe", "Größe"]
    )
    assert together[schema.IDS][2].tolist() == alone[schema.IDS][0].tolist()
    np.testing.assert_allclose(together[schema.SCORES][2], alone[schema.SCORES][0], rtol=1e-5)
    assert [missing(together, row) for row in range(6)] == [True, True, False, True, True, True]


@memory.needed
def test_a_query_of_too_many_words_finds_nothing_and_harms_no_other(functions, run, index):
    alone = ask(functions, schema.SEARCH_IMAGES, ["a red dog", "a blue boat"])
    long = ["a " * 201, "a red dog. " * 190_000, "größer " * 250_000]
    batch = ["a red dog", *long, "a blue boat", "a " * 200]
    growth, found = memory.peak_growth(lambda: ask(functions, schema.SEARCH_IMAGES, batch))
    assert growth < 100
    assert [missing(found, row) for row in range(6)] == [False, True, True, True, False, False]
    assert found[schema.IDS][[0, 4]].tolist() == alone[schema.IDS].tolist()
    np.testing.assert_allclose(found[schema.SCORES][[0, 4]], alone[schema.SCORES], rtol=1e-5)

    servable = IndexServable(run, index, dataclasses.replace(SMALL, max_text_words=4))
    assert '"max_text_words": 4' in servable.info.facts[schema.SETTINGS]
    [(name, inputs)] = warmup.calls(servable, 4, [schema.SEARCH_IMAGES])
    outputs = ask(servable.signatures(), name, inputs[schema.SENTENCES])
    for output, value in index_check.expected(servable, name, inputs, outputs).items():
        assert same(outputs[output], value), output
    assert missing(outputs, 0) and not missing(outputs, 3)


def test_every_output_is_as_wide_in_every_batch(functions):
    for function in functions.values():
        for output in function.structured_outputs.values():
            assert output.shape[0] is None and output.shape[1:].is_fully_defined()


@pytest.mark.parametrize(
    "name", [schema.SEARCH_SENTENCES, schema.SIMILAR_IMAGES, schema.CAPTION_RERANKED]
)
def test_features_that_are_none_find_nothing_and_harm_no_other(functions, features, name):
    bad = np.zeros((4, 12), np.float32)
    bad[1, 3], bad[2] = np.nan, features[0]
    bad[3, 0] = np.inf
    together, alone = ask(functions, name, bad), ask(functions, name, features[:1])
    assert [missing(together, row) for row in range(4)] == [True, True, False, True]
    for output, value in alone.items():
        assert same(together[output][2:3], value), output
    empty = ask(functions, name, np.zeros((0, 12), np.float32))
    assert {value.shape for value in empty.values()} <= {(0, K), (0, 3)}


CASES = {"few": (2, 3), "no sentence": (2, 0), "no image": (0, 3), "nothing": (0, 0)}


@pytest.mark.parametrize("case", CASES)
def test_an_index_smaller_than_k(run, index, features, case):
    images, count = CASES[case]
    some = some_entries(index, index.images[:images], [b"one", b"two", b"three"][:count])
    functions = IndexServable(run, some, SMALL).signatures()
    found = {
        "images": ask(functions, schema.SEARCH_IMAGES, ["a red dog"]),
        "similar": ask(functions, schema.SIMILAR_IMAGES, features[:1]),
        "sentences": ask(functions, schema.SEARCH_SENTENCES, features[:1]),
    }
    for name, there in (("images", images), ("similar", images), ("sentences", count)):
        ranks = found[name][schema.SCORES]
        assert ranks.shape == (1, K)
        assert (ranks > np.float32(-3.4e38)).sum() == there
        assert (np.diff(ranks) <= 0).all()
    assert set(found["images"]["ids"][0]) == {b"0", b"1"} & set(some.ids) | {b""}
    assert set(found["sentences"]["sentences"][0]) == {*some.captions, b""}
    assert set(found["sentences"]["ids"][0]) == {b""}  # they belong to no image
    assert schema.CAPTION_RERANKED not in functions  # there is nothing to agree with


def test_a_shortlist_is_enough_where_it_holds_the_best(run, index):
    short = IndexServable(run, index, dataclasses.replace(SMALL, shortlist=12, k=2)).signatures()
    all_of_it = IndexServable(run, index, dataclasses.replace(SMALL, k=2)).signatures()
    for sentence in ("a red dog", "there is a green car here"):
        one, other = (ask(each, schema.SEARCH_IMAGES, [sentence]) for each in (short, all_of_it))
        assert one[schema.IDS].tolist() == other[schema.IDS].tolist()


def test_tied_weights_are_searched_too(run, index):
    """A softmax that is computed from the embedding."""
    sizes = {"embedding_1": 4, "embedding_2": 6, "recurrent": 6, "multimodal": 24}
    config = RunConfig(
        ModelConfig(variant="mrnn_shared", **sizes), TrainConfig(), len(run.vocabulary), 12,
        {"identity": "features:x:12"}, "x",
    )  # fmt: skip
    tied = Run(config, run.vocabulary, build(config), 1)
    servable = IndexServable(tied, index, SMALL)
    functions = servable.signatures()
    searcher = servable.searcher
    assert searcher.arrays["kernel"] is searcher.scorer.readout.kernel
    for name, inputs in warmup.calls(servable, 3, functions):
        outputs = {k: v.numpy() for k, v in functions[name](
            **{k: tf.constant(v) for k, v in inputs.items()}).items()}  # fmt: skip
        for output, value in index_check.expected(servable, name, inputs, outputs).items():
            assert same(outputs[output], value), (name, output)


@memory.needed
def test_a_hundred_thousand_images_of_512(run, tmp_path):
    """Written, opened, served from one copy, and searched for one that was put among them."""
    sizes = {"embedding_1": 8, "embedding_2": 16, "recurrent": 16, "multimodal": 512}
    config = RunConfig(
        ModelConfig(**sizes), TrainConfig(), len(run.vocabulary), 12,
        {"identity": "features:x:12"}, "x",
    )  # fmt: skip
    wide = Run(config, run.vocabulary, build(config), 1)
    count, rng = 100_000, np.random.default_rng(0)
    images = rng.normal(0, 0.1, (count, 512)).astype(np.float32)
    features = rng.random((1, 12), np.float32)
    images[77_777] = Scorer(wide.network.model).project(features)
    words = pad([[4, 5, 6], [7, 8]])
    entries = Entries(
        ids=Texts.of([b"%06d.jpg" % i for i in range(count)]),
        images=images,
        captions=Texts.of([b"one", b"two"]),
        words=words,
        vectors=rng.random((2, 512), np.float32),
        mean_log_probs=np.zeros(2, np.float32),
        log_marginals=np.zeros(2),
        owners=np.array([77_777, 3], np.int32),
    )
    header = Header(
        wide.fingerprint, "words", "features:x:12", 0, "train", 100, count, 2, 4, 512, 10, "0"
    )
    made = Index(**vars(entries), mean=images[:10].mean(axis=0), sample=images[:10], header=header)
    made.save(str(tmp_path / "arrays"))
    opened = Index.load(str(tmp_path / "arrays"), wide.fingerprint)
    assert isinstance(opened.images, np.memmap) and opened.ids[77_777] == b"077777.jpg"
    growth, servable = memory.peak_growth(lambda: IndexServable(wide, opened, SMALL))
    assert growth < 3 * images.nbytes / 2**20  # the mapped file, the variable, and sketches
    assert np.shares_memory(servable.index.images, servable.searcher.arrays["images"].value())
    np.testing.assert_array_equal(servable.index.images, images)
    directory = str(tmp_path / "mrnn_index" / "1")
    saved_model.write(servable, wide, {}, index_check.expected, directory)
    loaded = tf.saved_model.load(directory)
    found = loaded.signatures[schema.SIMILAR_IMAGES](features=tf.constant(features))
    assert found[schema.IDS][0, 0].numpy() == b"077777.jpg"
    found = loaded.signatures[schema.SEARCH_IMAGES](sentences=tf.constant(["a red dog", ""]))
    assert found[schema.SCORES].shape == (2, K) and found[schema.IDS][0, 0].numpy() != b""

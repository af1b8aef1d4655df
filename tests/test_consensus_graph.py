"""Consensus in the graph, against the library, eager and saved."""

import numpy as np
import pytest
import tensorflow as tf

from mrnn_tf.consensus.neighbours import Near
from mrnn_tf.consensus.ngrams import Corpus
from mrnn_tf.consensus.reranking import Comparison, RerankSettings, consensus
from mrnn_tf.consensus.similarity import CiderD
from mrnn_tf.metrics.nbest import NBest

WORDS = ["a", "the", "dog", "cat", "runs", "sits", "on", "in", "grass", "red", "big", "and"]
IMAGES, K, N, M = 40, 8, 5, 12


def sentences(count, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(0, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def corpus():
    texts = iter(sentences(200, 0))
    return Corpus.of([[next(texts) for _ in range(i % 5)] for i in range(IMAGES)])


@pytest.fixture(scope="module")
def cider(corpus):
    return CiderD(corpus)


def scores(cider, captions, neighbours, weights=None):
    weights = np.ones(np.shape(neighbours), np.float32) if weights is None else weights
    return consensus(cider, tf.constant(captions), Near(neighbours, weights), M)


@pytest.fixture(scope="module")
def asked():
    """Captions [B, N], neighbours [B, K] and their weights; some of each are missing."""
    rng = np.random.default_rng(1)
    captions = np.array(sentences(6 * N, 2), object).reshape(6, N)
    captions[0] = [
        "",
        "A DOG runs, on the grass!",
        "on a on a on a on a",
        "zebra zebra a zebra",
        "dog",
    ]
    captions[1] = ""
    neighbours = rng.integers(0, IMAGES, (6, K))
    neighbours[2, 3:] = -1
    neighbours[3] = -1
    neighbours[4] = [0, 5, *[-1] * 6]  # images without captions
    return captions, neighbours, rng.random((6, K)).astype(np.float32)


def expected(corpus, captions, neighbours, weights):
    n_best = {i: NBest(tuple(some)) for i, some in enumerate(captions)}
    compared = Comparison("cider", corpus)(n_best, Near(neighbours, weights))
    return list(compared.scores("cider", RerankSettings(K, M)).values())


def test_the_scores_are_the_librarys(cider, corpus, asked):
    captions, neighbours, weights = asked
    found = scores(cider, captions, neighbours, weights).numpy()
    np.testing.assert_allclose(found, expected(corpus, *asked), atol=1e-4)
    assert found[0, 1] > 0.05 and found[5].max() > 0.05
    assert not found[[1, 3, 4]].any() and found[0, 0] == 0.0


def test_without_weights_all_neighbours_count_alike(cider, corpus, asked):
    captions, neighbours, weights = asked
    found = scores(cider, captions, tf.constant(neighbours, tf.int32)).numpy()
    alike = expected(corpus, captions, neighbours, np.ones_like(weights))
    np.testing.assert_allclose(found, alike, atol=1e-4)


def test_a_row_does_not_depend_on_its_batch(cider, asked):
    captions, neighbours, weights = asked
    whole = scores(cider, captions, neighbours, weights).numpy()
    for i in range(len(captions)):
        part = slice(i, i + 1)
        alone = scores(cider, captions[part], neighbours[part], weights[part])
        np.testing.assert_allclose(alone.numpy(), whole[part], atol=1e-6)


def test_an_empty_batch_and_no_neighbours_are_valid(cider):
    assert scores(cider, np.zeros([0, 3], str), tf.zeros([0, K], tf.int32)).shape == (0, 3)
    none = scores(cider, [["a dog"]], tf.zeros([1, 0], tf.int32))
    assert none.numpy().tolist() == [[0.0]]


def test_a_corpus_of_single_words_has_no_longer_n_grams():
    cider = CiderD(Corpus.of([["dog"], ["cat"], []]))
    found = scores(cider, [["a dog runs", "dog"]], [[0]]).numpy()
    assert found[0, 1] == pytest.approx(10 / 4) and 0 < found[0, 0] < found[0, 1]


@pytest.fixture(scope="module")
def saved(cider, tmp_path_factory):
    """A SavedModel as an index would be: its arrays are variables, its sizes are open."""
    module = tf.Module()
    module.cider = cider

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, N], tf.string, "captions"),
            tf.TensorSpec([None, K], tf.int32, "neighbours"),
            tf.TensorSpec([None, K], tf.float32, "weights"),
        ]
    )
    def rerank(captions, neighbours, weights):
        return {"consensus": consensus(cider, captions, Near(neighbours, weights), M)}

    directory = str(tmp_path_factory.mktemp("saved"))
    tf.saved_model.save(module, directory, signatures=rerank)
    return directory


def test_it_is_saved_and_served(saved, corpus, asked):
    captions, neighbours, weights = asked
    served = tf.saved_model.load(saved).signatures["serving_default"]
    found = served(
        captions=tf.constant(captions),
        neighbours=tf.constant(neighbours, tf.int32),
        weights=tf.constant(weights),
    )["consensus"]
    np.testing.assert_allclose(found, expected(corpus, *asked), atol=1e-4)


def test_it_runs_in_a_session_as_tf_serving_has_it(saved, corpus, asked):
    captions, neighbours, weights = asked
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], saved)
        signature = loaded.signature_def["serving_default"]
        given = {"captions": captions, "neighbours": neighbours, "weights": weights}
        found = session.run(
            signature.outputs["consensus"].name,
            {signature.inputs[name].name: value for name, value in given.items()},
        )
    np.testing.assert_allclose(found, expected(corpus, *asked), atol=1e-4)


def test_the_arrays_are_variables_and_not_part_of_the_graph(saved, cider):
    held = {variable.name.split(":")[0] for variable in cider.variables}
    assert held == {"ids", "captions", "images", "keys", "weights", "norms"}
    largest = max(
        (
            node.attr["value"].tensor.ByteSize()
            for function in _read(saved).meta_graphs[0].graph_def.library.function
            for node in function.node_def
            if node.op == "Const"
        ),
        default=0,
    )
    assert largest < 500


def _read(directory):
    from tensorflow.core.protobuf import saved_model_pb2

    with open(f"{directory}/saved_model.pb", "rb") as file:
        return saved_model_pb2.SavedModel.FromString(file.read())


def test_bad_arguments_are_refused(cider):
    with pytest.raises(ValueError, match="`m` must be 1"):
        consensus(cider, [["a dog"]], Near([[0]], [[1.0]]), m=0)

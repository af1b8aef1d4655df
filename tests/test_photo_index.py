"""The Python API of search: `PhotoIndex` over a version of an index."""

import numpy as np
import pytest
import tensorflow as tf
import tiny

from mrnn_tf.captioner import Captioner, Unreadable
from mrnn_tf.errors import UserError
from mrnn_tf.photo_index import Match, PhotoIndex, RerankedCaption, SentenceMatch

RED, GREEN = 0, 1


@pytest.fixture(scope="module")
def index(searchable_models):
    return PhotoIndex.load(searchable_models / "mrnn_index" / "1")


@pytest.fixture(scope="module")
def signatures(searchable_models):
    return tf.saved_model.load(str(searchable_models / "mrnn_index" / "1")).signatures


def test_a_search_is_that_of_the_signature(index, signatures):
    served = signatures["search_images"](sentences=tf.constant(["Everything is red here"]))
    expected = [
        Match(path.decode(), pytest.approx(float(score), rel=1e-5))
        for path, score in zip(served["ids"][0].numpy(), served["scores"][0].numpy(), strict=True)
    ]
    assert index.search("Everything is red here") == expected
    assert index.search(["Everything is red here", "zyx"], k=1) == [expected[:1], []]


def test_a_search_without_a_known_word_can_be_told(index):
    assert index.unknown_words("Zyx is red, qwertz!") == ["zyx", "qwertz"]
    assert index.unknown_words("") == []


def test_more_results_than_were_exported_are_refused(index):
    assert index.search("Everything is red here", k=1)
    for k in (0, 99):
        with pytest.raises(UserError, match=rf"`k` must be from 1 to \d+, as was .*; got {k}\."):
            index.search("Everything is red here", k=k)


def test_an_exact_search_and_a_search_while_typing(index):
    sentence = "Everything is red here"
    exact = index.search(sentence, exact=True)
    assert [match.path for match in exact] == [match.path for match in index.search(sentence)]
    typed = index.search_prefix("everything is red", k=2)
    assert {match.path for match in typed} == {"0.png", "3.png"}
    assert len(typed[0].words) == 3 and sum(typed[0].words) == pytest.approx(typed[0].score, 1e-4)
    assert index.search_prefix("zyx") == []


def test_what_an_earlier_index_does_not_have_is_named(signatures):
    earlier = {name: signatures[name] for name in ("search_images", "similar_images")}
    with pytest.raises(UserError, match="no signature `search_prefix`: make it again"):
        PhotoIndex(earlier).search_prefix("a")


def test_images_are_encoded_by_the_model_beside_the_index(index, tmp_path):
    photo = tmp_path / "red.png"
    photo.write_bytes(tiny.picture(RED))
    similar = index.similar(photo, k=2)
    assert {match.path for match in similar} == {"0.png", "3.png"}
    assert similar[0].score == pytest.approx(0.0, abs=1e-2)
    sentences = index.sentences(photo)
    assert isinstance(sentences[0], SentenceMatch) and "red" in sentences[0].text
    captions = index.rerank(photo, k=1)
    assert isinstance(captions[0], RerankedCaption) and "red" in captions[0].text
    several = index.similar([photo, tmp_path / "missing.png", tiny.picture(GREEN)], k=1)
    assert several[0][0].path == similar[0].path and isinstance(several[1], Unreadable)
    assert several[2][0].path == "4.png"


def test_an_index_without_a_model_beside_it_takes_features(tiny_index):
    index = PhotoIndex.load(tiny_index.parent)
    features = np.zeros(tiny.FEATURE_SIZE, np.float32)
    features[[RED, 3]] = 1
    assert len(index.similar(features)) == 5
    assert "red dog" in index.sentences(features, k=1)[0].text
    with pytest.raises(UserError, match="no image encoder"):
        index.similar(tiny.picture(RED))


def test_what_does_not_fit_is_named(searchable_models, tiny_index, models, tmp_path):
    with pytest.raises(UserError, match="holds no index"):
        PhotoIndex.load(tmp_path)
    with pytest.raises(UserError, match="has no signature `search_images`"):
        PhotoIndex.load(models / "plain" / "1")
    with pytest.raises(UserError, match="`captioner` makes 12 features, but the index"):
        PhotoIndex.load(
            searchable_models / "mrnn_index" / "1", Captioner.load(models / "plain" / "1")
        )
    with pytest.raises(UserError, match="has no signature `beam_decode`"):
        Captioner.load(tiny_index)

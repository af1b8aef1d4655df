"""The Python API: `Captioner` over an export, a folder of versions and a run."""

import io
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import phone
import pytest
import skimage.data
import tensorflow as tf
import tiny
from PIL import Image

import mrnn_tf
from mrnn_tf import schema
from mrnn_tf.captioner import Captioner, Score, Unreadable
from mrnn_tf.errors import UserError

RED, GREEN, BLUE = range(3)


@pytest.fixture(scope="module")
def captioner(models):
    return Captioner.load(models / "mrnn" / "1")


@pytest.fixture(scope="module")
def plain(models):
    return Captioner.load(models / "plain" / "1")


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "red.png"
    path.write_bytes(tiny.picture(RED))
    return path


def pixels(colour):
    return tf.io.decode_png(tiny.picture(colour)).numpy()


def test_an_image_of_any_kind_has_the_captions_that_the_signature_gives(captioner, photo, models):
    content = photo.read_bytes()
    features = captioner.encode(photo)
    loaded = tf.saved_model.load(str(models / "mrnn" / "1"))
    served = loaded.signatures["caption"](image_bytes=tf.constant([content]))
    expected = [caption.decode() for caption in served["captions"][0].numpy()]
    image = Image.open(io.BytesIO(content))
    for kind in (photo, str(photo), content, image, np.asarray(image), features):
        captions = captioner.caption(kind)
        assert [caption.text for caption in captions] == expected
        np.testing.assert_allclose(
            [caption.log_prob for caption in captions], served["log_probs"][0], rtol=1e-4
        )
    assert "red" in captions[0].text.split()
    assert repr(captions[0]).startswith(f"Caption(text='{expected[0]}', log_prob=-")


def test_a_photograph_is_upright_however_it_is_given(captioner, tmp_path):
    first = captioner.caption(phone.PHOTOGRAPHS[0])
    features = captioner.encode(phone.PHOTOGRAPHS[0])
    (tmp_path / "phone.jpg").write_bytes(phone.PHOTOGRAPHS[5])
    image = Image.open(io.BytesIO(phone.PHOTOGRAPHS[5]))
    for kind in (*phone.PHOTOGRAPHS[1:], tmp_path / "phone.jpg", image):
        assert [caption.text for caption in captioner.caption(kind)] == [c.text for c in first]
        difference = np.linalg.norm(captioner.encode(kind) - features)
        assert difference < 0.15 * np.linalg.norm(features)  # Pillow's decoder is another one


def test_words_and_evidence_of_a_caption(captioner, photo):
    caption = captioner.caption(photo, n=1)[0]
    assert [word.text for word in caption.words] == [*caption.text.split(), schema.END]
    np.testing.assert_allclose(sum(w.log_prob for w in caption.words), caption.log_prob, rtol=1e-4)
    colour = next(word for word in caption.words if word.text == "red")
    assert colour.evidence > 1 > max(w.evidence for w in caption.words if w.text in ("a", "is"))


def test_captions_continue_a_prefix(captioner, photo):
    captions = captioner.caption(photo, prefix="Everything")
    assert captions[0].text == "Everything is red here"
    assert all(caption.text.startswith("Everything") for caption in captions)


def test_a_bad_image_does_not_lose_the_others(captioner, photo, tmp_path):
    (tmp_path / "notes.jpg").write_text("no image")
    images = [photo, tmp_path / "missing.jpg", tmp_path / "notes.jpg", np.zeros(7), 3, photo]
    results = captioner.caption(images)
    assert results[0] == results[5] != []
    assert [bool(result) for result in results] == [True, False, False, False, False, True]
    assert all(isinstance(result, Unreadable) for result in results[1:5])
    reasons = [result.reason for result in results[1:5]]
    for reason, words in zip(
        reasons, ("missing.jpg: No such file", "notes.jpg: no image", "takes 1280", "An image is"),
        strict=True,
    ):  # fmt: skip
        assert words in reason
    for image in images[1:5]:
        with pytest.raises(UserError):
            captioner.caption(image)
    scores = captioner.score(images, [f"sentence {i}" for i in range(6)])
    assert [isinstance(score, Score) for score in scores] == [True, *[False] * 4, True]


def test_scores_are_those_of_the_model(plain, tiny_job):
    features = np.zeros((2, tiny.FEATURE_SIZE), np.float32)
    features[0, [RED, 3]] = features[1, [BLUE, 4]] = 1
    same, other = plain.score(features, ["a red dog", "a red dog"])
    assert same.log_prob > other.log_prob and same.perplexity < other.perplexity
    assert same.num_unknown == 0 and [w.text for w in same.words] == ["a", "red", "dog", "</s>"]
    np.testing.assert_allclose(sum(word.log_prob for word in same.words), same.log_prob, rtol=1e-4)
    assert plain.score(features[0], "a red dog") == plain.score([features[0]], "a red dog")[0]
    several = plain.score(features[0], ["a red dog", "a zyx"])
    assert several[0].log_prob == pytest.approx(same.log_prob, rel=1e-5)
    assert several[1].num_unknown == 1
    with pytest.raises(UserError, match="`sentences` must be one for every image; received 3"):
        plain.score(features, ["a", "b", "c"])


def test_texts_of_too_many_words_are_refused(plain, tiny_job):
    features = np.ones(tiny.FEATURE_SIZE, np.float32)
    for captioner in (plain, Captioner.load(tiny_job)):
        assert captioner.max_text_words == 200
        for text in ("a " * 201, "x" * 2_000_000):
            with pytest.raises(UserError, match="A sentence must have at most 200 words"):
                captioner.score(features, text)
            good, long, other = captioner.score(features, ["a dog", text, "a cat"])
            assert isinstance(good, Score) and isinstance(other, Score)
            assert isinstance(long, Unreadable)
            for ask in (captioner.caption, captioner.next_words):
                with pytest.raises(UserError, match="`prefix` must have at most 200 words"):
                    ask(features, text)
        assert len(captioner.score(features, "a " * 200).words) == 201


def test_next_words_are_probabilities(plain):
    features = np.zeros(tiny.FEATURE_SIZE, np.float32)
    features[[RED, 3]] = 1
    words = plain.next_words(features, "a red", k=2)
    assert len(words) == 2 and words[0][0] == "dog" and 0.2 < words[0][1] <= 1
    assert words[0][1] > words[1][1]
    assert len(plain.next_words([features] * 3, "a")) == 3


def test_more_images_than_a_batch(plain):
    features = np.random.default_rng(0).random((70, tiny.FEATURE_SIZE), np.float32)
    together = plain.caption(features)
    assert len(together) == 70
    assert together[69] == plain.caption(features[64:])[5]


def test_a_run_directory_and_a_folder_of_versions_say_the_same(models, tiny_job):
    features = np.zeros(tiny.FEATURE_SIZE, np.float32)
    features[[GREEN, 5]] = 1
    exported = Captioner.load(models / "plain").caption(features)
    run = Captioner.load(tiny_job, beam=3, max_words=10).caption(features)
    assert [c.text for c in run] == [c.text for c in exported]
    np.testing.assert_allclose([c.log_prob for c in run], [c.log_prob for c in exported], rtol=1e-4)


def test_a_run_with_an_encoder_takes_photographs(photo_job, photo):
    assert "red" in Captioner.load(photo_job).caption(photo)[0].text


def test_what_cannot_be_loaded_is_named(models, tmp_path, plain, photo):
    with pytest.raises(UserError, match="holds neither a SavedModel"):
        Captioner.load(tmp_path)
    with pytest.raises(UserError, match="`beam` was fixed when"):
        Captioner.load(models / "plain" / "1", beam=3)
    with pytest.raises(UserError, match="no image encoder: give features"):
        plain.caption(photo)


def test_importing_the_package_loads_no_tensorflow():
    code = (
        "import sys, time; begin = time.perf_counter(); import mrnn_tf; "
        "assert time.perf_counter() - begin < 0.5; assert 'tensorflow' not in sys.modules; "
        "assert 'Captioner' in dir(mrnn_tf); mrnn_tf.UserError; "
        "assert 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(hasattr(mrnn_tf, name) for name in mrnn_tf.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = mrnn_tf.nothing


def test_the_four_lines_of_the_readme(monkeypatch, tmp_path, capsys):
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    block = readme[readme.index("    import mrnn_tf\n") :].split("\n\n")[0]
    assert len(block.splitlines()) == 4
    monkeypatch.chdir(tmp_path)
    Image.fromarray(skimage.data.chelsea()).save(tmp_path / "photo.jpg")
    exec(textwrap.dedent(block), {})
    assert "cat" in capsys.readouterr().out.splitlines()[0]

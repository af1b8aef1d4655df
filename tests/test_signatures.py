"""The exported signatures, called as a server calls them."""

import io
import json
import time

import memory
import numpy as np
import pytest
import tensorflow as tf
import tiny
from PIL import Image

from mrnn_tf import schema
from mrnn_tf.data import records
from mrnn_tf.retrieval.index import Index
from mrnn_tf.rows import successes

MISSING = schema.MISSING_LOG_PROB
N, K, T = 3, 10, 11
LONGEST = 200  # words of a sentence or a prefix


@pytest.fixture(scope="module")
def photo(models):
    return tf.saved_model.load(str(models / "mrnn" / "1"))


@pytest.fixture(scope="module")
def plain(models):
    return tf.saved_model.load(str(models / "plain" / "1"))


def call(loaded, signature, **inputs):
    outputs = loaded.signatures[signature](**{k: tf.constant(v) for k, v in inputs.items()})
    return {name: value.numpy() for name, value in outputs.items()}


def features(*things):
    """Features as those of the tiny dataset; `None` makes a row of zeros."""
    rows = np.zeros((len(things), tiny.FEATURE_SIZE), np.float32)
    for row, thing in zip(rows, things, strict=True):
        if thing is not None:
            row[thing[0]] = row[3 + thing[1]] = 1
    return rows


def encoded(mode, size=(30, 20), kind="PNG", colour="blue"):
    content = io.BytesIO()
    Image.new("RGB", size, colour).convert(mode).save(content, kind)
    return content.getvalue()


def test_names_types_and_shapes_are_those_of_the_contract(photo, plain):
    strings, unknown = tf.string, None
    decoded = {
        "captions": (strings, [unknown, N]), "log_probs": (tf.float32, [unknown, N]),
        "words": (strings, [unknown, N, T]), "word_log_probs": (tf.float32, [unknown, N, T]),
        "word_evidence": (tf.float32, [unknown, N, T]),
    }  # fmt: skip
    sentence = {
        "log_prob": (tf.float32, [unknown]), "perplexity": (tf.float32, [unknown]),
        "num_words": (tf.int32, [unknown]), "num_unknown": (tf.int32, [unknown]),
        "word_log_probs": (tf.float32, [unknown, LONGEST + 1]),
    }  # fmt: skip
    captions = {name: decoded[name] for name in ("captions", "log_probs")}
    next_word = {"words": (strings, [unknown, K]), "log_probs": (tf.float32, [unknown, K])}
    encoding = {"features": (tf.float32, [unknown, 1280]), "refined": (tf.float32, [unknown, 24])}
    image = {"image_bytes": (strings, [unknown])}

    def of(size, text):
        return {"features": (tf.float32, [unknown, size]), text: (strings, [unknown])}

    def contract(size):
        return {
            "beam_decode": (of(size, "prefix"), decoded),
            "next_word": (of(size, "prefix"), next_word),
            "sentence_log_prob": (of(size, "sentences"), sentence),
            "caption_examples": ({"examples": (strings, [unknown])}, captions),
            "sentence_vector": (
                {"sentences": (strings, [unknown])}, {"vectors": (tf.float32, [unknown, 24])},
            ),
            "score_images": (
                of(size, "sentences"), {"log_probs": (tf.float32, [unknown, unknown])},
            ),
            "score_projections": (
                {"projections": (tf.float32, [unknown, 24]), "sentences": (strings, [unknown])},
                {"log_prob": (tf.float32, [unknown])},
            ),
            "model_info": ({"keys": (strings, [unknown])}, {"values": (strings, [unknown])}),
        }  # fmt: skip

    def found(loaded):
        return {
            name: tuple(
                {each.name: (each.dtype, each.shape.as_list()) for each in specs}
                for specs in (
                    function.structured_input_signature[1].values(),
                    [tf.TensorSpec(v.shape, v.dtype, k) for k, v in
                     function.structured_outputs.items()],
                )
            )
            for name, function in loaded.signatures.items()
        }  # fmt: skip

    of_photos = {**contract(1280), "caption": (image, captions), "encode_image": (image, encoding)}
    assert found(photo) == {**of_photos, "serving_default": of_photos["caption"]}
    of_features = contract(tiny.FEATURE_SIZE)
    assert found(plain) == {**of_features, "serving_default": of_features["beam_decode"]}


def test_photographs_of_any_kind_and_size_become_sentences(photo):
    contents = [
        tiny.picture(2),
        encoded("RGB", (30, 20), "JPEG"),
        encoded("RGBA", (301, 17)),
        encoded("CMYK", (64, 64), "JPEG"),
        encoded("P", (9, 400)),
    ]
    captions = call(photo, "caption", image_bytes=contents)["captions"]
    for best in captions[:, 0]:
        assert best in (b"a blue picture", b"everything is blue here")
    grey = [encoded("L", kind="JPEG"), encoded("I;16"), encoded("LA")]
    found = call(photo, "caption", image_bytes=grey)
    assert (found["log_probs"][:, 0] > -100).all() and all(found["captions"][:, 0])


def test_bad_rows_leave_the_others_alone(photo):
    good, empty, text, cut = tiny.picture(0), b"", b"no image", tiny.picture(1)[:40]
    found = call(photo, "caption", image_bytes=[empty, good, text, cut])
    alone = call(photo, "caption", image_bytes=[good])
    assert found["captions"][1].tolist() == alone["captions"][0].tolist()
    np.testing.assert_allclose(found["log_probs"][1], alone["log_probs"][0], atol=1e-5)
    for row in (0, 2, 3):
        assert found["captions"][row].tolist() == [b""] * N
        assert found["log_probs"][row].tolist() == [np.float32(MISSING)] * N
    encoding = call(photo, "encode_image", image_bytes=[text, good])
    assert not encoding["features"][0].any() and not encoding["refined"][0].any()
    assert encoding["features"][1].any()
    again = call(photo, "beam_decode", features=encoding["features"], prefix=["", ""])
    assert again["captions"][1].tolist() == alone["captions"][0].tolist()
    assert again["captions"][0].tolist() == [b""] * N


def example(**features):
    kinds = {bytes: ("bytes_list", tf.train.BytesList), float: ("float_list", tf.train.FloatList),
             int: ("int64_list", tf.train.Int64List)}  # fmt: skip
    feature = {}
    for name, values in features.items():
        field, kind = kinds[type(values[0])]
        feature[f"image/{name}"] = tf.train.Feature(**{field: kind(value=values)})
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def test_examples_are_captioned_by_features_or_else_by_image(photo, plain):
    made = call(photo, "encode_image", image_bytes=[tiny.picture(0)])["features"][0].tolist()
    asked = call(photo, "caption", image_bytes=[tiny.picture(0), tiny.picture(2)])
    record = records.serialize("id", ["a caption"], None, tiny.picture(2))
    rows = [example(features=made), record, example(features=made, encoded=[tiny.picture(2)])]
    found = call(photo, "caption_examples", examples=rows)
    for row, expected in enumerate((0, 1, 0)):
        assert found["captions"][row].tolist() == asked["captions"][expected].tolist()
        np.testing.assert_allclose(found["log_probs"][row], asked["log_probs"][expected], atol=1e-3)

    vectors = features((0, 1), (2, 3))
    rows = [records.serialize(str(i), features=vector) for i, vector in enumerate(vectors)]
    found = call(plain, "caption_examples", examples=[*rows, record])
    expected = call(plain, "beam_decode", features=vectors, prefix=["", ""])
    assert found["captions"][:2].tolist() == expected["captions"].tolist()
    np.testing.assert_allclose(found["log_probs"][:2], expected["log_probs"], atol=1e-4)
    assert found["captions"][2].tolist() == [b""] * N  # it has no encoder


def test_bad_examples_leave_the_others_alone(photo, plain):
    good = records.serialize("id", encoded=tiny.picture(1))
    bad = [
        b"", b"no example", good[:-9], example(encoded=[b"no image"]), example(features=[1.0, 2.0]),
        example(features=[1.0], encoded=[tiny.picture(1)]), example(features=[1] * 1280),
        example(encoded=[tiny.picture(1)] * 2), example(features=[float("nan")] * 1280),
        example(features=[0.0] * 1280), example(other=[1]),
    ]  # fmt: skip
    found = call(photo, "caption_examples", examples=[*bad, good])
    assert b"green" in found["captions"][-1, 0] and found["log_probs"][-1, 0] > -50
    assert found["captions"][:-1].tolist() == [[b""] * N] * len(bad)
    assert (found["log_probs"][:-1] == np.float32(MISSING)).all()
    good = records.serialize("id", features=features((0, 1))[0])
    found = call(plain, "caption_examples", examples=[*bad, good])
    assert found["captions"][-1, 0] and not found["captions"][:-1].any()
    nothing = call(photo, "caption_examples", examples=np.zeros(0, "S"))
    assert nothing["captions"].shape == nothing["log_probs"].shape == (0, N)


def test_more_images_than_a_chunk(photo):
    contents = [tiny.picture(row % 3) if row % 4 else b"" for row in range(70)]
    found = call(photo, "caption", image_bytes=contents)["captions"]
    for row, captions in enumerate(found):
        assert tiny.COLOURS[row % 3].encode() in captions[0] if row % 4 else not captions.any()
    assert call(photo, "encode_image", image_bytes=np.zeros(0, "S"))["features"].shape == (0, 1280)
    assert not call(photo, "encode_image", image_bytes=[b""] * 40)["features"].any()


def test_features_that_are_no_numbers_have_no_sentences_and_no_words(plain):
    bad = features((0, 0), None, (0, 0), (1, 1))
    bad[0, 5] = np.nan
    bad[2, 1] = np.inf
    texts = ["a red dog"] * 4
    found = call(plain, "beam_decode", features=bad, prefix=texts)
    assert found["captions"][:3].tolist() == [[b""] * N] * 3
    assert (found["log_probs"][:3] == np.float32(MISSING)).all()
    assert not found["words"][:3].any() and not found["word_log_probs"][:3].any()
    words = call(plain, "next_word", features=bad, prefix=texts)
    assert not words["words"][:3].any() and (words["log_probs"][:3] == np.float32(MISSING)).all()
    scored = call(plain, "sentence_log_prob", features=bad, sentences=texts)
    assert (scored["log_prob"][:3] == np.float32(MISSING)).all()
    assert np.isfinite(scored["perplexity"]).all() and scored["num_words"].tolist() == [4] * 4
    for outputs in (found, words, scored):
        for value in outputs.values():
            assert value.dtype.kind == "O" or np.isfinite(value).all()
    assert scored["log_prob"][3] > -50 and found["captions"][3, 0] and words["words"][3, 0]


def test_a_prefix_stays_as_typed_and_is_not_charged(plain):
    images = features((0, 1), (0, 1), (0, 1), (0, 1))
    prefix = ["There IS", "", " There is a red cat here ", "zebras!"]
    found = call(plain, "beam_decode", features=images, prefix=prefix)
    captions = [row[0].decode() for row in found["captions"]]
    assert captions[0].startswith("There IS a red cat")
    assert captions[1] and captions[1] == captions[1].strip()
    assert captions[2] == "There is a red cat here"
    assert captions[3].startswith("zebras! ")
    words = [word for word in found["words"][0, 0].tolist() if word]
    assert words[-1] == b"</s>" and " ".join(w.decode() for w in words[:-1]) == captions[0][9:]
    totals = found["word_log_probs"].sum(axis=-1)
    there = found["log_probs"] > -1e30
    np.testing.assert_allclose(found["log_probs"][there], totals[there], atol=1e-4)
    assert b"<unk>" not in b" ".join(found["words"].ravel())
    # The picture, not the language, says which colour and which thing.
    evidence = dict(zip(found["words"][0, 0], found["word_evidence"][0, 0], strict=True))
    assert min(evidence[b"red"], evidence[b"cat"]) > 0.5 > abs(evidence[b"a"])


def test_next_words_are_a_distribution_without_the_unknown_word(plain):
    found = call(plain, "next_word", features=features((2, 3), (2, 3)), prefix=["a", "a blue boat"])
    assert found["words"][0, 0] == b"blue"
    assert found["words"][1, 0] in (b"</s>", b"here", b"today")
    assert b"</s>" in found["words"][1] and b"<unk>" not in found["words"]
    assert (np.diff(found["log_probs"]) <= 0).all()
    total = np.exp(found["log_probs"]).sum(axis=1)
    assert ((total > 0.8) & (total < 1.0)).all()


def test_sentences_are_scored_as_a_sum_over_their_words_and_the_end(plain):
    sentences = ["A red dog.", "", "a qwxz dog", "A GREEN cat!"]
    found = call(plain, "sentence_log_prob", features=features(*[(0, 0)] * 4), sentences=sentences)
    assert found["num_words"].tolist() == [4, 1, 4, 4]
    assert found["num_unknown"].tolist() == [0, 0, 1, 0]
    assert found["word_log_probs"].shape == (4, LONGEST + 1)
    assert not found["word_log_probs"][:, 4:].any() and not found["word_log_probs"][1, 1:].any()
    np.testing.assert_allclose(found["log_prob"], found["word_log_probs"].sum(axis=1), rtol=1e-5)
    expected = np.exp(-found["log_prob"] / found["num_words"])
    np.testing.assert_allclose(found["perplexity"], expected, rtol=1e-4)
    assert found["log_prob"][0] > max(found["log_prob"][1:])


TEXTS = {"sentence_log_prob": "sentences", "beam_decode": "prefix", "next_word": "prefix"}
ORDINARY = ["a red dog", "Zwei qwxz am See, größer", ""]
LONG = ["a " * (LONGEST + 1), "a red dog. " * 190_000, "größer " * 250_000, "x" * 2_000_000]


@memory.needed
@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_too_many_words_cost_nothing_and_leave_the_others_alone(plain, name):
    def ask(texts):
        return call(plain, name, features=features(*[(0, 0)] * len(texts)), **{TEXTS[name]: texts})

    def seconds(texts):
        start = time.perf_counter()
        ask(texts)
        return time.perf_counter() - start

    alone, batch = ask(ORDINARY), [ORDINARY[0], *LONG, *ORDINARY[1:]]
    growth, found = memory.peak_growth(lambda: ask(batch))
    assert growth < 100
    is_short = np.array([text in ORDINARY for text in batch])
    for output, value in alone.items():
        if value.dtype.kind == "O":
            assert found[output][is_short].tolist() == value.tolist()
        else:
            np.testing.assert_allclose(found[output][is_short], value, rtol=1e-5, atol=1e-5)
        missing = np.float32({"perplexity": -MISSING}.get(output, MISSING))
        is_total = output in ("log_prob", "log_probs", "perplexity")
        no_value = b"" if value.dtype.kind == "O" else missing if is_total else 0
        assert (found[output][~is_short] == no_value).all(), output
    ordinary, long = (min(seconds(texts) for _ in range(5)) for texts in (ORDINARY, batch))
    assert long < 5 * ordinary + 0.05  # to make a tensor of 6 MB takes some milliseconds


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_as_many_words_as_allowed_are_read(plain, name):
    texts = ["a " * LONGEST, "größer, " * LONGEST]
    found = call(plain, name, features=features((0, 0), (0, 0)), **{TEXTS[name]: texts})
    best = found["log_prob"] if name == "sentence_log_prob" else found["log_probs"][:, 0]
    assert (best > -1e5).all()
    if name == "sentence_log_prob":
        assert found["num_words"].tolist() == [LONGEST + 1] * 2 and found["word_log_probs"].all()


def test_parts_of_a_batch_are_as_wide_as_the_whole(plain):
    """As TF Serving joins the parts of a batch that it has split."""
    texts = ["a dog", "there is a red dog here today", "", LONG[0]]
    whole = call(plain, "sentence_log_prob", features=features(*[(0, 0)] * 4), sentences=texts)
    parts = [
        call(plain, "sentence_log_prob", features=features((0, 0)), sentences=[text])
        for text in texts
    ]
    for name, value in whole.items():
        joined = np.concatenate([part[name] for part in parts])
        np.testing.assert_allclose(joined, value, rtol=1e-5, atol=1e-5)


def test_no_rows_are_no_error(plain):
    nothing = np.zeros((0, tiny.FEATURE_SIZE), np.float32)
    found = call(plain, "beam_decode", features=nothing, prefix=np.zeros(0, "S"))
    assert found["captions"].shape == (0, N)
    found = call(plain, "sentence_log_prob", features=nothing, sentences=np.zeros(0, "S"))
    assert found["word_log_probs"].shape == (0, LONGEST + 1)


def test_assets_tell_what_the_model_is(models):
    assets = models / "mrnn" / "1" / "assets"
    facts = json.loads((assets / "config.json").read_text())
    assert facts["encoder"]["identity"].startswith("efficientnet_lite0:")
    assert facts["settings"] == {"beam": N, "top_k": K, "max_words": T - 1, "length_power": 0.7,
                                 "max_pixels": 50 << 20, "max_text_words": LONGEST}  # fmt: skip
    assert (assets / "vocabulary.txt").read_text().splitlines()[:4] == list(schema.RESERVED_WORDS)


def test_images_keep_their_order_while_they_are_decoded_in_parallel():
    """Or equal batches would have features that differ in their last bits."""

    def work(size):
        tf.debugging.assert_positive(size)
        return tf.reduce_sum(tf.random.stateless_normal([size], [0, 0]))

    sizes = tf.constant([10_000_000, 1, 0, 1, 1])
    rows, _ = tf.function(lambda values: successes(work, values))(sizes)
    assert rows.numpy().tolist() == [0, 1, 3, 4]


def test_every_sentence_is_scored_by_every_image(plain):
    images = features((0, 0), None, (1, 2))
    images[0, 0] = np.nan
    images = np.concatenate([images, features((2, 1))])
    sentences = ["a red dog", "", "zxqv", "a " * (LONGEST + 1)]
    found = call(plain, "score_images", features=images, sentences=sentences)["log_probs"]
    assert found.shape == (4, 4)
    for row, image in enumerate(images):
        each = call(
            plain, "sentence_log_prob", features=np.repeat(image[np.newaxis], 4, axis=0),
            sentences=sentences,
        )["log_prob"]  # fmt: skip
        np.testing.assert_allclose(found[row], each, rtol=1e-4)
    assert (found > MISSING).tolist() == [[False] * 4, [False] * 4, *[[True] * 3 + [False]] * 2]


def test_vectors_rank_images_about_as_exact_scores_do(plain, tiny_index):
    index = Index.load(str(tiny_index / "assets.extra" / "index"))
    images, sentence = np.array(index.images), tiny.captions_of(0, 0)[0]
    [vector] = call(plain, "sentence_vector", sentences=[sentence])["vectors"]
    inputs = {"projections": images, "sentences": [sentence] * len(images)}
    exact = call(plain, "score_projections", **inputs)["log_prob"]
    best = np.argsort(-exact)[:3]
    assert {*best} <= {*np.argsort(-images @ vector)[:12]}
    nothing = call(plain, "sentence_vector", sentences=["", "zxqv", "a " * 201, sentence])
    assert nothing["vectors"].any(axis=1).tolist() == [False, False, False, True]
    images[1] = np.nan
    inputs = {"projections": images[:3], "sentences": ["a " * 201, sentence, sentence]}
    found = call(plain, "score_projections", **inputs)["log_prob"]
    assert (found > MISSING).tolist() == [False, False, True]
    assert found[2] == pytest.approx(exact[2], rel=1e-5)

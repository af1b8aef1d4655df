import dataclasses
import json

import numpy as np
import pytest
import tiny

from mrnn_tf.retrieval.index import NO_IMAGE, Entries, Header, Index, Texts

SIZE = 5


def entries(images=3, owners=(0, 2, NO_IMAGE, 2), longest=3, seed=0):
    rng = np.random.default_rng(seed)
    count = len(owners)
    return Entries(
        ids=Texts.of([f"{seed}-{i}".encode() for i in range(images)]),
        images=rng.random((images, SIZE), np.float32),
        captions=Texts.of([f"größe {seed} {s}".encode() for s in range(count)]),
        words=rng.integers(4, 9, (count, longest), np.int32),
        vectors=rng.random((count, SIZE), np.float32),
        mean_log_probs=-rng.random(count, np.float32),
        log_marginals=-rng.random(count),
        owners=np.array(owners, np.int32),
    )


def index(of: Entries, model="abc"):
    header = Header(
        model, "words", "encoder", 0, "train", 100,
        len(of.ids), len(of.captions), of.words.shape[1], SIZE, 2, "0",
    )  # fmt: skip
    mean, sample = np.ones(SIZE, np.float32), np.ones((2, SIZE), np.float32)
    return Index(**vars(of), mean=mean, sample=sample, header=header)


def assert_same(one: Entries, other: Entries):
    for name, array in one.arrays().items():
        found = other.arrays()[name]
        assert found.dtype == array.dtype, name
        np.testing.assert_array_equal(found, array, name)


def test_texts_are_a_sequence_of_bytes():
    texts = Texts.of([b"a", b"", "größe".encode(), b"\0"])
    assert list(texts) == [b"a", b"", "größe".encode(), b"\0"]
    assert (texts[0], texts[1], texts[-1], len(texts)) == (b"a", b"", b"\0", 4)
    assert next(reversed(texts)) == b"\0"
    assert list(Texts.of([])) == []


def test_parts_are_joined_in_order_and_keep_their_owners():
    one, two = entries(), entries(1, (0,), 5, seed=1)
    both = Entries.join([one, two])
    assert list(both.ids) == [b"0-0", b"0-1", b"0-2", b"1-0"]
    assert both.captions[4].decode() == "größe 1 0"
    assert both.owners.tolist() == [0, 2, NO_IMAGE, 2, 3]
    assert both.words.shape == (5, 5) and not both.words[:4, 3:].any()
    np.testing.assert_array_equal(both.images[3], two.images[0])
    assert_same(Entries.join([one]), one)


def test_an_image_goes_with_its_sentences():
    left = entries().without([b"0-2"])
    assert list(left.ids) == [b"0-0", b"0-1"]
    assert [text.decode() for text in left.captions] == ["größe 0 0", "größe 0 2"]
    assert left.owners.tolist() == [0, NO_IMAGE]
    left = entries().without([b"0-0", b"0-1"])
    assert left.owners.tolist() == [0, NO_IMAGE, 0]
    assert_same(entries().without([]), entries())


CASES = {
    "all": entries(),
    "no image": entries(0, (NO_IMAGE, NO_IMAGE)),
    "no sentence": entries(2, ()),
    "nothing": entries(0, ()),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", ["local", "remote"])
def test_what_is_saved_is_loaded(tmp_path, case, place):
    folder = str(tmp_path) if place == "local" else f"ram://index/{case.replace(' ', '_')}"
    saved = index(CASES[case])
    saved.save(folder)
    loaded = Index.load(folder, "abc")
    assert loaded.header == saved.header
    assert_same(saved, loaded)
    assert isinstance(loaded.images, np.memmap) == (place == "local")


def test_vectors_of_earlier_releases_become_smaller(tmp_path):
    saved = index(entries())
    saved.save(str(tmp_path))
    assert np.load(tmp_path / "vectors.npy").dtype == np.float16
    tiny.edit(tmp_path / "header.json")
    vectors = np.random.default_rng(0).random(saved.vectors.shape, np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    loaded = Index.load(str(tmp_path))
    assert loaded.vectors.dtype == np.float16
    np.testing.assert_allclose(loaded.vectors, vectors, rtol=1e-3)
    assert Entries.join([loaded, saved]).vectors.dtype == np.float16
    np.save(tmp_path / "vectors.npy", vectors.astype(np.float64))
    with pytest.raises(ValueError, match=r"vectors\.npy holds float64 .* float16"):
        Index.load(str(tmp_path))


def test_the_index_of_another_model_is_refused(tmp_path):
    index(entries()).save(str(tmp_path))
    with pytest.raises(ValueError, match=r"index of another model: its fingerprint is abc, .*xyz"):
        Index.load(str(tmp_path), "xyz")
    tiny.edit(tmp_path / "header.json", lambda header: header.update(model={}))
    with pytest.raises(ValueError, match=r"index of another model: its fingerprint is \{\}"):
        Index.load(str(tmp_path), "xyz")


def test_a_damaged_index_is_refused(tmp_path):
    folder = str(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holds no header\.json: it is not an index"):
        Index.load(folder)
    whole = index(entries())
    dataclasses.replace(whole, images=whole.images[:2]).save(folder)
    with pytest.raises(ValueError, match=r"images\.npy holds float32 \[2, 5\], .* \[3, 5\]"):
        Index.load(folder)
    dataclasses.replace(whole, log_marginals=np.float32(whole.log_marginals)).save(folder)
    with pytest.raises(ValueError, match=r"log_marginals\.npy holds float32 .* float64"):
        Index.load(folder)
    whole.save(folder)
    tiny.edit(tmp_path / "header.json")
    (tmp_path / "captions.content.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"captions\.content\.npy cannot be read"):
        Index.load(folder)
    whole.save(folder)
    tiny.edit(tmp_path / "header.json")
    (tmp_path / "words.npy").write_bytes(b"\x93NUMPY\x01\0\x04\0{(: ")
    with pytest.raises(ValueError, match=r"words\.npy cannot be read: .*no readable NumPy file"):
        Index.load(folder)
    whole.save(folder)
    (tmp_path / "words.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"words\.npy is missing: make the index again"):
        Index.load(folder)
    tiny.edit(tmp_path / "header.json")
    with pytest.raises(ValueError, match=r"words\.npy cannot be read"):
        Index.load(folder)
    for header in (json.dumps({"model": "abc"}), "[" * 100_000):
        (tmp_path / "header.json").write_text(header)
        with pytest.raises(ValueError, match="the header of an index"):
            Index.load(folder)

import numpy as np
import pytest

from mrnn_tf.data.features import FeatureTable


@pytest.fixture
def files(tmp_path):
    array = np.arange(12, dtype=np.float16).reshape(3, 4)
    np.save(tmp_path / "f.npy", array)
    (tmp_path / "n.txt").write_text("a.jpg\r\nb.jpg\r\nc.jpg\r\n")
    return tmp_path, array


def test_rows_by_name(files):
    folder, array = files
    table = FeatureTable([str(folder / "f.npy")], str(folder / "n.txt"))
    assert table.parts == [4]
    np.testing.assert_array_equal(table.features([table.row("b.jpg")]), array[1:2])
    assert table.row("d.jpg") is None
    table.check_finite()


def test_files_are_joined_row_by_row(files):
    folder, array = files
    np.save(folder / "g.npy", np.float64([[7.0], [8.0], [9.0]]))
    paths = [str(folder / "f.npy"), str(folder / "g.npy")]
    table = FeatureTable(paths, str(folder / "n.txt"))
    assert table.parts == [4, 1]
    joined = table.features([2, 0])
    assert joined.dtype == np.float32
    np.testing.assert_array_equal(joined, [[*array[2], 9.0], [*array[0], 7.0]])
    alone, swapped = (FeatureTable(p, str(folder / "n.txt")) for p in (paths[:1], paths[::-1]))
    assert len({t.fingerprint() for t in (table, alone, swapped)}) == 3


def test_a_bad_file_among_several_is_named(files):
    folder, array = files
    first, names = str(folder / "f.npy"), str(folder / "n.txt")
    np.save(folder / "short.npy", array[:2])
    with pytest.raises(ValueError, match=r"`features` .*short\.npy has 2 rows, but .* 3 names"):
        FeatureTable([first, str(folder / "short.npy")], names)
    array[2, 0] = np.inf
    np.save(folder / "inf.npy", array)
    with pytest.raises(ValueError, match=r"inf\.npy holds NaN or infinity in row 2 \(c\.jpg\)"):
        FeatureTable([first, str(folder / "inf.npy")], names).check_finite()
    for name, listed in {"x": ["a", "b", "c"], "y": ["a", "c", "b"]}.items():
        np.savez(folder / f"{name}.npz", features=array, names=listed)
    with pytest.raises(ValueError, match=r"x\.npz and .*y\.npz must name the same rows"):
        FeatureTable([str(folder / "x.npz"), str(folder / "y.npz")])


def test_an_archive_may_hold_the_names(files):
    folder, array = files
    np.savez(folder / "f.npz", features=array, names=["a.jpg", "b.jpg", "c.jpg"])
    assert FeatureTable([str(folder / "f.npz")]).row("c.jpg") == 2


def test_bad_tables_are_refused_in_one_sentence(files):
    folder, array = files
    features, names = str(folder / "f.npy"), str(folder / "n.txt")
    with pytest.raises(FileNotFoundError, match=r"`features` .* does not exist"):
        FeatureTable([features + "x"], names)
    with pytest.raises(FileNotFoundError, match=r"`names` .* does not exist"):
        FeatureTable([features], names + "x")
    with pytest.raises(ValueError, match="needs `names`"):
        FeatureTable([features])
    (folder / "short.txt").write_text("a.jpg\n")
    with pytest.raises(ValueError, match=r"has 3 rows, but .* has 1 names"):
        FeatureTable([features], str(folder / "short.txt"))
    (folder / "twice.txt").write_text("a.jpg\na.jpg\nb.jpg\n")
    with pytest.raises(ValueError, match=r"holds a.jpg twice"):
        FeatureTable([features], str(folder / "twice.txt"))
    np.save(folder / "flat.npy", array[0])
    with pytest.raises(ValueError, match=r"float array of shape \[images, size\]"):
        FeatureTable([str(folder / "flat.npy")], names)
    (folder / "text.npy").write_text("no array")
    with pytest.raises(ValueError, match="no readable NumPy file"):
        FeatureTable([str(folder / "text.npy")], names)
    (folder / "latin.txt").write_bytes(b"a.jpg\nb.jpg\n\xe9.jpg\n")
    with pytest.raises(ValueError, match=r"latin\.txt is not a text in UTF-8"):
        FeatureTable([features], str(folder / "latin.txt"))
    np.savez(folder / "half.npz", features=array, names=["a.jpg", "b.jpg", "\ud800.jpg"])
    with pytest.raises(ValueError, match=r"half\.npz has a name that is not Unicode"):
        FeatureTable([str(folder / "half.npz")])
    array[1, 2] = np.nan
    np.save(folder / "nan.npy", array)
    with pytest.raises(ValueError, match=r"NaN or infinity in row 1 \(b.jpg\)"):
        FeatureTable([str(folder / "nan.npy")], names).check_finite()


def test_what_is_infinite_in_32_bits_is_refused(tmp_path):
    (tmp_path / "n.txt").write_text("a.jpg\nb.jpg\n")
    for value in (np.inf, 1e39):
        np.save(tmp_path / "f.npy", np.array([[0.0, 1.0], [value, 1.0]]))
        table = FeatureTable([str(tmp_path / "f.npy")], str(tmp_path / "n.txt"))
        with pytest.raises(ValueError, match=r"NaN or infinity in row 1 \(b\.jpg\)"):
            table.check_finite()

import json

import keras
import numpy as np
import pytest

from mrnn_tf.errors import UserError
from mrnn_tf.vision import parameters


def test_the_fingerprint_is_of_values_not_of_names():
    def model(name, value):
        dense = keras.layers.Dense(
            2, name=name, kernel_initializer=keras.initializers.Constant(value)
        )
        return keras.Sequential([keras.Input((3,)), dense])

    assert parameters.sha256(model("a", 1.0)) == parameters.sha256(model("b", 1.0))
    assert parameters.sha256(model("a", 1.0)) != parameters.sha256(model("a", 2.0))


def test_bad_weights_files_are_named(tmp_path):
    def small(units):
        dense = keras.layers.Dense(units)
        return keras.Sequential([keras.Input((4,)), dense], name="small")

    small(3).save_weights(tmp_path / "other.weights.h5")
    small(3).save(tmp_path / "other.h5")
    for name in ("h5", "weights.h5", "keras", "txt", "npy", "npz", "safetensors"):
        name = f"junk.{name}"
        (tmp_path / name).write_text("no weights")
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match=f"{path.name} does not hold weights of small: .*\\.$"):
            parameters.load(small(2), str(path))
    with pytest.raises(FileNotFoundError, match=r"absent\.h5 does not exist"):
        parameters.load(small(2), str(tmp_path / "absent.h5"))


def test_a_damaged_hdf5_file_is_named(tmp_path):
    dense = keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((4,)), dense], name="small")
    path = tmp_path / "w.weights.h5"
    model.save_weights(path)
    content = path.read_bytes()
    for signature in (b"SNOD", b"HEAP", b"TREE"):  # h5py raises RuntimeError or KeyError
        path.write_bytes(content.replace(signature, b"XXXX"))
        with pytest.raises(ValueError, match=r"w\.weights\.h5 does not hold weights of small: "):
            parameters.load(model, str(path))


def dense(value: float = 0.0) -> keras.Model:
    layers = [keras.layers.Dense(units, kernel_initializer="ones", name=name)
              for units, name in ((3, "a"), (1, "b"))]  # fmt: skip
    model = keras.Sequential([keras.Input((2,)), *layers], name="small")
    model.get_layer("b").bias.assign([value])
    return model


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8"])
def test_a_vector_holds_all_weights_in_the_order_of_the_model(tmp_path, dtype):
    path, model = str(tmp_path / "w.npy"), dense()
    np.save(path, np.arange(13).astype(dtype))
    parameters.load(model, path)
    wanted = [[[0, 1, 2], [3, 4, 5]], [6, 7, 8], [[9], [10], [11]], [12]]
    assert [weights.tolist() for weights in model.get_weights()] == wanted


def test_a_vector_of_other_weights_is_refused(tmp_path):
    path = str(tmp_path / "w.npy")
    for array in (np.zeros(12), np.zeros(14), np.zeros([1, 13]), np.zeros(13, int)):
        np.save(path, array)
        with pytest.raises(UserError, match=r"w\.npy does not hold .* 13 floats is wanted, got "):
            parameters.load(dense(), path)
    np.save(path, np.array([None] * 13), allow_pickle=True)
    with pytest.raises(UserError, match="no readable NumPy file without objects"):
        parameters.load(dense(), path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("ending", ["npy", "npz", "weights.h5"])
def test_nan_and_infinity_are_refused(tmp_path, ending, value):
    path, model = str(tmp_path / f"w.{ending}"), dense(value)
    if ending == "npy":
        np.save(path, np.concatenate([weights.ravel() for weights in model.get_weights()]))
    elif ending == "npz":
        np.savez(path, **{f"{w.path.removeprefix('small/')}": w.numpy() for w in model.weights})
    else:
        model.save_weights(path)
    with pytest.raises(UserError, match=rf"w\.{ending} does not hold .*b/bias has NaN or infinity"):
        parameters.load(dense(), path)


@pytest.mark.parametrize("names", [("a/kernel", "a/bias"), ("a/weights", "a/biases")])
@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_arrays_go_to_the_variables_of_their_names(tmp_path, names, ending):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="a")])
    kernel, bias = np.arange(6, dtype="<f4").reshape(2, 3), np.arange(3, dtype="<f4")
    path = str(tmp_path / f"w.{ending}")
    if ending == "npz":
        np.savez(path, **dict(zip(names, (kernel, bias), strict=True)))
    else:
        places = zip(names, ([2, 3], [3]), ([0, 24], [24, 36]), strict=True)
        entries = {n: {"dtype": "F32", "shape": s, "data_offsets": o} for n, s, o in places}
        header = json.dumps(entries).encode()
        with open(path, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + kernel.tobytes())
            file.write(bias.tobytes())
    parameters.load(model, path)
    for value, wanted in zip(model.get_weights(), (kernel, bias), strict=True):
        np.testing.assert_array_equal(value, wanted)

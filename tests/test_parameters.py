import json

import keras
import numpy as np
import pytest

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

import keras
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
    for name in ("junk.h5", "junk.weights.h5", "junk.keras", "junk.txt"):
        (tmp_path / name).write_text("no weights")
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match=f"{path.name} does not hold weights of small: .*\\.$"):
            parameters.load(small(2), str(path))
    with pytest.raises(FileNotFoundError, match=r"absent\.h5 does not exist"):
        parameters.load(small(2), str(tmp_path / "absent.h5"))

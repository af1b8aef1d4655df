import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf

# Two devices for the tests of mirrored training; must precede the first use of TensorFlow.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """Removes what a training platform would set, so that tests see a bare machine."""
    for name in list(os.environ):
        if name.startswith("AIP_") or name == "TF_CONFIG":
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """A directory with the records of the tiny dataset; read-only."""
    import tiny

    return tiny.write(str(tmp_path_factory.mktemp("tiny") / "data"))

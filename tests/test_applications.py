import keras
import numpy as np
import pytest
import skimage.data
import tensorflow as tf

from mrnn_tf.vision import applications, encoders, parameters


def test_weights_of_our_own_model_load_from_a_remote_path(mobilenet, tmp_path):
    mobilenet.model.save_weights(tmp_path / "saved.weights.h5")
    tf.io.gfile.copy(str(tmp_path / "saved.weights.h5"), "ram://saved.weights.h5")
    loaded = encoders.create("mobilenet_v2", "ram://saved.weights.h5")
    assert loaded.identity == mobilenet.identity


def test_weights_as_published_by_keras_load(tmp_path):
    published = keras.applications.MobileNetV2(weights=None, include_top=False, pooling="avg")
    path = str(tmp_path / "mobilenet_no_top.h5")
    published.save(path)
    loaded = encoders.create("mobilenet_v2", path)
    assert loaded.weights_sha256 == parameters.sha256(published)


def test_a_failed_download_names_the_flag(tmp_path):
    def constructor(**_):
        keras.utils.get_file(origin="http://127.0.0.1:9/weights.h5", cache_dir=tmp_path)

    with pytest.raises(OSError, match=r"could not be downloaded .*`encoder_weights`"):
        applications.load(constructor, 224, feature_layer=None)


@pytest.mark.slow
def test_vgg16_loads_the_published_file_and_ends_at_fc2(tmp_path):
    published = keras.applications.VGG16(weights=None)
    published.save(tmp_path / "vgg16.h5")
    fc2 = keras.Model(published.input, published.get_layer("fc2").output)
    vgg = encoders.create("vgg16", str(tmp_path / "vgg16.h5"))
    prepared = vgg.prepare(skimage.data.chelsea())
    assert vgg.feature_size == 4096
    np.testing.assert_allclose(vgg.encode(prepared[tf.newaxis]), fc2(prepared), rtol=1e-4)

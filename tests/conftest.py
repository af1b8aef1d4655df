import fcntl
import json
import os
import shutil
from pathlib import Path

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
def made_once(tmp_path_factory):
    """Makes a folder, by its name, once for all workers of pytest-xdist; nobody may change it."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make_once(name, make):
        folder, made = base / "shared" / name, base / "shared" / f"{name}.made"
        folder.parent.mkdir(exist_ok=True)
        with open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)  # what a worker has left that failed
                folder.mkdir()
                make(folder)
                made.touch()
        return folder

    return make_once


@pytest.fixture(scope="session")
def tiny_data(made_once):
    """A directory with the records of the tiny dataset; read-only."""
    import tiny

    return str(made_once("tiny", lambda folder: tiny.write(str(folder / "data"))) / "data")


@pytest.fixture(scope="session")
def tiny_job(tiny_data, made_once):
    """The directory of a run that has learned the tiny dataset; read-only."""
    from mrnn_tf.config import ModelConfig, TrainConfig
    from trainer import train

    def make(folder):
        sizes = {"embedding_1": 8, "embedding_2": 16, "recurrent": 16, "multimodal": 24}
        still = {"dropout_embedding": 0.0, "dropout_recurrent": 0.0, "dropout_multimodal": 0.0}
        model = ModelConfig(**sizes, **still)
        training = TrainConfig(epochs=16.0, batch_size=12, learning_rate=0.01, evaluate_epochs=4.0)
        job_dir = str(folder / "job")
        train.train(
            train.TrainOptions(data=tiny_data, job_dir=job_dir, model=model, train=training)
        )

    return str(made_once("tiny_job", make) / "job")


@pytest.fixture(scope="session")
def photo_job(made_once):
    """The directory of a run on photographs of one colour, by the programs; read-only."""
    import programs
    import tiny

    def make(folder):
        tiny.photographs(folder / "photos")
        data = folder / "data"
        prepare = ["--dataset=jsonl", "--source", folder / "photos", "--output", data]
        prepare += ["--min_count=1"]
        sizes = ["--embedding_1=8", "--embedding_2=16", "--recurrent=16", "--multimodal=24"]
        still = ["--dropout_embedding=0", "--dropout_recurrent=0", "--dropout_multimodal=0"]
        task = ["--data", data, "--job_dir", folder / "job", "--preset=demo", *sizes, *still]
        task += ["--epochs=20", "--batch_size=12", "--learning_rate=0.01", "--evaluate_epochs=5"]
        for module, arguments in (("trainer.prepare", prepare), ("trainer.task", task)):
            done = programs.run(folder, module, *arguments)
            assert done.code == 0, done.err

    return str(made_once("photo_job", make) / "job")


@pytest.fixture(scope="session")
def models(photo_job, tiny_job, made_once):
    """A base path with two served models: `mrnn` takes photographs, `plain` features only."""
    import programs

    def make(base):
        for name, job in (("mrnn", photo_job), ("plain", tiny_job)):
            arguments = ["--job_dir", job, "--output", base / name, "--beam=3", "--max_words=10"]
            done = programs.run(base / "logs", "export.task", *arguments)
            assert done.code == 0, done.err

    return made_once("models", make)


@pytest.fixture(scope="session")
def tiny_index(models, tiny_data, made_once):
    """A version of an index of the tiny dataset, whose shortlist holds everything."""
    import programs

    def make(folder):
        done = programs.run(
            folder, "export.index", "--model", models / "plain" / "1", "--data", tiny_data,
            "--output", folder / "index", "--sample=10", "--k=5", "--beam=3", "--neighbours=4",
        )  # fmt: skip
        assert done.code == 0, done.err

    return made_once("tiny_index", make) / "index" / "1"


@pytest.fixture(scope="session")
def searchable_models(models, photo_job, tiny_index, made_once):
    """A base path with `mrnn`, an index of pictures for it, and the tiny index as `tiny_index`."""
    import programs
    import tiny

    def make(base):
        shutil.copytree(models / "mrnn", base / "mrnn")
        shutil.copytree(tiny_index.parent, base / "tiny_index")
        pictures = made_once("pictures", lambda folder: tiny.write_pictures(str(folder / "data")))
        done = programs.run(
            base / "logs", "export.index", "--model", base / "mrnn" / "1",
            "--data", pictures / "data", "--reference_data", Path(photo_job).parent / "data",
            "--output", base / "mrnn_index", "--k=3", "--beam=3", "--sample=12",
            "--show=Everything is red here",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert "1 images have no features and are left out, the first is 1.png" in done.err
        memory = "needs 1 MB for its variables, and 2 MB while another version replaces it"
        assert memory in done.out
        assert "images for 'Everything is red here':" in done.out
        assert ".png  All of it is red\n" in done.out and "\nsentences for " in done.out

    return made_once("searchable", make)


@pytest.fixture(scope="session")
def lite0():
    from mrnn_tf.vision import encoders

    return encoders.create("efficientnet_lite0")


@pytest.fixture(scope="session")
def mobilenet():
    from mrnn_tf.vision import encoders

    return encoders.create("mobilenet_v2", "random")


@pytest.fixture(scope="session")
def photographs():
    """Two photographs as the bytes of PNG files."""
    import skimage.data

    pictures = [skimage.data.chelsea()[:100], skimage.data.coffee()[:, :80]]
    return [tf.io.encode_png(picture).numpy() for picture in pictures]


@pytest.fixture
def eager_features(photographs):
    """Encodes the photographs one by one."""
    from mrnn_tf.vision import images

    def encode(encoder):
        prepared = [encoder.prepare(images.decode(content)) for content in photographs]
        return tf.concat([encoder.encode(windows[tf.newaxis]) for windows in prepared], axis=0)

    return encode


@pytest.fixture
def served_features(photographs, tmp_path):
    """Encodes the photographs by a SavedModel that takes their bytes."""
    from mrnn_tf.vision import images

    def encode(encoder):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def encode_image(image_bytes):
            prepared = tf.map_fn(
                lambda content: encoder.prepare(images.decode(content)),
                image_bytes,
                fn_output_signature=tf.float32,
            )
            return {"features": encoder.encode(prepared)}

        directory = str(tmp_path / "saved_model")
        tf.saved_model.save(encoder, directory, signatures=encode_image)
        served = tf.saved_model.load(directory).signatures["serving_default"]
        return served(image_bytes=tf.constant(photographs))["features"]

    return encode


@pytest.fixture
def problems():
    from mrnn_tf.data.listing import Problems

    return Problems()


@pytest.fixture
def write(tmp_path):
    """Writes files by name, other content than text and bytes as JSON; returns their folder."""

    def write_files(files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not isinstance(content, bytes):
                text = content if isinstance(content, str) else json.dumps(content)
                content = text.encode()
            path.write_bytes(content)
        return str(tmp_path)

    return write_files

"""`python -m export.task`, and what it checks before a version appears."""

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import programs
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from export import check, fresh, saved_model, warmup
from mrnn_tf import schema, versions
from mrnn_tf import text as tokenizer
from mrnn_tf.config import VARIANTS, BeamSearch, ModelConfig, RunConfig, TrainConfig
from mrnn_tf.errors import UserError
from mrnn_tf.inference import Inference, attached_encoder
from mrnn_tf.run import Run, build


def small(run, encoder=None, **limits):
    return Inference(run, encoder, BeamSearch(beam=2, max_words=5), top_k=4, **limits)


@pytest.fixture
def export(tmp_path):
    return lambda *arguments: programs.run(tmp_path, "export.task", *arguments)


def test_versions_follow_one_another_and_are_not_overwritten(export, tiny_job, tmp_path):
    base = tmp_path / "models" / "mrnn"
    (base / "7.partial").mkdir(parents=True)
    (base / "4").mkdir()
    limit = "--max_text_words=30"
    done = export("--job_dir", tiny_job, "--output", base, "--beam=2", limit)
    assert done.code == 0, done.err
    facts = json.loads((base / "5" / "assets" / "config.json").read_text())
    assert facts["settings"]["max_text_words"] == 30
    assert f"exported {base / '5'}" in done.out
    assert f"next: python -m serving.local --model_base_path {base.parent}" in done.out
    before = {path: path.stat().st_mtime_ns for path in (base / "5").rglob("*")}
    again = export("--job_dir", tiny_job, "--output", base, "--version=5")
    assert again.code == 1 and "holds a model already" in again.error
    assert {path: path.stat().st_mtime_ns for path in (base / "5").rglob("*")} == before


def test_saved_model_cli_runs_it(models):
    # The tool knows TensorFlow's own ops only; the tokeniser's come with tensorflow-text.
    tool = (
        "import tensorflow_text; from tensorflow.python.tools.saved_model_cli import main; main()"
    )
    command = [sys.executable, "-c", tool, "run", "--dir", str(models / "plain" / "1")]
    command += ["--tag_set", "serve", "--signature_def"]
    features = f"features={[[1.0] * 12] * 2}"
    for signature, text, output in (
        ("sentence_log_prob", "sentences=['a red dog', '']", "num_words"),
        ("beam_decode", "prefix=['a', '']", "captions"),
    ):
        done = subprocess.run(
            [*command, signature, "--input_exprs", f"{features};{text}"],
            capture_output=True, text=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"Result for output key {output}" in done.stdout


def test_every_signature_is_warmed_up_at_several_sizes(models):
    path = str(models / "mrnn" / "1" / schema.WARMUP_FILE)
    loaded = tf.saved_model.load(str(models / "mrnn" / "1"))
    seen = set()
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        inputs = {k: tf.constant(tf.make_ndarray(v)) for k, v in request.inputs.items()}
        rows = {len(value) for value in inputs.values()}
        seen |= {(request.model_spec.signature_name, *rows)}
        if rows == {4}:
            loaded.signatures[request.model_spec.signature_name](**inputs)
    assert seen == {(name, size) for name in loaded.signatures for size in warmup.BATCH_SIZES}


def test_a_model_that_says_something_else_is_not_published(tiny_job, tmp_path, monkeypatch):
    run = Run.load(tiny_job)
    original = check._run_fresh

    def changed(directory, calls):
        results = original(directory, calls)
        results[0][1]["captions"] = np.roll(results[0][1]["captions"], 1, axis=1)
        return results

    monkeypatch.setattr(check, "_run_fresh", changed)
    with pytest.raises(ValueError, match="signature `beam_decode` differs from the run in `capti"):
        saved_model.export_run(run, small(run), str(tmp_path / "mrnn" / "1"))
    assert not (tmp_path / "mrnn").exists()


REFUSED = {
    "NFKC": (
        lambda text: tf_text.normalize_utf8(tf_text.normalize_utf8(text, "NFKC"), "NFC"),
        r"NormalizeUTF8 \(NFKC needs ICU's normalisation data, which TF Serving does not link\)",
    ),
    "nfkd": (
        lambda text: tf_text.normalize_utf8_with_offsets_map(text, "nfkd")[0],
        r"NormalizeUTF8WithOffsetsMap \(NFKD needs ICU's",
    ),
    "case folding": (tf_text.case_fold_utf8, r"CaseFoldUTF8 \(needs ICU's normalisation data"),
    "script": (
        lambda text: tf_text.UnicodeScriptTokenizer().tokenize(text).to_tensor(),
        r"UnicodeScriptTokenizeWithOffsets \(neither an op of TensorFlow itself",
    ),
    "python": (
        lambda text: tf.numpy_function(lambda x: x, [text], tf.string),
        r"PyFunc \(it calls Python\)",
    ),
    "eager python": (
        lambda text: tf.py_function(lambda x: x, [text], tf.string),
        r"EagerPyFunc \(it calls Python\)",
    ),
    "jit_compile": (
        tf.function(lambda text: tf.shape(text) + 1, jit_compile=True),
        r"jit_compile \(TF Serving does not compile by XLA\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_stock_server_cannot_run_is_refused(tmp_path, case):
    compute, sentence = REFUSED[case]
    module = tf.Module()
    module.f = tf.function(
        lambda text: {"y": compute(text)}, input_signature=[tf.TensorSpec([None], tf.string)]
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.f)
    [refused] = fresh.unservable(str(tmp_path))
    assert re.match(sentence, refused)


def test_an_export_that_a_stock_server_cannot_run_is_not_published(tiny_job, tmp_path, monkeypatch):
    run = Run.load(tiny_job)
    monkeypatch.setattr(tokenizer, "_normalize", tf_text.case_fold_utf8)
    with pytest.raises(UserError, match=r"could not run CaseFoldUTF8 \(needs ICU's"):
        saved_model.export_run(run, small(run), str(tmp_path / "1"))
    assert not (tmp_path / "1").exists()


def test_what_is_exported_runs_on_a_stock_server(models, tiny_index):
    for directory in (models / "mrnn" / "1", models / "plain" / "1", tiny_index):
        assert fresh.unservable(str(directory)) == []


def test_the_default_signature_has_no_graph_of_its_own(models, tiny_index):
    defaults = {
        models / "mrnn" / "1": "caption",
        models / "plain" / "1": "beam_decode",
        tiny_index: "search_images",
    }
    for directory, default in defaults.items():
        content = (directory / "saved_model.pb").read_bytes()
        [graph] = saved_model_pb2.SavedModel.FromString(content).meta_graphs
        assert graph.signature_def["serving_default"] == graph.signature_def[default]


def test_the_check_runs_on_the_cpu(tiny_job, tmp_path, monkeypatch):
    """The fresh process sees no GPU; the model is computed on the CPU, wherever its variables."""
    started, devices = [], []
    original = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *args, **kw: (started.append(kw), original(*args, **kw))[1]
    )

    def expected(inference, name, inputs, _):
        devices.append(inference.network.model.project_image(np.ones([1, 12]))["multimodal"].device)
        return check.expected(inference, name, inputs)

    with tf.device("CPU:1"):  # as if it were a GPU
        run = Run.load(tiny_job)
        assert run.network.model.trainable_variables[0].value.device.endswith("CPU:1")
        saved_model.write(small(run), run, {}, expected, str(tmp_path / "1"))
    assert devices and all(device.endswith("CPU:0") for device in devices)
    assert [kw["env"]["CUDA_VISIBLE_DEVICES"] for kw in started] == ["-1"]


def untrained(vocabulary, feature_size, encoder, **model):
    """A run whose weights are large enough to make up its mind."""
    sizes = {"embedding_1": 4, "embedding_2": 6, "recurrent": 6, "multimodal": 7}
    config = RunConfig(
        ModelConfig(**sizes, **model), TrainConfig(), len(vocabulary), feature_size, encoder, "x"
    )
    network = build(config)
    for weight in network.model.trainable_variables:
        weight.assign(weight * 3)
    network.mean_features.assign(np.linspace(0, 1, feature_size))
    return Run(config, vocabulary, network, 1)


def test_an_encoder_is_attached_to_precomputed_features(tiny_job, tmp_path):
    run = untrained(Run.load(tiny_job).vocabulary, 1280, {"identity": "features:theirs:1280"})
    encoder = attached_encoder(run, "efficientnet_lite0")
    saved_model.export_run(run, small(run, encoder), str(tmp_path / "1"))
    assert "caption" in tf.saved_model.load(str(tmp_path / "1")).signatures
    facts = json.loads((tmp_path / "1" / "assets" / "config.json").read_text())["encoder"]
    assert facts["identity"] == "features:theirs:1280"
    assert facts["name"] == "efficientnet_lite0" and len(facts["weights_sha256"]) == 64


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_exported_as_it_is(tiny_job, variant):
    """The functions themselves, against the model, without a process for each."""
    vocabulary = Run.load(tiny_job).vocabulary
    servable = small(untrained(vocabulary, 5, {"identity": "features:x:5"}, variant=variant))
    functions = servable.signatures()
    for name, inputs in warmup.calls(servable, 3, functions):
        outputs = functions[name](**{k: tf.constant(v) for k, v in inputs.items()})
        for output, value in check.expected(servable, name, inputs).items():
            assert check.same(outputs[output].numpy(), value), (name, output)


@pytest.mark.parametrize("variant", ["mrnn", "rnn_base", "vis_in_rnn", "nic"])
def test_texts_of_too_many_words_are_checked_too(tiny_job, variant):
    vocabulary = Run.load(tiny_job).vocabulary
    run = untrained(vocabulary, 5, {"identity": "features:x:5"}, variant=variant)
    servable = small(run, max_text_words=1)
    functions = servable.signatures()
    names = ["beam_decode", "next_word", "sentence_log_prob"]
    if variant == "mrnn":
        names += ["score_projections", "score_images", "sentence_vector"]
    for name, inputs in warmup.calls(servable, 3, names):
        outputs = functions[name](**{k: tf.constant(v) for k, v in inputs.items()})
        values = check.expected(servable, name, inputs)
        for output, value in values.items():
            assert check.same(outputs[output].numpy(), value), (name, output)
        [best] = [v for k, v in values.items() if k in ("log_prob", "log_probs", "vectors")]
        best = best.T if name == "score_images" else best.reshape(3, -1)
        is_there = best.any(axis=1) if name == "sentence_vector" else best[:, 0] > -1e30
        assert is_there.tolist() == [False, name != "sentence_vector", False]


def test_the_id_of_a_version_is_not_random(tmp_path):
    contents = set()
    for name in ("0aa1", "7fff"):
        fingerprint = fingerprint_pb2.FingerprintDef(saved_model_checksum=17, uuid=name)
        (tmp_path / "f.pb").write_bytes(fingerprint.SerializeToString())
        saved_model._derive_id(tmp_path / "f.pb")
        contents.add((tmp_path / "f.pb").read_bytes())
    [content] = contents
    found = fingerprint_pb2.FingerprintDef.FromString(content)
    assert found.saved_model_checksum == 17 and uuid.UUID(found.uuid).version == 5


def test_remote_places_get_the_model_last(tiny_job):
    run = Run.load(tiny_job)
    saved_model.export_run(run, small(run), "ram://models/mrnn/3")
    assert saved_model.version_directory("ram://models/mrnn", None) == "ram://models/mrnn/4"
    versions.check("ram://models/mrnn/3", everything=True)
    loaded = versions.load("ram://models/mrnn/3")
    assert "beam_decode" in loaded.signatures


BAD = {
    "job": ("--output OUT", "--job_dir is required"),
    "output": ("--job_dir JOB", "--output is required"),
    "no run": ("--job_dir nowhere --output OUT", "nowhere holds no config.json"),
    "size": ("--job_dir JOB --output OUT --encoder efficientnet_lite0", "makes 1280 features, but"),
    "weights": ("--job_dir JOB --output OUT --encoder_weights f", "--encoder must name"),
    "other weights": ("--job_dir PHOTO --output OUT --encoder_weights random", "the encoder would"),
    "beam": ("--job_dir JOB --output OUT --beam 0", "beam"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(export, tiny_job, photo_job, tmp_path, case):
    arguments, sentence = BAD[case]
    places = {"OUT": str(tmp_path / "out"), "JOB": tiny_job, "PHOTO": photo_job}
    done = export(*(places.get(word, word) for word in arguments.split()))
    assert done.code == 1
    assert sentence in done.error
    assert not Path(places["OUT"]).exists()


def test_an_output_that_is_no_folder_of_versions_is_refused(models, tmp_path):
    (tmp_path / "file").touch()
    cases = {
        str(tmp_path / "file"): "is a file: name a folder",
        str(models / "mrnn" / "1"): "is a version itself: name the folder above",
        str(models): "holds several models: name one, such as",
    }
    for output, sentence in cases.items():
        with pytest.raises(UserError, match=sentence):
            saved_model.version_directory(output, None)
    assert saved_model.version_directory(str(models / "mrnn"), None) == str(models / "mrnn" / "2")
    assert saved_model.version_directory(str(tmp_path), None) == str(tmp_path / "1")

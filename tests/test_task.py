"""`python -m trainer.task` as platforms call it: flags, presets and environment."""

import json
import math
import os
import re
import shutil
import subprocess
import sys

import programs
import pytest
import tensorflow as tf
from absl import flags
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mrnn_tf import versions
from mrnn_tf.presets import PRESETS
from mrnn_tf.run import checkpoint_steps
from trainer import task

TINY = [
    "--preset=demo", "--embedding_1=6", "--embedding_2=8", "--recurrent=8", "--multimodal=10",
    "--epochs=2", "--batch_size=12", "--warmup_steps=1", "--learning_rate=0.03",
]  # fmt: skip
STEPS = 12
GUESSING = 23  # words in the vocabulary


@pytest.fixture
def perplexity(tmp_path, tiny_data):
    """Trains by real steps; returns the perplexity that the program prints."""

    def run(*arguments, environment=None):
        arguments = ["--data", tiny_data, *TINY, *arguments]
        done = programs.run(tmp_path, "trainer.task", *arguments, environment=environment)
        assert done.code == 0, done.err
        [said] = re.findall(rf"finished at step {STEPS}, best .* perplexity (\S+)", done.out)
        return float(said)

    return run


def test_places_of_the_platform_a_preset_and_mixed_precision(tmp_path, perplexity):
    job, checkpoints, logs = (tmp_path / name for name in ("job", "elsewhere", "board"))
    environment = {"AIP_CHECKPOINT_DIR": f"{checkpoints}/", "AIP_TENSORBOARD_LOG_DIR": f"{logs}/"}
    assert perplexity("--job-dir", job, "--mixed_precision", environment=environment) < GUESSING
    assert {path.name for path in job.iterdir()} == {"config.json", "vocabulary.txt"}
    assert checkpoint_steps(str(checkpoints), "model") == [STEPS // 2, STEPS]
    board = EventAccumulator(str(logs / "val")).Reload()
    assert "DT_BFLOAT16" in str(board.Graph())

    config = json.loads((job / "config.json").read_text())
    model, training = (part.to_dict() for part in PRESETS["demo"]())
    assert config["vocabulary_size"] == GUESSING
    assert config["model"] == model | {
        "embedding_1": 6, "embedding_2": 8, "recurrent": 8, "multimodal": 10,
    }  # fmt: skip
    assert config["train"] == training | {
        "epochs": 2, "batch_size": 12, "warmup_steps": 1, "learning_rate": 0.03,
        "mixed_precision": True,
    }  # fmt: skip


def test_the_best_weights_are_exported_when_asked(tmp_path, tiny_data):
    arguments = ["--data", tiny_data, *TINY, "--job_dir", tmp_path / "job", "--export"]
    done = programs.run(tmp_path, "trainer.task", *arguments)
    assert done.code == 0, done.err
    version = tmp_path / "job" / "model" / "1"
    assert f"exported {version}\n" in done.out
    assert "beam_decode" in tf.saved_model.load(str(version)).signatures

    # The same run again exports nothing; another model gets the next number.
    models = tmp_path / "models"
    shutil.copytree(version, models / "4")
    for learned in ([], ["--seed=1", "--job_dir", tmp_path / "other"]):
        more = [*arguments, "--model_dir", models, *learned]
        done = programs.run(tmp_path, "trainer.task", *more)
        assert done.code == 0, done.err
        assert f"exported {models}/{5 if learned else 4}\n" in done.out
    assert {path.name for path in models.iterdir()} == {"4", "5"}


def test_a_model_of_vertex_ai_lies_at_the_root_and_in_a_version(tmp_path, tiny_data):
    arguments = ["--data", tiny_data, *TINY, "--job_dir", tmp_path / "job", "--export"]
    vertex, root = {"AIP_MODEL_DIR": f"{tmp_path}/vertex/"}, tmp_path / "vertex"

    def exported(folder):
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and (folder != root or path.relative_to(root).parts[0] not in "12")
        }

    for _ in ("exports", "finishes a copy that was interrupted"):
        done = programs.run(tmp_path, "trainer.task", *arguments, environment=vertex)
        assert done.code == 0, done.err
        assert "saved_model.pb" in exported(root) and exported(root) == exported(root / "1")
        assert [path.name for path in root.iterdir() if path.name.isdecimal()] == ["1"]
        (root / "saved_model.pb").unlink()
    # Other weights are the next version, and the copy is theirs.
    arguments = ["--data", tiny_data, *TINY, "--job_dir", tmp_path / "other", "--export"]
    for _ in ("exports", "finds it done"):
        done = programs.run(tmp_path, "trainer.task", *arguments, "--seed=5", environment=vertex)
        assert done.code == 0, done.err
        assert {path.name for path in root.iterdir() if path.name.isdecimal()} == {"1", "2"}
        assert exported(root) == exported(root / "2") != exported(root / "1")
    assert versions.newest(str(root)) == str(root / "2")
    assert versions.newest(str(root / "1")) == str(root / "1")


def test_a_trial_of_a_tuning_job_reports_every_evaluation(tmp_path, tiny_data):
    pytest.importorskip("hypertune", reason="cloudml-hypertune is not installed")
    arguments = ["--data", tiny_data, *TINY, "--job_dir", tmp_path / "job"]
    metrics = tmp_path / "hypertune" / "metrics"
    trial = {"CLOUD_ML_TRIAL_ID": "7", "CLOUD_ML_HP_METRIC_FILE": str(metrics)}
    done = programs.run(tmp_path, "trainer.task", *arguments, environment=trial)
    assert done.code == 0, done.err
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"7"}
    assert checkpoint_steps(str(tmp_path / "job" / "7" / "checkpoints"), "model") == [
        STEPS // 2,
        STEPS,
    ]
    reports = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [(each["trial"], each["global_step"]) for each in reports] == [("7", "6"), ("7", "12")]
    said = re.findall(r"validation perplexity (\S+)", done.err)
    assert [f"{float(each['perplexity']):.3f}" for each in reports] == said


def test_a_trial_that_cannot_report_is_one_sentence(tmp_path, tiny_data):
    (tmp_path / "hypertune.py").write_text("raise ImportError")  # as where it is not installed
    arguments = ["--data", tiny_data, *TINY, "--job_dir", tmp_path / "job"]
    done = subprocess.run(
        [sys.executable, "-m", "trainer.task", *map(str, arguments)],
        env={**os.environ, "CLOUD_ML_TRIAL_ID": "7",
             "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "install cloudml-hypertune" in done.stderr and "Traceback" not in done.stderr


def test_python_imports_the_program_without_its_flags():
    assert task.TaskOptions(data="d", job_dir="j").checkpoint_dir == "j/checkpoints"
    assert "embedding_1" not in flags.FLAGS


def test_the_training_step_compiled_by_xla(tmp_path, perplexity):
    short = ["--max_words=3", "--epochs=6"]  # one length of captions: one compilation
    assert math.isfinite(perplexity("--job_dir", tmp_path / "job", "--jit_compile", *short))


def test_several_workers_cannot_be_compiled(tmp_path, tiny_data):
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    one = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    arguments = ["--data", tiny_data, "--job_dir", tmp_path / "job", *TINY, "--jit_compile"]
    done = programs.run(tmp_path, "trainer.task", *arguments, environment={"TF_CONFIG": one})
    assert done.code == 1
    assert "--jit_compile works on one device only" in done.error
    assert not (tmp_path / "job").exists()


BAD = {
    "no data": ("--job_dir JOB", "--data is required"),
    "no job": ("--data nowhere", "--job_dir is required"),
    "preset": ("--preset papers", "preset"),
    "choice": ("--variant mrn", "variant"),
    "flag": ("--epoch 3", "epoch"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_flag_is_one_sentence(tmp_path, case):
    arguments, sentence = BAD[case]
    arguments = arguments.replace("JOB", str(tmp_path / "job")).split()
    done = programs.run(tmp_path, "trainer.task", *arguments)
    assert done.code == 1
    assert sentence in done.error

"""`python -m trainer.task` as platforms call it: flags, presets and environment."""

import json
import math
import re

import programs
import pytest
import tensorflow as tf
from absl import flags
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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
    assert checkpoint_steps(str(checkpoints), "model") == [STEPS]
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
    vertex = {"AIP_MODEL_DIR": f"{tmp_path}/vertex/"}
    done = programs.run(tmp_path, "trainer.task", *arguments, environment=vertex)
    assert done.code == 0, done.err
    assert f"exported {tmp_path}/vertex\n" in done.out
    loaded = tf.saved_model.load(f"{tmp_path}/vertex")
    assert "beam_decode" in loaded.signatures
    written = (tmp_path / "vertex" / "saved_model.pb").stat().st_mtime_ns
    again = programs.run(tmp_path, "trainer.task", *arguments, environment=vertex)
    assert again.code == 0, again.err
    assert (tmp_path / "vertex" / "saved_model.pb").stat().st_mtime_ns == written
    [best] = checkpoint_steps(str(tmp_path / "job" / "checkpoints"), "best")
    done = programs.run(tmp_path, "trainer.task", *arguments)
    assert done.code == 0 and (tmp_path / "job" / "model" / str(best) / "saved_model.pb").exists()


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

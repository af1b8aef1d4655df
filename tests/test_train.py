"""Training as a user runs it: real processes on the tiny dataset, killed and continued."""

import json
import random
import shutil
import socket
import time

import numpy as np
import programs
import pytest

from mrnn_tf import run
from mrnn_tf.run import Run, checkpoint_steps

# Dropout on, shuffling on, several epochs, a checkpoint every three steps.
TINY = [
    "--preset=demo", "--embedding_1=6", "--embedding_2=8", "--recurrent=8", "--multimodal=10",
    "--epochs=8", "--batch_size=12", "--shuffle_buffer=50", "--checkpoint_steps=3",
    "--steps_per_loop=2", "--warmup_steps=1", "--learning_rate=0.01", "--deterministic",
]  # fmt: skip
STEPS = 48


def weights(job_dir, which="latest"):
    return [weight.numpy() for weight in Run.load(str(job_dir), which).network.model.weights]


def equal(first, second):
    return len(first) > 5 and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def wait_for_step(program, job_dir, step):
    """Waits until a checkpoint of at least this step is whole."""
    deadline = time.monotonic() + 120
    while program.process.is_alive() and time.monotonic() < deadline:
        if max([0, *checkpoint_steps(str(job_dir / "checkpoints"), "model")]) >= step:
            return
        time.sleep(0.002)
    raise AssertionError(f"step {step} was not reached: {program.err}")


@pytest.fixture(scope="module")
def undisturbed(tiny_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    arguments = ["--data", tiny_data, "--job_dir", folder / "job", *TINY]
    done = programs.run(folder, "trainer.task", *arguments)
    assert done.code == 0, done.err
    assert f"finished at step {STEPS}" in done.out and "next: tensorboard" in done.out
    return folder / "job"


def test_a_run_learns_and_leaves_what_the_design_says(undisturbed):
    names = {path.name for path in undisturbed.iterdir()}
    assert names == {"config.json", "vocabulary.txt", "checkpoints", "logs"}
    checkpoints = str(undisturbed / "checkpoints")
    assert checkpoint_steps(checkpoints, "model") == [STEPS - 3, STEPS]
    best = Run.load(str(undisturbed))
    assert [best.step] == checkpoint_steps(checkpoints, "best")
    assert not equal(
        weights(undisturbed), [w.numpy() for w in run.build(best.config).model.weights]
    )


def test_killed_at_random_moments_it_ends_with_the_same_weights(tiny_data, tmp_path, undisturbed):
    job = tmp_path / "job"
    arguments = ["--data", tiny_data, "--job_dir", job, *TINY]
    chance = random.Random(time.time_ns())
    for step in (3, 9, 18, 27, 36):
        killed = programs.start(tmp_path, "trainer.task", *arguments)
        wait_for_step(killed, job, step)
        time.sleep(chance.uniform(0, 0.1))
        killed.process.kill()
        assert killed.wait().code == -9
    stopped = programs.start(tmp_path, "trainer.task", *arguments)
    wait_for_step(stopped, job, 39)
    stopped.process.terminate()
    assert stopped.wait().code == 75, stopped.err
    assert "the same command goes on" in stopped.err
    done = programs.run(tmp_path, "trainer.task", *arguments)
    assert done.code == 0, done.err
    assert "Resuming from" in done.err
    assert equal(weights(job), weights(undisturbed))
    assert equal(weights(job, "best"), weights(undisturbed, "best"))


def start_workers(folder, arguments, count=2):
    """Worker processes on this machine, as a cluster's supervisor would start them."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    started = []
    for index in range(count):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {"TF_CONFIG": json.dumps(task)}
        started.append(programs.start(folder, "trainer.task", *arguments, environment=environment))
    return started


def run_workers(folder, arguments):
    workers = start_workers(folder, arguments)
    for worker in workers:
        assert worker.wait().code == 0, worker.err
    return workers


def test_two_workers_killed_and_continued(tiny_data, tmp_path):
    alone = ["--data", tiny_data, "--job_dir", tmp_path / "alone", *TINY]
    run_workers(tmp_path, alone)
    job = tmp_path / "job"
    arguments = ["--data", tiny_data, "--job_dir", job, *TINY]
    workers = start_workers(tmp_path, arguments)
    wait_for_step(workers[0], job, 6)
    workers[1].process.kill()
    assert workers[0].wait(60).code == 75, workers[0].err  # it does not wait for the dead
    workers = start_workers(tmp_path, arguments)
    wait_for_step(workers[0], job, 15)
    workers[1].process.terminate()  # one is told, both save and go
    assert [worker.wait().code for worker in workers] == [75, 75]
    run_workers(tmp_path, arguments)
    assert equal(weights(job), weights(tmp_path / "alone"))


BAD = {
    "no data": ("--data nowhere", "nowhere holds no dataset.json"),
    "sizes": ("--data DATA --recurrent 9", "`recurrent` must equal `embedding_2`"),
    "range": ("--data DATA --dropout_embedding 2", "`ModelConfig.dropout_embedding` must be"),
    "batch": ("--data DATA --max_words 1", "All captions have more than --max_words 1"),
    "images": ("--data DATA --finetune_encoder", "must hold images"),
    "other run": ("--data DATA --job_dir RUN --seed 5", "holds another run: train.seed is 0 there"),
    "unwritable": ("--data DATA --job_dir /proc/job", "--job_dir /proc/job cannot be written"),
}


def test_a_corrupt_shard_is_named_before_any_training(tiny_data, tmp_path):
    data = shutil.copytree(tiny_data, tmp_path / "data")
    shard = data / "train-00000-of-00002.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-7])
    done = programs.run(tmp_path, "trainer.task", "--data", data, "--job_dir", tmp_path / "job")
    assert done.code == 1
    assert "train-00000-of-00002.tfrecord is corrupt at record 11" in done.error


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_before_any_training(tiny_data, tmp_path, undisturbed, case):
    arguments, sentence = BAD[case]
    arguments = arguments.replace("DATA", tiny_data).replace("RUN", str(undisturbed)).split()
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")}
    done = programs.run(tmp_path, "trainer.task", "--job_dir", tmp_path / "job", *TINY, *arguments)
    assert done.code == 1
    assert sentence in done.error
    assert not (tmp_path / "job" / "checkpoints").exists()
    assert before == {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")}

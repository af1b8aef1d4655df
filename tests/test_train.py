"""Training as a user runs it: real processes on the tiny dataset, killed and continued."""

import json
import os
import random
import re
import shutil
import signal
import socket
import time

import numpy as np
import programs
import pytest
import tensorflow as tf
import tiny
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mrnn_tf import run
from mrnn_tf.run import checkpoint_steps

# Dropout on, shuffling on, several epochs, a checkpoint every three steps.
TINY = [
    "--preset=demo", "--embedding_1=6", "--embedding_2=8", "--recurrent=8", "--multimodal=10",
    "--epochs=10", "--batch_size=12", "--shuffle_buffer=50", "--checkpoint_steps=3",
    "--steps_per_loop=2", "--warmup_steps=1", "--learning_rate=0.01", "--evaluate_epochs=5",
    "--deterministic",
]  # fmt: skip
STEPS = 60
RESTART_ME = 75


def state(prefix):
    """Everything in a checkpoint: weights, optimizer, progress."""
    reader = tf.train.load_checkpoint(str(prefix))
    names = set(reader.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    assert len(names) > 5
    return {name: reader.get_tensor(name) for name in names}


def latest(job_dir, kind="model"):
    return state(run.latest(str(job_dir / "checkpoints"), kind))


def equal(first, second):
    return first.keys() == second.keys() and all(
        np.array_equal(value, second[name]) for name, value in first.items()
    )


def wait_for_step(program, step):
    """Waits until this very process has trained at least this step."""
    deadline, log = time.monotonic() + 120, program.folder / "err"
    while program.process.is_alive() and time.monotonic() < deadline:
        said = log.read_text() if log.exists() else ""
        if any(int(at) >= step for at in re.findall(r" step (\d+)  ", said)):
            return
        time.sleep(0.002)
    raise AssertionError(f"step {step} was not reached: {program.err}")


def kill_inside_a_save(program, directory):
    """Kills when the first file of a new step is there and the last is not; returns the step."""
    while program.process.is_alive():
        names = os.listdir(directory)
        newest = max(re.findall(r"-(\d{8})", " ".join(names)))
        if f"model-{newest}.index" not in names:
            os.kill(program.process.pid, signal.SIGSTOP)
            time.sleep(0.05)
            if not (directory / f"model-{newest}.index").exists():
                program.process.kill()
                assert program.wait().code == -9
                return int(newest)
            os.kill(program.process.pid, signal.SIGCONT)
        time.sleep(0.0005)
    raise AssertionError(f"no save was seen: {program.err}")


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
        environment = {"TF_CONFIG": json.dumps(task), "KEPT": str(folder)}
        started.append(programs.start(folder, "keeping_task", *arguments, environment=environment))
    return started


def run_workers(folder, arguments):
    """Runs both to the end; returns the chief's state and the other's own."""
    workers = start_workers(folder, arguments)
    for worker in workers:
        assert worker.wait().code == 0, worker.err
    return latest(folder / "job"), state(run.latest(str(folder), "model"))


@pytest.fixture(scope="module")
def undisturbed(tiny_data, tmp_path_factory):
    """A folder with a job of one process, and one of two workers, which run meanwhile."""
    folder = tmp_path_factory.mktemp("undisturbed")
    arguments = ["--data", tiny_data, *TINY, "--job_dir"]
    one = programs.start(folder, "trainer.task", *arguments, folder / "job")
    chief, other = run_workers(folder / "two", [*arguments, folder / "two" / "job"])
    assert equal(chief, other)
    assert one.wait().code == 0, one.err
    assert f"finished at step {STEPS}" in one.out and "next: tensorboard" in one.out
    return folder


@pytest.fixture(scope="module")
def job(undisturbed):
    return undisturbed / "job"


def test_a_run_learns_and_leaves_what_the_design_says(job):
    names = {path.name for path in job.iterdir()}
    assert names == {"config.json", "vocabulary.txt", "checkpoints", "logs"}
    checkpoints = str(job / "checkpoints")
    assert checkpoint_steps(checkpoints, "model") == [STEPS - 3, STEPS]
    best = run.Run.load(str(job))
    assert [best.step] == checkpoint_steps(checkpoints, "best")
    untrained = run.build(best.config).model.trainable_weights
    for weight, first in zip(best.network.model.trainable_weights, untrained, strict=True):
        assert not np.array_equal(weight.numpy(), first.numpy())


def test_killed_at_random_moments_it_ends_with_the_same_weights(tiny_data, tmp_path, undisturbed):
    job = tmp_path / "job"
    arguments = ["--data", tiny_data, "--job_dir", job, *TINY]
    chance = random.Random(time.time_ns())
    killed = programs.start(tmp_path, "trainer.task", *arguments)
    wait_for_step(killed, 6)
    cut = kill_inside_a_save(killed, job / "checkpoints")
    assert max(checkpoint_steps(str(job / "checkpoints"), "model")) < cut
    for step in (15, 24, 33, 42):
        killed = programs.start(tmp_path, "trainer.task", *arguments)
        wait_for_step(killed, step)
        time.sleep(chance.uniform(0, 0.1))
        killed.process.kill()
        assert killed.wait().code == -9
    stopped = programs.start(tmp_path, "trainer.task", *arguments)
    wait_for_step(stopped, 45)
    stopped.process.terminate()
    assert stopped.wait().code == RESTART_ME, stopped.err
    assert "the same command goes on" in stopped.err
    done = programs.run(tmp_path, "trainer.task", *arguments)
    assert done.code == 0, done.err
    assert "Resuming from" in done.err
    assert equal(latest(job), latest(undisturbed / "job"))
    assert equal(latest(job, "best"), latest(undisturbed / "job", "best"))
    names = os.listdir(job / "checkpoints")
    assert len(names) == len(os.listdir(undisturbed / "job" / "checkpoints")), (
        names
    )  # nothing is left over


def test_a_short_run_that_is_killed_goes_on_from_its_last_evaluation(tiny_data, tmp_path):
    """All its steps are fewer than those between two checkpoints."""
    more = ["--checkpoint_steps=500", "--evaluate_epochs=1"]
    arguments = ["--data", tiny_data, *TINY, *more, "--job_dir", tmp_path / "job"]
    killed = programs.start(tmp_path, "trainer.task", *arguments)
    wait_for_step(killed, 20)
    killed.process.kill()
    killed.wait()
    assert "Starting at step 0" in killed.err
    done = programs.run(tmp_path, "trainer.task", *arguments)
    assert done.code == 0, done.err
    [step] = re.findall(r"Resuming from \S+model-(\d+)", done.err)
    assert int(step) >= 12 and int(step) % 6 == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_saves_and_says_so(tiny_data, tmp_path, number):
    more = ["--checkpoint_steps=500", "--evaluate_epochs=500"]
    arguments = ["--data", tiny_data, *TINY, *more, "--job_dir", tmp_path / "job"]
    stopped = programs.start(tmp_path, "trainer.task", *arguments)
    wait_for_step(stopped, 6)
    os.kill(stopped.process.pid, number)
    assert stopped.wait().code == RESTART_ME, stopped.err
    assert "a second signal ends it at once" in stopped.err
    [step] = re.findall(r"saved step (\d+); the same command goes on", stopped.err)
    assert checkpoint_steps(str(tmp_path / "job" / "checkpoints"), "model") == [int(step)]


def test_a_run_without_validation_captions_says_what_that_means(tiny_data, tmp_path):
    data = shutil.copytree(tiny_data, tmp_path / "data")
    tiny.edit(data / "dataset.json", lambda info: info["splits"].pop("val"))
    arguments = ["--data", data, *TINY, "--epochs=1", "--job_dir", tmp_path / "job"]
    done = programs.run(tmp_path, "trainer.task", *arguments)
    assert done.code == 0, done.err
    assert "has no validation captions" in done.err
    assert "finished at step 6, nothing evaluated" in done.out
    assert run.Run.load(str(tmp_path / "job")).step == 6


def test_two_workers_killed_and_continued(tiny_data, tmp_path, undisturbed):
    arguments = ["--data", tiny_data, "--job_dir", tmp_path / "job", *TINY]
    workers = start_workers(tmp_path, arguments)
    wait_for_step(workers[0], 6)
    workers[1].process.kill()
    assert workers[0].wait(60).code == RESTART_ME, workers[0].err  # it does not wait for the dead
    workers = start_workers(tmp_path, arguments)
    wait_for_step(workers[0], 15)
    workers[0].process.kill()
    assert workers[1].wait(60).code == RESTART_ME, workers[1].err
    workers = start_workers(tmp_path, arguments)
    wait_for_step(workers[0], 24)
    workers[1].process.terminate()  # one is told, both save and go
    assert [worker.wait().code for worker in workers] == [RESTART_ME, RESTART_ME]
    chief, other = run_workers(tmp_path, arguments)
    assert equal(chief, latest(undisturbed / "two" / "job"))
    assert equal(other, chief)


def costs(job_dir):
    events = EventAccumulator(str(job_dir / "logs" / "train"), size_guidance={"tensors": 0})
    return {
        event.step: float(tf.make_ndarray(event.tensor_proto))
        for event in events.Reload().Tensors("cost")
    }


def test_a_chief_that_is_lost_while_it_exports_comes_back(tiny_data, tmp_path):
    """The other worker waits for the export, goes when the chief is lost, and comes back too."""
    arguments = ["--data", tiny_data, *TINY, "--job_dir", tmp_path / "job", "--export"]
    workers = start_workers(tmp_path, arguments)
    while workers[0].process.is_alive() and "Checking every signature" not in workers[0].err:
        time.sleep(0.05)
    assert workers[1].process.is_alive()
    workers[0].process.kill()
    assert workers[1].wait(60).code == RESTART_ME, workers[1].err
    assert not (tmp_path / "job" / "model" / "1").exists()
    workers = start_workers(tmp_path, arguments)
    assert [worker.wait().code for worker in workers] == [0, 0], workers[0].err
    assert (tmp_path / "job" / "model" / "1" / "saved_model.pb").exists()


def test_two_workers_agree_with_one(tiny_data, tmp_path):
    still = ["--dropout_embedding=0", "--dropout_recurrent=0", "--dropout_multimodal=0"]
    steps = ["--batch_size=18", "--epochs=5", "--steps_per_loop=1"]
    arguments = ["--data", tiny_data, *TINY, *still, *steps, "--job_dir"]
    alone = programs.start(tmp_path, "trainer.task", *arguments, tmp_path / "one")
    run_workers(tmp_path, [*arguments, tmp_path / "job"])
    assert alone.wait().code == 0, alone.err
    two, one = costs(tmp_path / "job"), costs(tmp_path / "one")
    assert list(one) == list(two) == list(range(1, 21))
    assert one[20] < one[1] - 1
    np.testing.assert_allclose(list(two.values()), list(one.values()), rtol=0, atol=1e-4)


BAD = {
    "no data": ("--data nowhere", "nowhere holds no dataset.json"),
    "sizes": ("--data DATA --recurrent 9", "--recurrent must equal --embedding_2"),
    "range": ("--data DATA --dropout_embedding 2", "--dropout_embedding must be of type float"),
    "batch": ("--data DATA --max_words 1", "All captions have more than --max_words 1"),
    "objective": ("--data DATA --objective cider", "--objective cider needs --initial_run"),
    "images": ("--data DATA --finetune_encoder", "must hold images"),
    "other run": ("--data DATA --job_dir RUN --seed 5", "holds another run: train.seed is 0 there"),
    "other checkpoints": (
        "--data DATA --checkpoint_dir RUN/checkpoints --seed 5",
        "--checkpoint_dir RUN/checkpoints holds another run: train.seed is 0 there and 5 here",
    ),
    "other files": (
        "--data DATA --job_dir DATA",
        "is no run directory, but holds other files, such",
    ),
    "unwritable": ("--data DATA --job_dir /proc/job", "--job_dir /proc/job cannot be written"),
}


def test_a_corrupt_shard_is_named_before_any_training(tiny_data, tmp_path):
    data = shutil.copytree(tiny_data, tmp_path / "data")
    shard = data / "train-00000-of-00002.tfrecord"
    content = shard.read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    for damaged, sentence in ((content[:-7], "is damaged"), (flipped, "is corrupt at record 11")):
        shard.write_bytes(damaged)
        done = programs.run(tmp_path, "trainer.task", "--data", data, "--job_dir", tmp_path / "job")
        assert done.code == 1
        assert f"train-00000-of-00002.tfrecord {sentence}" in done.error


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_before_any_training(tiny_data, tmp_path, job, case):
    arguments, sentence = (text.replace("RUN", str(job)) for text in BAD[case])
    arguments = arguments.replace("DATA", tiny_data).split()
    before = {path: path.stat().st_mtime_ns for path in job.rglob("*")}
    done = programs.run(tmp_path, "trainer.task", "--job_dir", tmp_path / "job", *TINY, *arguments)
    assert done.code == 1
    assert sentence in done.error
    assert not (tmp_path / "job").exists()
    assert before == {path: path.stat().st_mtime_ns for path in job.rglob("*")}

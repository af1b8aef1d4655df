"""Training as a user runs it: real processes on the tiny dataset, killed and continued."""

import random
import time

import numpy as np
import programs
import pytest
import tensorflow as tf

from mrnn_tf.run import Run, checkpoint_steps

# Dropout on, shuffling on, several epochs, a checkpoint every three steps.
TINY = [
    "--preset=demo", "--embedding_1=6", "--embedding_2=8", "--recurrent=8", "--multimodal=10",
    "--epochs=8", "--batch_size=12", "--shuffle_buffer=50", "--checkpoint_steps=3",
    "--steps_per_loop=2", "--deterministic",
]  # fmt: skip
STEPS = 48


def weights(job_dir, which="latest"):
    return [weight.numpy() for weight in Run.load(str(job_dir), which).network.model.weights]


def equal(first, second):
    return len(first) > 5 and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.fixture(scope="module")
def undisturbed(tiny_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    done = programs.run(folder, "trainer.task", "--data", tiny_data, "--job_dir", folder / "job", *TINY)
    assert done.code == 0, done.err
    assert f"finished at step {STEPS}" in done.out
    return folder / "job"


def test_a_run_learns_and_leaves_what_the_design_says(undisturbed):
    assert {p.name for p in undisturbed.iterdir()} == {
        "config.json", "vocabulary.txt", "checkpoints", "logs",
    }  # fmt: skip
    run = Run.load(str(undisturbed))
    assert run.step == checkpoint_steps(str(undisturbed / "checkpoints"), "best")[0]
    assert checkpoint_steps(str(undisturbed / "checkpoints"), "model") == [STEPS - 3, STEPS]


def test_killed_at_random_moments_it_ends_with_the_same_weights(tiny_data, tmp_path, undisturbed):
    arguments = ["--data", tiny_data, "--job_dir", tmp_path / "job", *TINY]
    chance = random.Random(0)
    started = set()
    for _ in range(5):
        killed = programs.start(tmp_path, "trainer.task", *arguments)
        _wait_for_more_steps(killed, tmp_path / "job" / "checkpoints", started)
        time.sleep(chance.uniform(0, 0.05))
        killed.process.kill()
        killed.wait()
    done = programs.run(tmp_path, "trainer.task", *arguments)
    assert done.code == 0, done.err
    assert "Resuming from" in done.err
    assert equal(weights(tmp_path / "job"), weights(undisturbed))
    assert equal(weights(tmp_path / "job", "best"), weights(undisturbed, "best"))


def _wait_for_more_steps(program, checkpoints, seen):
    deadline = time.monotonic() + 120
    while program.process.is_alive() and time.monotonic() < deadline:
        steps = set(checkpoint_steps(str(checkpoints), "model"))
        if steps - seen:
            seen |= steps
            return
        time.sleep(0.002)

import pytest
import tensorflow as tf

from mrnn_tf.run import checkpoint_steps
from trainer.checkpoints import SCRATCH, Checkpoints


class Worker:
    """One worker of a run: a weight that counts and an iterator."""

    def __init__(self, directory, worker=0, workers=2):
        self.weight = tf.Variable(0)
        self.iterator = iter(tf.data.Dataset.range(100))
        state = {"network": tf.train.Checkpoint(weight=self.weight)}
        self.checkpoints = Checkpoints(str(directory), state, self.iterator, workers, worker)

    def save(self, step):
        self.weight.assign(step)
        self.checkpoints.save(step)


def steps(directory, kind):
    return checkpoint_steps(str(directory), kind)


def test_a_run_resumes_from_the_newest_step_that_all_workers_saved(tmp_path):
    chief, other = Worker(tmp_path, 0), Worker(tmp_path, 1)
    for step in (24, 27):
        next(chief.iterator), next(other.iterator)
        chief.save(step), other.save(step)
    chief.save(30)  # and the other is killed before it saves
    chief, other = Worker(tmp_path, 0), Worker(tmp_path, 1)
    assert other.checkpoints.restore().endswith("model-00000027")
    assert chief.checkpoints.restore().endswith("model-00000027")
    assert int(chief.weight) == 27 and int(next(other.iterator)) == 2
    assert steps(tmp_path, "model") == [27]  # what was beyond cannot push out what is good
    chief.save(28)  # and again the other is killed
    chief, other = Worker(tmp_path, 0), Worker(tmp_path, 1)
    assert chief.checkpoints.restore().endswith("model-00000027")
    assert other.checkpoints.restore().endswith("model-00000027")


def test_two_steps_are_kept(tmp_path):
    alone = Worker(tmp_path, workers=1)
    for step in (1, 2, 3):
        alone.save(step)
    assert steps(tmp_path, "model") == steps(tmp_path, "iterator-0") == [2, 3]


def test_what_a_kill_left_in_part_goes(tmp_path):
    alone = Worker(tmp_path, workers=1)
    alone.save(2), alone.save(3)
    whole = sorted(path.name for path in tmp_path.iterdir())
    (tmp_path / "model-00000001.data-00000-of-00001").touch()
    (tmp_path / "iterator-0-00000004.index").touch()
    (tmp_path / "model-00000004_temp").mkdir()
    (tmp_path / "model-00000004_temp" / "part-00000-of-00001.index").touch()
    assert Worker(tmp_path, workers=1).checkpoints.restore().endswith("model-00000003")
    assert sorted(path.name for path in tmp_path.iterdir()) == whole


def test_only_the_chief_leaves_its_state(tmp_path):
    other = Worker(tmp_path, 1)
    assert other.checkpoints.restore() is None
    for step in (1, 2, 3):
        other.save(step)
        other.checkpoints.save_best(step)
    assert {path.name[:19] for path in tmp_path.iterdir()} == {
        "iterator-1-00000002",
        "iterator-1-00000003",
    }
    assert steps(SCRATCH, "model") == [2, 3] and steps(SCRATCH, "best") == [3]


def test_a_first_save_that_was_cut_short_is_a_new_run(tmp_path):
    Worker(tmp_path, 0).save(5)
    again = Worker(tmp_path, 0)
    assert again.checkpoints.restore() is None
    assert steps(tmp_path, "model") == []


def test_another_number_of_workers_is_refused(tmp_path):
    alone = Worker(tmp_path, workers=1)
    alone.save(10), alone.save(20)
    with pytest.raises(ValueError, match="none of 2 workers"):
        Worker(tmp_path, workers=2).checkpoints.restore()
    assert steps(tmp_path, "model") == [10, 20]
    Worker(tmp_path, worker=1).save(20)
    with pytest.raises(ValueError, match="none of 1 workers"):
        Worker(tmp_path, workers=1).checkpoints.restore()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    Worker(tmp_path, workers=1).save(1)
    iterator = iter(tf.data.Dataset.range(9))
    other = {"network": tf.train.Checkpoint(weight=tf.Variable([1, 2]))}
    with pytest.raises(ValueError, match="checkpoint of another run"):
        Checkpoints(str(tmp_path), other, iterator).restore()

"""A disk that is full: one sentence, nothing half-written that counts, and the way on."""

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from mrnn_tf import files, program, run
from mrnn_tf.config import ModelConfig, TrainConfig
from mrnn_tf.data import records
from mrnn_tf.errors import UserError
from trainer import train

FULL = (OSError, UserError, *program._environment_errors())  # those that end in a sentence


@pytest.fixture
def disk():
    """Mounts a disk of a size, or gives it another; returns its folder."""
    # Not in pytest's own folders, which could not be removed if the tests were killed.
    folder, options = Path(tempfile.mkdtemp()), []

    def mount(size):
        command = ["mount", "-t", "tmpfs", "-o", ",".join([*options, f"size={size}"])]
        done = subprocess.run([*command, "tmpfs", str(folder)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting a small disk is not allowed here: {done.stderr.strip()}")
        options[:] = ["remount"]
        return folder

    yield mount
    if options:  # lazily: the event files of a run that failed stay open in this process
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


def said(error):
    """The sentence of a program for an error that tells of a full disk."""
    sentence = program.sentence(error.value)
    assert sentence.endswith("make room, then the same command goes on."), sentence
    assert len(sentence) < 400
    return sentence


def test_records(disk, tmp_path):
    from trainer import prepare
    from trainer.options import PrepareOptions

    source = tmp_path / "photos"
    source.mkdir()
    lines = [
        f'{{"image": "{i}.jpg", "captions": ["a dog"], "split": "train"}}\n' for i in range(20)
    ]
    (source / "captions.jsonl").write_text("".join(lines))
    np.save(source / "f.npy", np.ones((20, 2048), np.float32))
    (source / "n.txt").write_text("".join(f"{i}.jpg\n" for i in range(20)))
    options = PrepareOptions(
        dataset="jsonl", source=source, output=disk("96k") / "data", images_per_shard=5,
        features=(source / "f.npy",), names=source / "n.txt", min_count=1,
    )  # fmt: skip
    with pytest.raises(FULL) as error:
        prepare.prepare(options)
    assert "partial" in said(error)
    assert not os.path.exists(f"{options.output}/dataset.json")
    written = [name for name in os.listdir(options.output) if name.endswith(".tfrecord")]
    assert 0 < len(written) < 4
    assert all(records.count_records(f"{options.output}/{name}") == 5 for name in written)
    assert not [name for name in os.listdir(options.work) if name.endswith(".partial")]
    disk("1m")
    assert prepare.prepare(options).splits["train"].images == 20


def test_checkpoints(disk, tiny_data):
    small = {"embedding_1": 8, "embedding_2": 16, "recurrent": 16, "multimodal": 24}
    options = train.TrainOptions(
        data=tiny_data,
        job_dir=f"{disk('200k')}/job",
        model=ModelConfig(**small),
        train=TrainConfig(epochs=4.0, batch_size=12, learning_rate=0.01),
    )
    with pytest.raises(FULL) as error:
        train.train(options)
    said(error)
    disk("8m")
    result = train.train(options)
    assert result.finished and run.Run.load(options.job_dir).step <= result.step


def test_reports_and_versions(disk, tmp_path):
    folder = disk("16k")
    with pytest.raises(FULL) as error:
        files.write_json(str(folder / "scores.json"), ["x" * 32_000])
    assert str(folder / "scores.json") in said(error)
    assert os.listdir(folder) == []
    model = tmp_path / "model"
    model.mkdir()
    (model / "variables").write_bytes(b"x" * 32_000)
    (model / "saved_model.pb").write_bytes(b"x")
    with pytest.raises(FULL) as error:
        files.publish(str(model), str(folder / "1"), last="saved_model.pb")
    said(error)
    assert os.listdir(folder) == []

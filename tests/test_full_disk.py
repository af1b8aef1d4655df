"""A disk that is full: one sentence, nothing half-written that counts, and the way on."""

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import programs
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


SEARCH = ["--beam=2", "--max_words=8"]
STAGES = {  # the command without its output, and sizes of disks that fill in the middle
    "evaluate": (["trainer.evaluate", "--tasks=captions,rerank,retrieval", "--nometeor",
                  "--widths=2", "--n_best=3"], ["4k", "20k"]),
    "export": (["export.task", "--version=1", *SEARCH], ["4k", "500k"]),
    "index": (["export.index", "--version=1", "--sample=10", "--k=3", "--neighbours=4", *SEARCH],
              ["4k", "32k", "500k"]),
}  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_whole_programs(disk, tiny_data, tiny_job, models, tmp_path, stage):
    command, sizes = STAGES[stage]
    folder = disk(sizes[0])
    inputs = {
        "evaluate": ["--data", tiny_data, "--job_dir", tiny_job],
        "export": ["--job_dir", tiny_job],
        "index": ["--model", models / "plain" / "1", "--data", tiny_data],
    }
    command = [*command, *inputs[stage], "--output", folder / "out"]
    for size in sizes:
        disk(size)
        failed = programs.run(tmp_path, *command)
        assert failed.code == 1, failed.err
        assert failed.error.startswith(f"error: No space left on device for {folder}/out")
        assert failed.error.endswith("make room, then the same command goes on.")
        assert not list(folder.glob("out/1")) and not list(folder.glob("**/*.partial"))
    disk("16m")
    done = programs.run(tmp_path, *command)
    assert done.code == 0, done.err


def test_a_full_folder_for_temporary_files(disk, tiny_job, tmp_path):
    command = ["export.task", "--job_dir", tiny_job, "--output", tmp_path / "out", *SEARCH]
    failed = programs.run(tmp_path, *command, environment={"TMPDIR": str(disk("40k"))})
    assert failed.code == 1 and "make room" in failed.error, failed.err
    assert not list(tmp_path.glob("out/1"))


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

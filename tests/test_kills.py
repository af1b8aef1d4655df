"""Every stage is killed at random moments, again and again: it ends with the bytes it always has.

The stages work on what an undisturbed chain wrote. A stage is killed a few times in a row by
SIGKILL, in the middle of its work or while it finishes what the last kill left; then the same
command runs to its end, and every file is compared. These files may differ:

    logs/                TensorBoard's events have times, and every start has a file of its own
    <version>.*.partial  is removed when a later version is published, a minute after the kill
    .work-*              of an index that was killed after its version had appeared
"""

import json
import random
import shutil
import time
from pathlib import Path

import numpy as np
import programs
import pytest
import tiny

SEED = 15
KILLS, IN_A_ROW = 20, 5  # of each stage
PATIENCE = 1800.0  # seconds for one run
MAY_DIFFER = "logs/"
TRAINING = [
    "--preset=demo", "--embedding_1=6", "--embedding_2=8", "--recurrent=8", "--multimodal=10",
    "--epochs=6", "--batch_size=12", "--shuffle_buffer=50", "--checkpoint_steps=2",
    "--steps_per_loop=2", "--warmup_steps=1", "--learning_rate=0.01", "--evaluate_epochs=2",
    "--deterministic",
]  # fmt: skip


class Chain:
    """The commands of the stages, and where an undisturbed run has written."""

    stages = ("prepare", "task", "evaluate", "export", "index")

    def __init__(self, folder: Path):
        self.folder, self.photos, self._seconds = folder, folder / "photos", {}
        tiny.photographs(self.photos)
        names = [f"{i}.png" for i in range(30)]
        np.save(folder / "f.npy", np.random.default_rng(0).random((30, 12), np.float32))
        (folder / "n.txt").write_text("\n".join(names))

    def written(self, stage: str) -> Path:
        """Where the undisturbed stage has written; it runs when it is needed first."""
        output = self.folder / "undisturbed" / stage
        if stage not in self._seconds:
            command, began = self.command(stage, output), time.monotonic()
            done = programs.start(self.folder / "logs", *command).wait(PATIENCE)
            assert done.code == 0, done.err
            self._seconds[stage] = time.monotonic() - began
        return output

    def seconds(self, stage: str) -> float:
        """How long it took."""
        return self._seconds[stage]

    def command(self, stage: str, output: Path) -> tuple:
        small = ["--beam=2", "--max_words=8", "--version=1"]
        if stage == "prepare":
            source = ["--dataset=jsonl", "--source", self.photos, "--min_count=1", "--store=both"]
            features = ["--features", self.folder / "f.npy", "--names", self.folder / "n.txt"]
            more = ["--images_per_shard=3", "--output", output]
            return "trainer.prepare", *source, *features, *more
        data = ["--data", self.written("prepare")]
        if stage == "task":
            return "trainer.task", *data, "--job_dir", output, *TRAINING
        job = ["--job_dir", self.written("task"), "--output", output]
        if stage == "evaluate":
            tasks = ["--tasks=captions,rerank,retrieval", "--nometeor", "--widths=2", "--n_best=3"]
            return "trainer.evaluate", *data, *job, *tasks
        if stage == "export":
            return "export.task", *job, *small
        model = ["--model", self.written("export") / "1", "--output", output]
        return "export.index", *model, *data, "--sample=10", "--k=3", "--neighbours=4", *small


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return Chain(tmp_path_factory.mktemp("chain"))


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder that must not differ."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if not name.startswith((MAY_DIFFER, ".work-")) and ".partial" not in name
    }


def is_published(stage: str, output: Path) -> bool:
    return stage in ("export", "index") and (output / "1").exists()


@pytest.mark.slow
@pytest.mark.timeout(6 * PATIENCE)
@pytest.mark.parametrize("stage", Chain.stages)
def test_killed_at_random_moments_a_stage_ends_with_the_same_bytes(chain, tmp_path, stage):
    chance, kills, rounds = random.Random(f"{SEED} {stage}"), 0, 0
    expected, longest = contents(chain.written(stage)), chain.seconds(stage)
    while kills < KILLS:
        output, in_a_row = tmp_path / str(rounds), 0
        while in_a_row < min(IN_A_ROW, KILLS - kills) and not is_published(stage, output):
            killed = programs.start(tmp_path / "logs", *chain.command(stage, output))
            killed.process.join(chance.uniform(0, longest))
            killed.process.kill()
            if killed.wait().code != -9:
                assert killed.code == 0, killed.err  # it had ended before, as others would
                longest *= 0.7
                break
            in_a_row += 1
        if not is_published(stage, output):
            done = programs.start(tmp_path / "logs", *chain.command(stage, output)).wait(PATIENCE)
            assert done.code == 0, done.err
        found = contents(output)
        differing = {name for name in expected | found if expected.get(name) != found.get(name)}
        assert not differing, f"after {in_a_row} kills: {sorted(differing)}"
        shutil.rmtree(output)
        kills, rounds = kills + in_a_row, rounds + 1
    print(json.dumps({"stage": stage, "kills": kills, "runs to the end": rounds}))

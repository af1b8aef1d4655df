"""What building an index costs, and how near its P(s) comes to the mean over the whole sample.

    python benchmarks/index_building.py --model models/mrnn/1 --data data/flickr8k --splits val
    python benchmarks/index_building.py --model models/mrnn/1 --data data/flickr8k --splits val \\
        --baseline ../release

- P(s) of captions of the dataset, by several numbers of scored images and by the 100 likeliest
  images alone, as it was before: processor time to that of the latter, and the error of log P(s) to
  the mean over all sampled images.
- With `--baseline`, a checkout of another release: the processor time of whole `export.index`
  processes, their children included. The trees take turns; the best round counts.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
import timing
from absl import app, flags

from mrnn_tf import schema
from mrnn_tf.config import SAMPLE_SIZE
from mrnn_tf.retrieval import marginal
from mrnn_tf.retrieval.expansion import Expansion
from mrnn_tf.retrieval.scoring import Scorer
from mrnn_tf.retrieval.sentences import EncodedSentences, pad
from mrnn_tf.run import Run
from mrnn_tf.split import Split

_MODEL = flags.DEFINE_string("model", None, "An exported model.", required=True)
_DATA = flags.DEFINE_string("data", None, "Its records.", required=True)
_SPLITS = flags.DEFINE_list("splits", [schema.VAL], "What is indexed.")
_BASELINE = flags.DEFINE_string("baseline", None, "A checkout of another release.")
_SENTENCES = flags.DEFINE_integer("sentences", 500, "Captions whose P(s) is timed.")
_CHECKED = flags.DEFINE_integer("checked", 100, "Captions scored by every sampled image.")
_SCORED = flags.DEFINE_list("scored", ["16", "32", "64"], "Numbers of scored images.")
_ROUNDS = flags.DEFINE_integer("rounds", 2, "Rounds of each side; the best counts.")
_LIKELIEST = 100


def main(_) -> None:
    if _SENTENCES.value:
        _marginals(Run.from_saved_model(_MODEL.value))
    if _BASELINE.value:
        _whole(os.path.abspath(_BASELINE.value))


def likeliest(scorer: Scorer, expansion: Expansion, sample: np.ndarray) -> np.ndarray:
    """log P(s) by the likeliest images, each of them scored; the others count as 0."""
    count = min(_LIKELIEST, len(sample))
    estimates = expansion.vectors.numpy() @ sample.T
    chosen = np.argpartition(-estimates, count - 1, axis=1)[:, :count]
    sentences = EncodedSentences(expansion.h, expansion.words)
    rows = np.repeat(np.arange(len(chosen)), count)
    log_probs = scorer.pairs(sentences, rows, sample, chosen.ravel()).numpy()
    return marginal.log_mean_exp(log_probs.reshape(chosen.shape)) + np.log(count / len(sample))


def _marginals(run: Run) -> None:
    scorer = Scorer(run.network.model)
    train = Split.read(run, _DATA.value, schema.TRAIN).features
    captions = Split.read(run, _DATA.value, _SPLITS.value[0]).captions
    sample = scorer.project(train[marginal.sample_rows(len(train), SAMPLE_SIZE, 0)])
    texts = [text for own in captions for text in own][: _SENTENCES.value]
    words = pad(run.vocabulary.ids(tf.constant(texts)).to_list())
    read = scorer.read(words)
    expansion = scorer.expand(read, sample.mean(axis=0))
    sides = {"likeliest": lambda: likeliest(scorer, expansion, sample)}
    for count in map(int, _SCORED.value):
        sides[count] = lambda count=count: marginal.log_marginals(scorer, expansion, sample, count)
    seconds = timing.best_seconds(sides, _ROUNDS.value, clock=time.process_time)
    picked = np.random.default_rng(0).permutation(len(texts))[: _CHECKED.value]
    checked = EncodedSentences(*(tf.gather(array, picked) for array in read))
    exact = marginal.log_mean_exp(scorer.matrix(checked, sample))
    print(f"P(s) of {len(texts):,} sentences, {len(sample):,} sampled images")
    for name, side in sides.items():
        errors = side()[picked] - exact
        label = f"{_LIKELIEST} likeliest" if name == "likeliest" else f"{name} scored"
        print(
            f"  {label}: {seconds[name] / seconds['likeliest']:.2f} of the processor time; error "
            f"of log P(s) {errors.mean():+.3f} in the mean, {np.abs(errors).mean():.3f} absolute, "
            f"{errors.std():.3f} standard deviation, {np.abs(errors).max():.3f} at most",
            flush=True,
        )


def _whole(baseline: str) -> None:
    trees = {"baseline": baseline, "this": str(Path(__file__).parents[1])}
    best = dict.fromkeys(trees, np.inf)
    for _ in range(_ROUNDS.value):
        for name, tree in trees.items():
            best[name] = min(best[name], _build(tree))
            print(f"  {name}: {best[name]:.1f} s of processor time", flush=True)
    print(f"export.index takes {best['this'] / best['baseline']:.2f} of the baseline's time")


def _build(tree: str) -> float:
    """The processor time of a process that builds the index, its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "export.index", "--model", os.path.abspath(_MODEL.value)]
        command += ["--data", os.path.abspath(_DATA.value), "--splits", ",".join(_SPLITS.value)]
        command += ["--output", os.path.join(folder, "index")]
        environment = os.environ | {"PYTHONPATH": tree}
        subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    app.run(main)

"""Merges runs of one configuration, such as those of several seeds, into one run.

Example:

    python -m trainer.ensemble --runs runs/best-0,runs/best-1,runs/best-2 --job_dir runs/ensemble

The merged network has the layers of all runs side by side, and its logits are the mean of theirs.
It is a run like any other: trainer.evaluate, export.task and export.index take its --job_dir. A
caption takes as many times as long as there are runs.
"""

from mrnn_tf import program
from trainer.options import EnsembleOptions

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("trainer.ensemble:main", EnsembleOptions)

import dataclasses

import tensorflow as tf

from mrnn_tf import files, run, schema
from mrnn_tf.errors import UserError
from mrnn_tf.model import ensemble


def merge_runs(options: EnsembleOptions) -> run.Run:
    """Writes the run directory of the merged runs."""
    if len(options.runs) < 2:
        raise UserError(f"`runs` must be two run directories at least; got {len(options.runs)}.")
    first, *others = (run.Run.load(job_dir) for job_dir in options.runs)
    for job_dir, other in zip(options.runs[1:], others, strict=True):
        difference = dataclasses.replace(other.config, train=first.config.train).difference(
            first.config
        )
        if other.vocabulary.words != first.vocabulary.words:
            difference = difference or "its vocabulary has other words"
        if difference:
            raise UserError(f"`runs`: {job_dir} cannot join {options.runs[0]}: {difference}.")
    model = ensemble.merge([each.network.model for each in (first, *others)])
    network = run.Network(model)
    network.mean_features.assign(first.network.mean_features)
    network.add_mean_normalized()
    network.mean_normalized.assign(first.network.mean_normalized)
    config = dataclasses.replace(first.config, model=model.config)
    merged = run.Run(config, first.vocabulary, network, first.step)

    if tf.io.gfile.isdir(options.job_dir) and tf.io.gfile.listdir(options.job_dir):
        raise UserError(f"`job_dir` {options.job_dir} holds files: choose a new or empty folder.")
    tf.io.gfile.makedirs(options.job_dir)
    with files.alone_in(options.job_dir):
        checkpoints = tf.io.gfile.join(options.job_dir, schema.CHECKPOINT_DIR)
        tf.io.gfile.makedirs(checkpoints)
        path = tf.io.gfile.join(checkpoints, f"best-{merged.step:08d}")
        tf.train.Checkpoint(network=network).write(path)
        merged.vocabulary.save(tf.io.gfile.join(options.job_dir, schema.VOCABULARY_FILE))
        run.save_config(config, options.job_dir)
    return merged


def main(options: EnsembleOptions) -> None:
    """Merges the runs and prints what to do next."""
    merged = merge_runs(options)
    print(f"{len(options.runs)} runs, {merged.network.model.parameter_count:,} parameters")
    print(f"next: python -m trainer.evaluate --job_dir {options.job_dir} --data DATA")

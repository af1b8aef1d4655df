"""The scalars of a run, read back from its TensorBoard event files."""

import tensorflow as tf

SHOWN = (
    ("train perplexity", "train", "perplexity"),
    ("validation perplexity", "val", "perplexity"),
    ("learning rate", "train", "learning_rate"),
)


def read(directory: str) -> dict[str, list[tuple[int, float]]]:
    """The curves of a run by name, as (step, value), from its TensorBoard directory.

    What the run did not write is left out: a directory without event files has no curves.
    """
    curves = {name: scalar(tf.io.gfile.join(directory, part), tag) for name, part, tag in SHOWN}
    return {name: points for name, points in curves.items() if points}


def scalar(directory: str, tag: str) -> list[tuple[int, float]]:
    """One scalar in the event files of a folder, by step.

    A resumed run writes another file and repeats the steps since its checkpoint: the later holds.
    """
    points = {}
    for path in sorted(tf.io.gfile.glob(tf.io.gfile.join(directory, "*tfevents*"))):
        try:
            for serialized in tf.data.TFRecordDataset(path).as_numpy_iterator():
                event = tf.compat.v1.Event.FromString(serialized)
                for value in event.summary.value:
                    if value.tag == tag:
                        points[event.step] = float(tf.make_ndarray(value.tensor))
        except tf.errors.DataLossError:
            continue  # a killed run leaves half a record at the end of its file
    return sorted(points.items())

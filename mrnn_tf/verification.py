"""`--verify`: every byte of what a program reads is checked before it begins.

Without it a program checks the sizes of all files, the content of those that it opens and that no
library checks, and leaves records, checkpoints and variables to TensorFlow, which checks what it
reads of them.
"""

import logging

import tensorflow as tf

from mrnn_tf import run, schema, versions
from mrnn_tf.data import records

_INDEX = ".index"


def verify(*directories: str | None) -> None:
    """Reads every file of datasets, runs and versions; refuses a damaged one by name."""
    for directory in filter(None, directories):
        has = {name: _exists(directory, name) for name in _CHECKS}
        for name, check in _CHECKS.items():
            if has[name]:
                check(directory)
        checkpoints = tf.io.gfile.join(directory, schema.CHECKPOINT_DIR)
        count = sum(map(_verify_checkpoints, [directory, checkpoints]))
        if any(has.values()) or count:
            logging.info("Verified every file of %s.", directory)


def _exists(directory: str, name: str) -> bool:
    return tf.io.gfile.exists(tf.io.gfile.join(directory, name))


def _verify_checkpoints(directory: str) -> int:
    """Reads all tensors of all checkpoints in a directory; returns how many there are."""
    names = tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []
    paths = [tf.io.gfile.join(directory, name) for name in names if name.endswith(_INDEX)]
    for path in (path.removesuffix(_INDEX) for path in paths):
        with run.naming_damage(path):
            types = tf.compat.v1.train.NewCheckpointReader(path).get_variable_to_dtype_map()
            for name, dtype in types.items():
                tf.raw_ops.RestoreV2(
                    prefix=path, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
                )
    return len(paths)


_CHECKS = {
    schema.DATASET_FILE: lambda directory: records.DatasetInfo.load(directory).checksums.check(),
    schema.CONFIG_FILE: run.check_files,
    schema.SAVED_MODEL_FILE: lambda directory: versions.check(directory, everything=True),
}

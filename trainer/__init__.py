"""Programs that prepare data, train and evaluate."""

import os

import mrnn_tf  # noqa: F401 (it says which extra is missing)

# TensorFlow's C++ start-up chatter, which would hide the programs' own lines.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

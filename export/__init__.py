"""From a run directory to what a server loads."""

import os

from mrnn_tf import extras

extras.check_program()

# TensorFlow's C++ start-up chatter, which would hide the programs' own lines.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

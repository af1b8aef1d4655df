"""Serving: a server for one machine, a client for any, and deployments."""

import os

from mrnn_tf import extras

extras.check_program()

# TensorFlow's C++ start-up chatter, which would hide the programs' own lines.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

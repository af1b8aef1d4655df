"""Serving: a server for one machine, a client for any, and deployments."""

import mrnn_tf  # noqa: F401 (it says which extra is missing)

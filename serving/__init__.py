"""Serving: a server for one machine, a client for any, and deployments."""

from mrnn_tf import extras

extras.check_program()

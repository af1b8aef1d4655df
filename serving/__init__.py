"""Serving: a server for one machine, a client for any, and deployments."""

"""Hostile inputs for every parser: `make fuzz`, or `PYTHONPATH=.:tests python -m fuzz --help`."""

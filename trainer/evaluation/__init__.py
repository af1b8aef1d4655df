"""Evaluators: each gives figures and a section of the report."""

"""The evaluators: what a run makes of a split, as figures and data for the report."""

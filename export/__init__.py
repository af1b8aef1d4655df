"""From a run directory to what a server loads."""

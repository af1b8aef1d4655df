"""From a run directory to what a server loads."""

import mrnn_tf  # noqa: F401 (it says which extra is missing)

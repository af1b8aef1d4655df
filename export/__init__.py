"""From a run directory to what a server loads."""

from mrnn_tf import extras

extras.check_program()

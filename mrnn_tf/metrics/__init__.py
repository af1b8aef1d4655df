"""How good captions are: the metrics of captions and the files that hold captions."""

from mrnn_tf import extras

extras.check_program()

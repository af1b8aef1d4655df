"""How good captions are: the metrics of captions and the files that hold captions."""

"""Image encoders: from the bytes of a picture to the vector that the language model sees."""

"""mrnn_tf: captions for images, images for sentences, sentences for images."""

__version__ = "0.1.0"

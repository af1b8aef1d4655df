"""Tiny untrained networks as directories: presets of keras-hub, and a SavedModel."""

import keras
import keras_hub
import tensorflow as tf

SIZE = 28
_BLOCKS = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8}
_VISION = {**_BLOCKS, "patch_size": 7, "image_shape": (SIZE, SIZE, 3), "intermediate_dim": 16}
_TEXT = {**_BLOCKS, "vocabulary_size": 20, "embedding_dim": 8, "intermediate_dim": 16}
_NORM = {"scale": [1 / 58.4, 1 / 57.1, 1 / 57.4], "offset": [-2.1, -2.0, -1.8]}


def backbones() -> dict:
    """A backbone of each kind with the class of its image converter."""
    models, layers = keras_hub.models, keras_hub.layers
    keras.utils.set_random_seed(1)
    vit = {**_BLOCKS, "patch_size": 7, "image_shape": (SIZE, SIZE, 3), "mlp_dim": 16}
    registers = {"num_register_tokens": 3, "position_embedding_shape": (42, 42, 3)}
    clip = models.CLIPVisionEncoder(**_VISION, name="clip_vision")
    clip_text = models.CLIPTextEncoder(**_TEXT, max_sequence_length=5, name="clip_text")
    siglip = models.SigLIPVisionEncoder(**_VISION, name="siglip_vision")
    siglip_text = models.SigLIPTextEncoder(**_TEXT, max_sequence_length=5, name="siglip_text")
    resnet = {
        "input_conv_filters": [64],
        "input_conv_kernel_sizes": [3],
        "stackwise_num_filters": [64],
        "stackwise_num_blocks": [1],
        "stackwise_num_strides": [1],
        "block_type": "basic_block",
    }
    return {
        "vit": (models.ViTBackbone(**vit), layers.ViTImageConverter),
        "dinov2": (models.DINOV2Backbone(**_VISION, **registers), layers.DINOV2ImageConverter),
        "clip": (models.CLIPBackbone(clip, clip_text, 6), layers.CLIPImageConverter),
        "siglip": (models.SigLIPBackbone(siglip, siglip_text), layers.SigLIPImageConverter),
        "resnet": (models.ResNetBackbone(**resnet), layers.ResNetImageConverter),
    }


def write(folder) -> dict[str, str]:
    """Writes a preset of each kind; returns their directories."""
    directories = {}
    for name, (backbone, converter) in backbones().items():
        directory = str(folder / f"{name}+tiny")  # a plus sign of a directory divides nothing
        backbone.save_to_preset(directory)
        converter(image_size=(SIZE, SIZE), **_NORM).save_to_preset(directory)
        directories[name] = directory
    return directories


def write_saved_model(directory, shape=(SIZE, SIZE, 3), dtype=tf.float32) -> str:
    """Writes a network of one convolution that ends in 5 features."""
    inputs = keras.Input(shape, dtype=dtype)
    x = keras.layers.Conv2D(5, 3, bias_initializer="ones")(keras.ops.cast(inputs, "float32"))
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(x))
    model.export(str(directory), verbose=False)
    return str(directory)

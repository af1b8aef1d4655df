"""Image encoders of keras-hub: backbones for images, and the vision part of CLIP and SigLIP."""

import hashlib
import json
import os

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from mrnn_tf import extras
from mrnn_tf.errors import UserError
from mrnn_tf.vision import grouped_conv, parameters
from mrnn_tf.vision.applications import Backbone
from mrnn_tf.vision.scaling import SCALINGS

PREFIX = "keras_hub"


def load(
    preset: str,
    pooling: str | None = None,
    input_size: int | None = None,
    scaling: str | None = None,
) -> tuple[Backbone, keras.Model, str]:
    """What makes pixels ready, the network up to its pooled features, and a hash of its weights.

    A preset is a local directory, or a name that keras-hub downloads. Size and scaling are the
    preset's own unless they are given. `pooling` is one of `config.POOLINGS`.
    """
    try:
        import keras_hub
    except ImportError as error:
        named = f"`encoder` {PREFIX}:{preset}"
        raise UserError(extras.sentence(named, "keras_hub", "hub")) from error
    if not os.path.isdir(preset):
        if preset.startswith((".", "/", "~")):
            raise FileNotFoundError(f"`encoder`: there is no directory {preset}.")
        logging.info("%s is no directory: keras-hub downloads the preset of that name.", preset)
    options = {"image_shape": (input_size, input_size, 3)} if input_size else {}
    try:
        backbone = keras_hub.models.Backbone.from_preset(preset, **options)
    except (ValueError, TypeError, OSError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"`encoder`: keras-hub cannot load {preset}: {reason}") from error
    images, tokens, pooled = _outputs(preset, backbone)
    if None in images.shape[1:3] and not input_size:
        raise UserError(f"`input_size` is required: {preset} takes images of any size.")
    size = input_size or images.shape[1]
    patch = getattr(getattr(backbone, "vision_encoder", backbone), "patch_size", None)
    patches = (size // int(np.max(patch))) ** 2 if patch else None
    features, pooling = _pool(preset, images, tokens, pooled, patches, pooling)
    model = grouped_conv.without_xla(keras.Model(images, features, name=type(backbone).__name__))
    if scaling:
        preprocess = SCALINGS[scaling]
    else:
        preprocess, scaling = _preset_scaling(preset)
    network = Backbone(None, preprocess, size, f"{scaling}-{pooling}")
    return network, model, parameters.sha256(model)


def _outputs(preset: str, backbone: keras.Model) -> tuple:
    """The symbolic images, tokens or feature maps, and what the network itself pools, or None."""
    vision = getattr(backbone, "vision_encoder", backbone)
    images = vision.input["images"] if isinstance(vision.input, dict) else vision.input
    output = vision.output
    if getattr(images, "shape", ())[-1:] != (3,) or isinstance(output, dict | list):
        raise UserError(f"`encoder`: {preset} is a {type(backbone).__name__}, no image encoder.")
    if len(output.shape) == 2:  # SigLIP has a head of attention
        norm = getattr(vision, "post_layer_norm", None)
        return images, norm.output if norm else None, output
    if hasattr(backbone, "vision_pooler"):
        return images, output, backbone.vision_projection(backbone.vision_pooler(output))
    return images, output, None


def _pool(preset: str, images, tokens, pooled, patches: int | None, pooling: str | None) -> tuple:
    """Symbolic features [B, D] and how they were pooled, by default in the first possible way.

    Args:
        tokens: [B, T, D], the class token and registers first, or feature maps [B, H, W, D].
        pooled: [B, D] that the network itself makes, or None.
        patches: how many of the tokens are of patches; None for all.
    """
    ways = {"pooled": pooled} if pooled is not None else {}
    if tokens is not None and len(tokens.shape) == 4:
        ways["mean"] = keras.layers.GlobalAveragePooling2D()(tokens)
    elif tokens is not None:
        # By a trial: the symbolic shape of SigLIP's tokens has one too many.
        blank = keras.ops.zeros((1, *images.shape[1:]))
        count = keras.Model(images, tokens)(blank).shape[1]
        others = count - patches if patches else 0
        mean = keras.layers.GlobalAveragePooling1D()(tokens[:, others:])
        if others:
            ways["cls"] = tokens[:, 0]
            ways["cls_mean"] = keras.layers.Concatenate()([tokens[:, 0], mean])
        ways["mean"] = mean
    pooling = pooling or next(iter(ways))
    if pooling not in ways:
        raise UserError(
            f"`pooling` must be one of {', '.join(ways)} for {preset}; got {pooling!r}."
        )
    return ways[pooling], pooling


def _preset_scaling(preset: str) -> tuple:
    """The preset's own normalisation of pixels, and a name that tells it from others."""
    import keras_hub

    try:
        converter = keras_hub.layers.ImageConverter.from_preset(preset)
    except (ValueError, OSError) as error:
        raise UserError(
            f"`scaling` is required, one of {', '.join(SCALINGS)}: the preset {preset} does not "
            "say how pixels are scaled."
        ) from error
    scale = np.asarray(1.0 if converter.scale is None else converter.scale, np.float32)
    offset = np.asarray(0.0 if converter.offset is None else converter.offset, np.float32)
    text = json.dumps([scale.tolist(), offset.tolist()])
    name = f"preset{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return lambda pixels: pixels * tf.constant(scale) + tf.constant(offset), name

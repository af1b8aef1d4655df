"""Runs an export as TF Serving does: in a session, by the ops of TensorFlow and tensorflow-text.

    python export/fresh.py MODEL CALLS RESULTS

CALLS is a list of (signature, {input: array}) as `to_json` writes it; RESULTS becomes the list of
their outputs.
"""

import base64
import gc
import importlib.util
import json
import os
import sys

if __name__ == "__main__":
    sys.modules["keras"] = None  # nothing of it may be needed; TensorFlow does without
    gc.disable()  # a short process

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

# A stock TF Serving has TensorFlow's own ops (here those of `tf.raw_ops`) and tensorflow-text's,
# but an ICU without data files. ICU has NFC and NFD compiled in; it loads NFKC, NFKD and case
# folding from data. Sources: tensorflow_serving/model_servers/BUILD (SUPPORTED_TENSORFLOW_OPS),
# tensorflow_serving/workspace.bzl and third_party/icu/BUILD of TF Serving 2.20.0;
# tensorflow_text/BUILD (ops_lib) and tensorflow_text/core/kernels of tensorflow-text 2.20.0;
# icu4c/source/common/normalizer2impl.h (NORM2_HARDCODE_NFC_DATA) and loadednormalizer2impl.cpp
# of ICU 77.1.
_NORMALIZERS = ("NormalizeUTF8", "NormalizeUTF8WithOffsetsMap")
_TEXT_OPS = ("FindSourceOffsets", "RegexSplitWithOffsets", "WhitespaceTokenizeWithOffsets")
_TEXT_LIBRARIES = ("_normalize_ops", "_regex_split_ops", "_whitespace_tokenizer")  # of these ops
_NO_DATA = "needs ICU's normalisation data, which TF Serving does not link"
_NO_XLA = "TF Serving does not compile by XLA"


def unservable(directory: str) -> list[str]:
    """The ops that a stock server could not run, each with the reason."""
    saved = saved_model_pb2.SavedModel()
    with tf.io.gfile.GFile(tf.io.gfile.join(directory, "saved_model.pb"), "rb") as file:
        saved.ParseFromString(file.read())
    refused = set()
    for graph in (meta.graph_def for meta in saved.meta_graphs):
        functions = {function.signature.name: function for function in graph.library.function}
        nodes = [*graph.node, *(node for each in functions.values() for node in each.node_def)]
        refused |= {(node.op, _reason(node)) for node in nodes if node.op not in functions}
        if any(holder.attr["_XlaMustCompile"].b for holder in (*nodes, *functions.values())):
            refused.add(("jit_compile", _NO_XLA))
    return sorted(f"{op} ({reason})" for op, reason in refused if reason)


def _reason(node: tf.compat.v1.NodeDef) -> str | None:
    """Why a stock server could not run an op; None where it can."""
    if node.op in _NORMALIZERS:  # by default NFKC, and a default is not saved
        form = node.attr["normalization_form"].s.decode().upper() or "NFKC"
        return None if form in ("NFC", "NFD") else f"{form} {_NO_DATA}"
    if node.op == "CaseFoldUTF8":
        return _NO_DATA
    if "PyFunc" in node.op:
        return "it calls Python"
    if "Xla" in node.op:
        return _NO_XLA
    if node.op not in _TEXT_OPS and not hasattr(tf.raw_ops, node.op):
        return "neither an op of TensorFlow itself nor one of tensorflow-text known to run there"
    return None


def to_json(calls: list[tuple[str, dict[str, np.ndarray]]]) -> str:
    """Named arrays of signatures as text, the arrays as protos."""

    def encoded(array):
        return base64.b64encode(tf.make_tensor_proto(array).SerializeToString()).decode()

    return json.dumps(
        [(name, {k: encoded(v) for k, v in arrays.items()}) for name, arrays in calls]
    )


def from_json(text: str) -> list[tuple[str, dict[str, np.ndarray]]]:
    """The reverse of `to_json`."""

    def decoded(value):
        return tf.make_ndarray(tensor_pb2.TensorProto.FromString(base64.b64decode(value)))

    return [(name, {k: decoded(v) for k, v in arrays.items()}) for name, arrays in json.loads(text)]


def main(directory: str, calls_path: str, results_path: str) -> None:
    if found := unservable(directory):
        sys.exit(f"TF Serving could not run {', '.join(found)}")
    with open(calls_path) as file:
        calls = from_json(file.read())
    [package] = importlib.util.find_spec("tensorflow_text").submodule_search_locations
    for library in _TEXT_LIBRARIES:
        tf.load_op_library(os.path.join(package, "python", "ops", f"{library}.so"))
    results = []
    # No soft placement, as in TF Serving: a device that the graph names must exist. The graph is
    # optimised as there, but in one pass instead of two.
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.meta_optimizer_iterations = RewriterConfig.ONE
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], directory)
        for name, inputs in calls:
            signature = loaded.signature_def[name]
            outputs = {key: info.name for key, info in signature.outputs.items()}
            given = {signature.inputs[key].name: value for key, value in inputs.items()}
            results.append((name, session.run(outputs, given)))
    with open(results_path, "w") as file:
        file.write(to_json(results))


if __name__ == "__main__":
    main(*sys.argv[1:])

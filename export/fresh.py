"""Runs an export as TF Serving does: in a session, with TensorFlow and tensorflow-text alone.

    python export/fresh.py MODEL CALLS RESULTS

CALLS is a pickled list of (signature, {input: array}); RESULTS becomes the list of their outputs.
"""

import pickle
import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers its ops
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

_NEEDS_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


def unservable(directory: str) -> list[str]:
    """What a stock server could not run: unknown ops, Python, and anything compiled by XLA."""
    saved = saved_model_pb2.SavedModel()
    with tf.io.gfile.GFile(tf.io.gfile.join(directory, "saved_model.pb"), "rb") as file:
        saved.ParseFromString(file.read())
    found = set()
    for graph in (meta.graph_def for meta in saved.meta_graphs):
        functions = {function.signature.name: function for function in graph.library.function}
        nodes = [*graph.node, *(node for each in functions.values() for node in each.node_def)]
        for node in nodes:
            known = node.op in functions or op_def_registry.get(node.op) is not None
            if not known or node.op in _NEEDS_PYTHON or node.op.startswith("Xla"):
                found.add(node.op)
        for holder in [*nodes, *functions.values()]:
            if holder.attr["_XlaMustCompile"].b:
                found.add("_XlaMustCompile")
    return sorted(found)


def main(directory: str, calls_path: str, results_path: str) -> None:
    if found := unservable(directory):
        sys.exit(f"TF Serving could not run {', '.join(found)}")
    with open(calls_path, "rb") as file:
        calls = pickle.load(file)
    results = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], directory)
        for name, inputs in calls:
            signature = loaded.signature_def[name]
            outputs = {key: info.name for key, info in signature.outputs.items()}
            given = {signature.inputs[key].name: value for key, value in inputs.items()}
            results.append((name, session.run(outputs, given)))
    with open(results_path, "wb") as file:
        pickle.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])

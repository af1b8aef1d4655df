"""`export.index` in a store that only its process sees: MODEL and DATA are copied there first."""

import os
import runpy
import sys

import tensorflow as tf

from mrnn_tf.retrieval.index import Index

_, model, data, *flags = sys.argv
for source, target in ((model, "ram://remote/mrnn/1"), (data, "ram://remote/data")):
    for folder, _, names in os.walk(source):
        for name in names:
            path = os.path.join(folder, name)
            copy = os.path.join(target, os.path.relpath(path, source))
            tf.io.gfile.makedirs(os.path.dirname(copy))
            tf.io.gfile.copy(path, copy)
places = ["--model=ram://remote/mrnn/1", "--data=ram://remote/data", "--output=ram://remote/index"]
sys.argv = ["export.index", *places, *flags]
try:
    runpy.run_module("export.index", run_name="__main__", alter_sys=True)
finally:
    print(Index.load("ram://remote/index/1/assets.extra/index").header.images, "images")
    print("versions:", *tf.io.gfile.listdir("ram://remote/index"))

"""The models of a directory: their newest versions, loaded, switched and unloaded.

A model is a directory `<name>/<version>/` with `saved_model.pb`; names other than whole numbers are
ignored. A version that vanishes from the directory stays loaded until a newer one replaces it.
"""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable

import grpc
import tensorflow as tf
from absl import logging
from tensorflow_serving.apis import get_model_status_pb2, model_pb2

from mrnn_tf import schema, versions
from mrnn_tf.errors import UserError
from serving.served_version import Refused, ServedVersion

_STATUS = get_model_status_pb2.ModelVersionStatus


class _Model:
    """What is known of one model, by version."""

    def __init__(self):
        self.current: ServedVersion | None = None
        self.statuses = {}
        self.broken = {}  # the files
        self.replaced = weakref.WeakValueDictionary()  # those that requests still hold

    def note(self, version: int, state: int, error: Refused | None = None) -> None:
        status = {"error_code": error.code.value[0], "error_message": str(error)} if error else {}
        self.statuses[version] = _STATUS(version=version, state=state, status=status)


class ModelDirectory:
    """Keeps the newest version of every model loaded; `announce` is called when one is."""

    def __init__(self, base_path: str, announce: Callable[[ServedVersion], None]):
        if not tf.io.gfile.isdir(base_path):
            raise FileNotFoundError(f"`model_base_path`: there is no directory {base_path}.")
        if versions.newest(base_path):
            sentence = "holds versions of one model; give the directory above it."
            raise UserError(f"`model_base_path`: {base_path} {sentence}")
        self._base_path = base_path
        self._announce = announce
        self._models = {}
        self.loading = False

    @property
    def ready(self) -> bool:
        """Whether there are models, and each has a version loaded."""
        return bool(self._models) and all(model.current for model in self._models.values())

    def find(self, spec: model_pb2.ModelSpec) -> ServedVersion:
        """The version that a request names, or the newest."""
        if spec.version_label:
            raise Refused(f"Unrecognized servable version label: {spec.version_label}")
        current = self._models.get(spec.name, _Model()).current
        wanted = spec.version.value if spec.HasField("version") else None
        if current is None or wanted not in (None, current.version):
            asked = f"Latest({spec.name})" if wanted is None else f"Specific({spec.name}, {wanted})"
            raise Refused(f"Servable not found for request: {asked}", grpc.StatusCode.NOT_FOUND)
        return current

    def status(self, spec: model_pb2.ModelSpec) -> get_model_status_pb2.GetModelStatusResponse:
        """The states of a model's versions, newest first, or of the one that is named."""
        statuses = self._models.get(spec.name, _Model()).statuses
        wanted = [spec.version.value] if spec.HasField("version") else sorted(statuses)[::-1]
        if not set(wanted) & set(statuses):
            asked = f"version {wanted[0]}" if wanted else "any versions"
            raise Refused(f"Could not find {asked} of model {spec.name}", grpc.StatusCode.NOT_FOUND)
        listed = [statuses[version] for version in wanted]
        return get_model_status_pb2.GetModelStatusResponse(model_version_status=listed)

    async def poll(self) -> None:
        """Looks once for new versions, loads them, and notes which old ones are unloaded."""
        try:
            numbers = await asyncio.to_thread(_numbers, self._base_path)
            for name in sorted(numbers):
                await self._update(name, sorted(numbers[name], reverse=True))
        except tf.errors.OpError as error:  # a remote directory may be out of reach for a while
            sentence = f"Cannot look into {self._base_path}: {error.message}"
            logging.log_every_n_seconds(logging.WARNING, sentence, 60)
        for name, model in self._models.items():
            unloading = [n for n, s in model.statuses.items() if s.state == _STATUS.UNLOADING]
            if unloading:
                gc.collect()  # TensorFlow's functions refer to each other
            for version in set(unloading) - set(model.replaced):
                model.note(version, _STATUS.END)
                logging.info("%s version %d is unloaded", name, version)

    async def _update(self, name: str, numbers: list[int]) -> None:
        """Loads the first of a model's versions that can be loaded, unless it is the current."""
        model = self._models.setdefault(name, _Model())
        for version in numbers:
            path = tf.io.gfile.join(self._base_path, name, str(version))
            if model.current and model.current.version == version:
                return
            files = await asyncio.to_thread(_files, path)
            if model.broken.get(version) == files:
                continue
            model.note(version, _STATUS.LOADING)
            logging.info("Loading %s version %d", name, version)
            self.loading = True
            # A SavedModel may be broken in any way: whatever was raised is reported.
            load = asyncio.to_thread(ServedVersion, name, version, path)
            [loaded] = await asyncio.gather(load, return_exceptions=True)
            self.loading = False
            if isinstance(loaded, ServedVersion):
                if old := model.current:
                    model.note(old.version, _STATUS.UNLOADING)
                    model.replaced[old.version] = old
                model.current = loaded
                model.note(version, _STATUS.AVAILABLE)
                self._announce(loaded)
                return
            if isinstance(loaded, tf.errors.OpError):
                loaded = Refused.by_graph(loaded)
            elif not isinstance(loaded, Refused):
                loaded = Refused(f"{type(loaded).__name__}: {loaded}", grpc.StatusCode.UNKNOWN)
            model.broken[version] = files
            model.note(version, _STATUS.END, loaded)
            logging.error("%s version %d cannot be loaded: %s", name, version, loaded)


def _numbers(base_path: str) -> dict[str, list[int]]:
    """The whole versions of every model."""
    models = {}
    for file in tf.io.gfile.glob(tf.io.gfile.join(base_path, "*", "*", schema.SAVED_MODEL_FILE)):
        *_, name, version, _ = file.split("/")
        if versions.NUMBER.fullmatch(version):
            models.setdefault(name, []).append(int(version))
    return models


def _files(path: str) -> dict[str, tuple[int, int]]:
    """Every file of a directory with its size and time, to see whether anything has changed."""
    files = {}
    for folder, _, names in tf.io.gfile.walk(path):
        for file in (tf.io.gfile.join(folder, name) for name in names):
            with contextlib.suppress(tf.errors.OpError):  # it may vanish meanwhile
                status = tf.io.gfile.stat(file)
                files[file] = (status.length, status.mtime_nsec)
    return files

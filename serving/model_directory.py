"""The models of a directory: their newest versions, loaded, switched and unloaded.

A model is a directory `<name>/<version>/` with `saved_model.pb`; names other than whole numbers are
ignored. A version that vanishes from the directory stays loaded until a newer one replaces it.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import gc
from collections.abc import Callable

import grpc
import tensorflow as tf
from absl import logging
from tensorflow_serving.apis import get_model_status_pb2, model_pb2

from mrnn_tf import schema, versions
from mrnn_tf.errors import UserError
from serving.refusal import Refused, invalid
from serving.served_version import ServedVersion

_STATUS = get_model_status_pb2.ModelVersionStatus


@dataclasses.dataclass
class _Model:
    """What is known of one model."""

    current: ServedVersion | None = None
    statuses: dict[int, _STATUS] = dataclasses.field(default_factory=dict)
    broken: dict[int, tuple] = dataclasses.field(default_factory=dict)  # files by version

    def note(self, version: int, state: int, error: Refused | None = None) -> None:
        code = error.code.value[0] if error else 0
        status = {"error_code": code, "error_message": str(error) if error else ""}
        self.statuses[version] = _STATUS(version=version, state=state, status=status)


class ModelDirectory:
    """Keeps the newest version of every model loaded.

    Args:
        base_path: str. The directory of the models.
        max_bytes: int. The largest tensor of a request.
        announce: Callable. Called with every version that begins to serve.
    """

    def __init__(self, base_path: str, max_bytes: int, announce: Callable[[ServedVersion], None]):
        if not tf.io.gfile.isdir(base_path):
            raise FileNotFoundError(f"`model_base_path`: there is no directory {base_path}.")
        if _versions(base_path):
            raise UserError(
                f"`model_base_path`: {base_path} holds versions of one model; give the directory "
                "above it."
            )
        self._base_path = base_path
        self._max_bytes = max_bytes
        self._announce = announce
        self._models = {}
        self._unloading = set()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "load")
        self.loading = False

    @property
    def ready(self) -> bool:
        """Whether there are models, and each has a version loaded."""
        return bool(self._models) and all(model.current for model in self._models.values())

    def find(self, spec: model_pb2.ModelSpec) -> ServedVersion:
        """The version that a request names, or the newest."""
        if spec.version_label:
            raise invalid(f"Unrecognized servable version label: {spec.version_label[:100]}")
        current = self._models.get(spec.name, _Model()).current
        wanted = spec.version.value if spec.HasField("version") else None
        if current is None or wanted not in (None, current.version):
            name = spec.name[:100]
            request = f"Latest({name})" if wanted is None else f"Specific({name}, {wanted})"
            raise _not_found(f"Servable not found for request: {request}")
        return current

    def status(self, spec: model_pb2.ModelSpec) -> get_model_status_pb2.GetModelStatusResponse:
        """The states of a model's versions, newest first, or of the one that is named."""
        statuses = self._models.get(spec.name, _Model()).statuses
        wanted = [spec.version.value] if spec.HasField("version") else sorted(statuses)[::-1]
        if not set(wanted) & set(statuses):
            versions = f"version {wanted[0]}" if wanted else "any versions"
            raise _not_found(f"Could not find {versions} of model {spec.name[:100]}")
        return get_model_status_pb2.GetModelStatusResponse(
            model_version_status=[statuses[version] for version in wanted]
        )

    async def poll(self) -> None:
        """Looks once for new versions and loads them."""
        loop = asyncio.get_running_loop()
        path = tf.io.gfile.join(self._base_path, "*")
        try:
            models = await loop.run_in_executor(self._thread, _versions, path)
        except tf.errors.OpError as error:  # a remote directory may be out of reach for a while
            logging.log_every_n_seconds(
                logging.WARNING, "Cannot look into %s: %s", 60, self._base_path, error.message
            )
            return
        for name, directories in models.items():
            await self._update(name, self._models.setdefault(name, _Model()), directories)

    async def _update(self, name: str, model: _Model, versions: dict[int, str]) -> None:
        loop = asyncio.get_running_loop()
        for version, path in sorted(versions.items(), reverse=True):
            if model.current and model.current.version == version:
                return
            files = await loop.run_in_executor(self._thread, _files, path)
            if model.broken.get(version) == files:
                continue
            model.note(version, _STATUS.LOADING)
            logging.info("Loading %s version %d", name, version)
            load = loop.run_in_executor(
                self._thread, ServedVersion, name, version, path, self._max_bytes
            )
            self.loading = True
            await asyncio.wait([load])
            self.loading = False
            # A SavedModel may be broken in any way: whatever was raised is reported.
            error = load.exception()
            if error is None:
                model.broken.pop(version, None)
                self._switch(model, load.result())
                return
            model.broken[version] = files
            if isinstance(error, tf.errors.OpError):
                error = Refused.by_graph(error)
            elif not isinstance(error, Refused):
                error = Refused(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
            model.note(version, _STATUS.END, error)
            logging.error("%s version %d cannot be loaded: %s", name, version, error)

    def _switch(self, model: _Model, new: ServedVersion) -> None:
        old, model.current = model.current, new
        model.note(new.version, _STATUS.AVAILABLE)
        self._announce(new)
        if old:
            task = asyncio.create_task(self._unload(model, old))
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    async def _unload(self, model: _Model, old: ServedVersion) -> None:
        model.note(old.version, _STATUS.UNLOADING)
        await old.unused.wait()
        model.note(old.version, _STATUS.END)
        logging.info("%s version %d is unloaded", old.name, old.version)
        del old
        gc.collect()


def _not_found(sentence: str) -> Refused:
    return Refused(grpc.StatusCode.NOT_FOUND, sentence)


def _versions(pattern: str) -> dict[str, dict[int, str]]:
    """The directories of the versions of every model whose directory matches, by its name."""
    models = {}
    for file in sorted(tf.io.gfile.glob(tf.io.gfile.join(pattern, "*", schema.SAVED_MODEL_FILE))):
        path = file[: -len(schema.SAVED_MODEL_FILE) - 1]
        *_, name, version = path.split("/")
        if versions.NUMBER.fullmatch(version):
            models.setdefault(name, {})[int(version)] = path
    return models


def _files(path: str) -> tuple:
    """Every file of a directory with its size and time, to see whether anything has changed."""
    files = []
    for folder, _, names in tf.io.gfile.walk(path):
        for name in names:
            file = tf.io.gfile.join(folder, name)
            with contextlib.suppress(tf.errors.OpError):  # it may vanish meanwhile
                status = tf.io.gfile.stat(file)
                files.append((file, status.length, status.mtime_nsec))
    return tuple(sorted(files))

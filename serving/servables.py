"""The models below a directory: their newest versions, loaded, warmed up, switched and unloaded.

A model is a directory `<name>/<version>/` with `saved_model.pb`; other names than whole numbers are
not looked at. What vanishes from the directory stays loaded until something newer replaces it.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import gc
import re
from collections.abc import Callable, Iterator

import grpc
import tensorflow as tf
import tensorflow_text  # noqa: F401  Its ops may be in a model.
from absl import logging
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import get_model_status_pb2, model_pb2, prediction_log_pb2

from mrnn_tf.errors import UserError
from serving import refusal, tensor_protos
from serving.refusal import Refused
from serving.signatures import Signature

GRAPH_FILE = "saved_model.pb"
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")
_STATUS = get_model_status_pb2.ModelVersionStatus


class Servable:
    """A loaded version of a model.

    Args:
        name: str.
        version: int.
        path: str. The directory of the SavedModel.
        max_bytes: int. The largest tensor that a warm-up record may hold.
    """

    def __init__(self, name: str, version: int, path: str, max_bytes: int):
        self.name = name
        self.version = version
        self._users = 0
        self.unused = asyncio.Event()
        self.unused.set()
        with tf.io.gfile.GFile(tf.io.gfile.join(path, GRAPH_FILE), "rb") as file:
            saved = saved_model_pb2.SavedModel.FromString(file.read())
        [served] = [each for each in saved.meta_graphs if "serve" in each.meta_info_def.tags]
        self.definitions = dict(served.signature_def)
        self._loaded = tf.saved_model.load(path)
        self.signatures = {
            key: Signature.create(key, self.definitions[key], function)
            for key, function in self._loaded.signatures.items()
        }
        self._warm_up(tf.io.gfile.join(path, WARMUP_FILE), max_bytes)

    def signature(self, name: str) -> Signature:
        name = name or "serving_default"
        if name not in self.signatures:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                f'Serving signature key "{name[:100]}" not found; `{self.name}` has '
                + ", ".join(sorted(self.signatures)),
            )
        return self.signatures[name]

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """While a request needs the version."""
        self._users += 1
        self.unused.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self.unused.set()

    def _warm_up(self, path: str, max_bytes: int) -> None:
        if not tf.io.gfile.exists(path):
            return
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            log = prediction_log_pb2.PredictionLog.FromString(record)
            if not log.HasField("predict_log"):
                continue
            request = log.predict_log.request
            signature = self.signature(request.model_spec.signature_name)
            signature(tensor_protos.read(signature, request.inputs, max_bytes))


@dataclasses.dataclass
class _Model:
    """What is known of one model."""

    current: Servable | None = None
    statuses: dict[int, _STATUS] = dataclasses.field(default_factory=dict)
    broken: dict[int, tuple] = dataclasses.field(default_factory=dict)  # files by version

    def note(self, version: int, state: int, error: Refused | None = None) -> None:
        status = _STATUS(version=version, state=state)
        status.status.error_code = error.code.value[0] if error else 0
        status.status.error_message = str(error) if error else ""
        self.statuses[version] = status


class Servables:
    """Keeps the newest version of every model loaded.

    Args:
        base_path: str. The directory of the models.
        max_bytes: int. The largest tensor of a request.
        announce: Callable. Called with every version that begins to serve.
    """

    def __init__(self, base_path: str, max_bytes: int, announce: Callable[[Servable], None]):
        if not tf.io.gfile.isdir(base_path):
            raise FileNotFoundError(f"--model_base_path: there is no directory {base_path}.")
        if _versions(base_path):
            raise UserError(
                f"--model_base_path: {base_path} holds versions of one model; give the directory "
                "above it."
            )
        self._base_path = base_path
        self._max_bytes = max_bytes
        self._announce = announce
        self._models = {}
        self._found_first = set()
        self._trouble = ""
        self._unloading = set()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "load")
        self.loading = False

    @property
    def ready(self) -> bool:
        """Whether there are models, and all that were found first are loaded."""
        return bool(self._found_first) and all(
            self._models[name].current for name in self._found_first
        )

    def find(self, spec: model_pb2.ModelSpec) -> Servable:
        """The version that a request names, or the newest."""
        if spec.version_label:
            raise refusal.invalid(
                f"Unrecognized servable version label: {spec.version_label[:100]}"
            )
        current = self._models[spec.name].current if spec.name in self._models else None
        wanted = spec.version.value if spec.HasField("version") else None
        if current is None or wanted not in (None, current.version):
            name = spec.name[:100]
            asked = f"Latest({name})" if wanted is None else f"Specific({name}, {wanted})"
            raise _not_found(f"Servable not found for request: {asked}")
        return current

    def status(self, spec: model_pb2.ModelSpec) -> get_model_status_pb2.GetModelStatusResponse:
        """The states of a model's versions, newest first, or of the one that is named."""
        statuses = self._models[spec.name].statuses if spec.name in self._models else {}
        name = spec.name[:100]
        if spec.HasField("version"):
            wanted = spec.version.value
            if wanted not in statuses:
                raise _not_found(f"Could not find version {wanted} of model {name}")
            statuses = {wanted: statuses[wanted]}
        if not statuses:
            raise _not_found(f"Could not find any versions of model {name}")
        newest_first = [statuses[version] for version in sorted(statuses, reverse=True)]
        return get_model_status_pb2.GetModelStatusResponse(model_version_status=newest_first)

    async def poll(self) -> None:
        """Looks once; loads what is new."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, _scan, self._base_path)
        except tf.errors.OpError as error:
            if error.message != self._trouble:
                logging.warning("Cannot look into %s: %s", self._base_path, error.message)
            self._trouble = error.message
            return
        self._trouble = ""
        self._found_first = self._found_first or set(found)
        for name, versions in found.items():
            await self._update(name, self._models.setdefault(name, _Model()), versions)

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
                self._thread, Servable, name, version, path, self._max_bytes
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
                sentence = f"{type(error).__name__}: {error}"
                error = Refused(grpc.StatusCode.UNKNOWN, sentence)
            model.note(version, _STATUS.END, error)
            logging.error("%s version %d cannot be loaded: %s", name, version, error)

    def _switch(self, model: _Model, servable: Servable) -> None:
        old, model.current = model.current, servable
        model.note(servable.version, _STATUS.AVAILABLE)
        self._announce(servable)
        if old:
            task = asyncio.create_task(self._unload(model, old))
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    async def _unload(self, model: _Model, old: Servable) -> None:
        model.note(old.version, _STATUS.UNLOADING)
        await old.unused.wait()
        model.note(old.version, _STATUS.END)
        logging.info("%s version %d is unloaded", old.name, old.version)
        del old
        gc.collect()


def _not_found(sentence: str) -> Refused:
    return Refused(grpc.StatusCode.NOT_FOUND, sentence)


def _scan(base_path: str) -> dict[str, dict[int, str]]:
    """The versions of every model, with their directories."""
    models = {}
    for name in sorted(_names(base_path)):
        path = tf.io.gfile.join(base_path, name)
        try:
            versions = _versions(path) if tf.io.gfile.isdir(path) else {}
        except tf.errors.OpError as error:  # not ours to read, or just vanished
            logging.debug("Cannot look into %s: %s", path, error.message)
            continue
        if versions:
            models[name] = versions
    return models


def _versions(path: str) -> dict[int, str]:
    folders = {
        int(name): tf.io.gfile.join(path, name) for name in _names(path) if _VERSION.fullmatch(name)
    }
    return {
        version: folder
        for version, folder in folders.items()
        if tf.io.gfile.exists(tf.io.gfile.join(folder, GRAPH_FILE))
    }


def _names(path: str) -> list[str]:
    return [name.rstrip("/") for name in tf.io.gfile.listdir(path)]


def _files(path: str) -> tuple:
    """Every file of a directory with its size and time: whether anything has changed."""
    found = []
    for folder, _, names in tf.io.gfile.walk(path):
        for name in names:
            file = tf.io.gfile.join(folder, name)
            with contextlib.suppress(tf.errors.OpError):  # it may vanish meanwhile
                status = tf.io.gfile.stat(file)
                found.append((file, status.length, status.mtime_nsec))
    return tuple(sorted(found))

"""The models of a server: their versions, loaded, switched and unloaded, and their labels.

A version is a directory `<base path>/<version>/` with `saved_model.pb`; names other than whole
numbers are ignored. A version that vanishes stays loaded until another one replaces it.
"""

import asyncio
import collections
import contextlib
import gc
import math
import weakref
from collections.abc import Callable

import grpc
import tensorflow as tf
from absl import logging
from tensorflow_serving.apis import get_model_status_pb2, model_pb2

from mrnn_tf import program, schema, versions
from mrnn_tf.errors import UserError
from serving import model_config
from serving.served_version import Refused, ServedVersion

_STATUS = get_model_status_pb2.ModelVersionStatus


class _Model:
    """What is known of one model, by version."""

    def __init__(self):
        self.loaded: dict[int, ServedVersion] = {}
        self.labels: dict[str, int] = {}  # to loaded versions
        self.statuses = {}
        self.broken = {}  # the files
        self.replaced = weakref.WeakValueDictionary()  # those that requests still hold

    def note(self, version: int, state: int, error: Refused | None = None) -> None:
        status = {"error_code": error.code.value[0], "error_message": str(error)} if error else {}
        self.statuses[version] = _STATUS(version=version, state=state, status=status)

    def keep(self, kept: set[int]) -> None:
        """Unloads the other versions, after the requests that hold them."""
        for version in set(self.loaded) - kept:
            self.replaced[version] = self.loaded.pop(version)
            self.note(version, _STATUS.UNLOADING)

    def number(self, spec: model_pb2.ModelSpec) -> int | None:
        """The version that a request names by number or label."""
        if not spec.version_label:
            return spec.version.value if spec.HasField("version") else None
        if spec.version_label not in self.labels:
            raise Refused(f"Unrecognized servable version label: {spec.version_label}")
        return self.labels[spec.version_label]


class ModelDirectory:
    """Keeps versions of models loaded; `announce` is called when one is.

    The models are those of a configuration file, or those of a directory in their newest version.
    """

    def __init__(
        self,
        announce: Callable[[ServedVersion], None],
        base_path: str = "",
        config_file: str = "",
        intra_op_threads: int | None = None,
    ):
        if bool(base_path) == bool(config_file):
            raise UserError("exactly one of `model_base_path` and `model_config_file` is required.")
        if config_file:
            model_config.read(config_file)  # raises
        elif not tf.io.gfile.isdir(base_path):
            raise FileNotFoundError(f"`model_base_path`: there is no directory {base_path}.")
        elif versions.newest(base_path):
            sentence = "holds versions of one model; give the directory above it."
            raise UserError(f"`model_base_path`: {base_path} {sentence}")
        self._base_path = base_path
        self._config_file = config_file
        self._announce = announce
        self._intra_op_threads = intra_op_threads
        self._configs: model_config.Configs = {}
        self._models = collections.defaultdict(_Model)
        self._complaints = set()  # of the last poll
        self.loading = False

    @property
    def ready(self) -> bool:
        """Whether there are models, and each has a version loaded."""
        return bool(self._configs) and all(self._models[name].loaded for name in self._configs)

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def find(self, spec: model_pb2.ModelSpec) -> ServedVersion:
        """The version that a request names, or the newest."""
        model = self._models.get(spec.name, _Model())
        wanted = model.number(spec)
        version = max(model.loaded, default=None) if wanted is None else wanted
        if version not in model.loaded:
            asked = f"Latest({spec.name})" if wanted is None else f"Specific({spec.name}, {wanted})"
            raise Refused(f"Servable not found for request: {asked}", grpc.StatusCode.NOT_FOUND)
        return model.loaded[version]

    def status(self, spec: model_pb2.ModelSpec) -> get_model_status_pb2.GetModelStatusResponse:
        """The states of a model's versions, newest first, or of the one that is named."""
        model = self._models.get(spec.name, _Model())
        statuses, number = model.statuses, model.number(spec)
        wanted = sorted(statuses)[::-1] if number is None else [number]
        if not set(wanted) & set(statuses):
            asked = f"version {wanted[0]}" if wanted else "any versions"
            raise Refused(f"Could not find {asked} of model {spec.name}", grpc.StatusCode.NOT_FOUND)
        listed = [statuses[version] for version in wanted]
        return get_model_status_pb2.GetModelStatusResponse(model_version_status=listed)

    async def poll(self) -> None:
        """Looks once for changes, loads and unloads versions, and moves labels."""
        said, self._complaints = self._complaints, set()
        try:
            self._configs = await asyncio.to_thread(self._read)
            for name in sorted(self._configs):
                await self._update(self._models[name], self._configs[name])
        except (UserError, tf.errors.OpError) as error:
            # A file may be half written, and a remote directory out of reach for a while.
            self._complaints.add(f"Cannot look for models: {program.sentence(error)}")
        for sentence in sorted(self._complaints - said):
            logging.error(sentence)
        for name, model in self._models.items():
            if name not in self._configs:
                model.labels = {}
                model.keep(set())
            unloading = [n for n, s in model.statuses.items() if s.state == _STATUS.UNLOADING]
            if unloading:
                gc.collect()  # TensorFlow's functions refer to each other
            for version in set(unloading) - set(model.replaced):
                model.note(version, _STATUS.END)
                logging.info("%s version %d is unloaded", name, version)

    def _read(self) -> model_config.Configs:
        if self._config_file:
            return model_config.read(self._config_file)
        return self._configs | model_config.in_directory(self._base_path)

    async def _update(self, model: _Model, config: model_config.ModelConfig) -> None:
        """Loads the versions that a configuration wants, moves its labels, unloads the others."""
        numbers = await asyncio.to_thread(_whole, config.base_path)
        policy = config.model_version_policy
        choice = policy.WhichOneof("policy_choice") or "latest"
        most = max(1, policy.latest.num_versions) if choice == "latest" else math.inf
        if choice == "specific":
            specific = set(policy.specific.versions)
            numbers = specific & (numbers | set(model.loaded))
            for version in specific - numbers:
                sentence = f"There is no version {version} of {config.name} in {config.base_path}"
                self._complaints.add(sentence)
        wanted = set()
        for version in sorted(numbers, reverse=True):
            if len(wanted) < most and await self._load(model, config, version):
                wanted.add(version)
        labels = {}
        for label, version in config.version_labels.items():
            if version in wanted:
                labels[label] = version
                continue
            asked = f"Request to assign label to version {version} of model {config.name}"
            sentence = f"{asked}, which is not currently available for inference"
            self._complaints.add(f"{sentence}: {label}")
            if label in model.labels:  # stays where it is
                labels[label] = model.labels[label]
        model.labels = labels
        if wanted:
            model.keep(wanted | set(labels.values()))

    async def _load(self, model: _Model, config: model_config.ModelConfig, version: int) -> bool:
        """Whether a version is loaded, now or before; a broken one is tried again if it changes."""
        if version in model.loaded:
            return True
        path = tf.io.gfile.join(config.base_path, str(version))
        files = await asyncio.to_thread(_files, path)
        if model.broken.get(version) == files:
            return False
        model.note(version, _STATUS.LOADING)
        logging.info("Loading %s version %d", config.name, version)
        self.loading = True
        # A SavedModel may be broken in any way: whatever was raised is reported.
        threads = self._intra_op_threads
        load = asyncio.to_thread(ServedVersion, config.name, version, path, threads)
        [loaded] = await asyncio.gather(load, return_exceptions=True)
        self.loading = False
        if isinstance(loaded, ServedVersion):
            model.loaded[version] = loaded
            model.note(version, _STATUS.AVAILABLE)
            self._announce(loaded)
            return True
        if isinstance(loaded, tf.errors.OpError):
            loaded = Refused.by_graph(loaded)
        elif not isinstance(loaded, Refused):
            loaded = Refused(f"{type(loaded).__name__}: {loaded}", grpc.StatusCode.UNKNOWN)
        model.broken[version] = files
        model.note(version, _STATUS.END, loaded.without_folders(config.base_path))
        logging.error("%s version %d cannot be loaded: %s", config.name, version, loaded)
        return False


def _whole(base_path: str) -> set[int]:
    """The whole versions of a model."""
    found = tf.io.gfile.glob(tf.io.gfile.join(base_path, "*", schema.SAVED_MODEL_FILE))
    names = (file.split("/")[-2] for file in found)
    return {int(name) for name in names if versions.NUMBER.fullmatch(name)}


def _files(path: str) -> dict[str, tuple[int, int]]:
    """Every file of a directory with its size and time, to see whether anything has changed."""
    files = {}
    for folder, _, names in tf.io.gfile.walk(path):
        for file in (tf.io.gfile.join(folder, name) for name in names):
            with contextlib.suppress(tf.errors.OpError):  # it may vanish meanwhile
                status = tf.io.gfile.stat(file)
                files[file] = (status.length, status.mtime_nsec)
    return files

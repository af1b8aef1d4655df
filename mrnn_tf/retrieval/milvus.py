"""Images in Milvus, a database of vectors: a local file (Milvus Lite) or a cluster, by its address.

    store = MilvusStore.open("photos.db")
    store.nearest(vectors, 200, 'album == "2024"')

A collection has one row for each image: its `id`, its `projection` V_I I, its `captions`, and its
metadata under their own names, which filters may use. The collection `<name>_facts` beside it says
which model made the projections, and which parts of an unfinished job are done.

Nothing here needs TensorFlow, and pymilvus is imported when a store is opened.
"""

import contextlib
import dataclasses
import fcntl
import importlib.util
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import numpy as np

from mrnn_tf import extras, schema
from mrnn_tf.errors import UserError
from mrnn_tf.fingerprints import COMPARED, check_together

SIZE = "size"  # the fact M, beside the fingerprints of a model
ID, PROJECTION, CAPTIONS = FIELDS = ("id", "projection", "captions")
EXACT, APPROXIMATE = INDEX_TYPES = ("FLAT", "AUTOINDEX")
LARGEST_SHORTLIST = 16_384  # the most results of a search that Milvus returns
TIMEOUT = 30.0  # seconds for a call

_REMOTE = re.compile(r"(https?|tcp)://|unix:")
_NAME = re.compile(r"[A-Za-z_]\w{0,200}", re.ASCII)
_LONGEST_ID, _LONGEST_VALUE = 4096, 65_535  # bytes
_ROWS_AT_ONCE = 500
_VALUES_AT_ONCE = 2**20  # of the projections that a search returns
_NO_CONNECTION = 2  # the code of pymilvus
# The first two log, with a traceback, what they also raise; the last how it is loaded.
_LOGGERS = ("pymilvus", "milvus_lite", "faiss")


class Address(NamedTuple):
    """`FILE.db` or `http://host:19530`, with a collection after `#` where it is another."""

    uri: str
    collection: str

    @classmethod
    def parse(cls, text: str) -> "Address":
        uri, _, collection = text.removeprefix("milvus:").partition("#")
        collection = collection or schema.INDEX
        if not _NAME.fullmatch(collection):
            raise UserError(
                f"{text} must name a collection of letters, digits and underscores after `#`; "
                f"received {collection!r}."
            )
        if not _REMOTE.match(uri) and not uri.endswith(".db"):
            raise UserError(
                f"{text} is no address of Milvus: name a local file that ends with .db, or a "
                "server such as http://127.0.0.1:19530."
            )
        return cls(uri, collection)

    @property
    def is_local(self) -> bool:
        return not _REMOTE.match(self.uri)

    def __str__(self) -> str:
        return self.uri if self.collection == schema.INDEX else f"{self.uri}#{self.collection}"


def is_address(text: str) -> bool:
    """Whether this names a store, and not a folder with versions of an index."""
    uri = text.partition("#")[0]
    return text.startswith("milvus:") or bool(_REMOTE.match(uri)) or uri.endswith(".db")


@dataclasses.dataclass(frozen=True)
class StoredImage:
    """A row of a collection."""

    id: str
    projection: np.ndarray  # float32 [M]
    captions: Sequence[str] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Nearest(NamedTuple):
    """The images of a shortlist, the highest inner product first."""

    ids: list[str]
    projections: np.ndarray  # float32 [n, M]


class MilvusStore:
    """A collection of images.

    Attributes:
        address: str. Where other processes of this machine find it while it is open here.
        facts: dict of str. The fingerprints of the model, and its M.
    """

    def __init__(self, place: Address, timeout: float = TIMEOUT, must_exist: bool = True):
        for module in ("pymilvus", *["milvus_lite"] * place.is_local):
            if importlib.util.find_spec(module) is None:
                raise UserError(extras.sentence(str(place), module, "milvus"))
        import pymilvus

        for name in _LOGGERS:  # after the import, which sets their levels
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._pymilvus, self._place, self._timeout = pymilvus, place, timeout
        uri = _serve(place.uri, must_exist) if place.is_local else place.uri
        self.address = str(place._replace(uri=uri))
        self._name, self._facts_name = place.collection, f"{place.collection}_facts"
        with self._told():
            self._client = pymilvus.MilvusClient(uri, timeout=timeout)
        self.facts = {}

    @classmethod
    def open(cls, address: str, timeout: float = TIMEOUT) -> "MilvusStore":
        """Opens a collection that `python -m export.index --store milvus` made."""
        store = cls(Address.parse(address), timeout)
        with store._told(), store._closed_on_error():
            if not all(map(store._client.has_collection, (store._facts_name, store._name))):
                raise UserError(
                    f"{store._place} holds no collection {store._name} that `python -m "
                    "export.index` made."
                )
            store._load_both()
        return store

    @classmethod
    def create(
        cls, address: str, facts: Mapping[str, str], index_type: str = EXACT
    ) -> "MilvusStore":
        """Opens a collection, or makes it; refuses that of another model."""
        store = cls(Address.parse(address), must_exist=False)
        with store._told(), store._closed_on_error():
            if not store._client.has_collection(store._facts_name):
                if store._client.has_collection(store._name):
                    raise UserError(
                        f"{store._place} holds a collection {store._name} that `python -m "
                        "export.index` did not make: name another one after `#`."
                    )
                store._create_facts()
            store._load(store._facts_name, "vector")
            if not store._read_facts([*facts]):
                store._write_facts(facts)
            if not store._client.has_collection(store._name):
                store._create_images(int(facts[SIZE]))
            store._load_both(index_type)
            store.check(facts)
        return store

    def check(self, facts: Mapping[str, str]) -> None:
        """Refuses a model that did not make the projections."""
        try:
            check_together(facts, self.facts)
        except UserError as error:
            raise UserError(f"{self._place}: {error}") from None

    def upsert(self, images: Sequence[StoredImage]) -> None:
        """Adds images, and replaces those whose ids are there."""
        for first in range(0, len(images), _ROWS_AT_ONCE):
            rows = [
                {
                    **image.metadata,
                    ID: image.id,
                    PROJECTION: np.asarray(image.projection, np.float32),
                    CAPTIONS: list(image.captions),
                }
                for image in images[first : first + _ROWS_AT_ONCE]
            ]
            self._check_size(rows[0][PROJECTION].shape[-1])
            with self._told():
                done = self._client.upsert(self._name, rows, timeout=self._timeout)
            if done["upsert_count"] != len(rows):
                raise UserError(
                    f"{self._place} took {done['upsert_count']} of {len(rows)} images: run the "
                    "same command again."
                )

    def delete(self, ids: Sequence[str]) -> None:
        """Removes images; ids that are not there are passed over."""
        for some in _in_parts(ids):
            with self._told():
                self._client.delete(self._name, ids=some, timeout=self._timeout)

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        return {row[ID] for row in self._get(self._name, ids, [ID])}

    def count(self) -> int:
        """How many images there are."""
        with self._told():
            [row] = self._client.query(
                self._name,
                output_fields=["count(*)"],
                consistency_level="Strong",
                timeout=self._timeout,
            )
        return row["count(*)"]

    def nearest(self, vectors: np.ndarray, count: int, filter: str = "") -> list[Nearest]:
        """The `count` images with the highest inner products with each vector of [Q, M].

        `filter` is an expression of Milvus over metadata, such as `album == "2024"`.
        """
        size = vectors.shape[1]
        self._check_size(size)
        count = min(count, LARGEST_SHORTLIST)
        at_once, results = max(1, _VALUES_AT_ONCE // (count * size)), []
        for first in range(0, len(vectors), at_once):
            with self._told(filter):
                results += self._client.search(
                    self._name,
                    data=list(vectors[first : first + at_once]),
                    filter=filter,
                    limit=count,
                    output_fields=[PROJECTION],
                    search_params={"metric_type": "IP"},
                    timeout=self._timeout,
                )
        return [_nearest(hits, size) for hits in results]

    def flush(self) -> None:
        """Writes what is in memory, and indexes it."""
        with self._told():
            self._client.flush(self._name, timeout=10 * self._timeout)

    def finish(self, job: str, part: str, report: Mapping[str, Any]) -> None:
        """Notes that a part of a job is done."""
        self._write_facts({f"{job}/{part}": json.dumps(report)})

    def finished(self, job: str, parts: Sequence[str]) -> dict[str, dict]:
        """The reports of those parts of a job that are done."""
        reports = self._read_facts([f"{job}/{part}" for part in parts])
        return {key.partition("/")[2]: json.loads(report) for key, report in reports.items()}

    def forget(self, job: str, parts: Sequence[str]) -> None:
        """Removes the notes of a job."""
        for keys in _in_parts([f"{job}/{part}" for part in parts]):
            with self._told():
                self._client.delete(self._facts_name, ids=keys, timeout=self._timeout)

    def close(self) -> None:
        """Ends the connection and, of a local file, its server."""
        self._client.close()
        if self._place.is_local:
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self._place.uri)

    def __enter__(self) -> "MilvusStore":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _create_facts(self) -> None:
        kind = self._pymilvus.DataType
        schema = self._client.create_schema(auto_id=False)
        schema.add_field("key", kind.VARCHAR, is_primary=True, max_length=_LONGEST_ID)
        schema.add_field("value", kind.VARCHAR, max_length=_LONGEST_VALUE)
        schema.add_field("vector", kind.FLOAT_VECTOR, dim=2)  # Milvus wants one
        self._client.create_collection(self._facts_name, schema=schema, timeout=self._timeout)

    def _create_images(self, size: int) -> None:
        kind = self._pymilvus.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=True)
        schema.add_field(ID, kind.VARCHAR, is_primary=True, max_length=_LONGEST_ID)
        schema.add_field(PROJECTION, kind.FLOAT_VECTOR, dim=size)
        schema.add_field(CAPTIONS, kind.JSON)
        self._client.create_collection(self._name, schema=schema, timeout=self._timeout)

    def _load(self, name: str, field: str, index_type: str = EXACT) -> None:
        """Makes a collection ready for searches; a new one gets its index."""
        if not self._client.list_indexes(name):
            params = self._client.prepare_index_params()
            params.add_index(field, index_type=index_type, metric_type="IP")
            # What it would wait for with `sync` is an index of nothing.
            self._client.create_index(name, params, timeout=self._timeout, sync=False)
        self._client.load_collection(name, timeout=self._timeout)

    def _load_both(self, index_type: str = EXACT) -> None:
        """Makes both collections ready, and reads the facts."""
        self._load(self._facts_name, "vector")
        self._load(self._name, PROJECTION, index_type)
        self.facts = self._read_facts([*COMPARED, SIZE])
        if missing := {*COMPARED, SIZE} - self.facts.keys():
            raise UserError(
                f"{self._place} does not say which {min(missing)} its images are of: delete the "
                f"collections {self._name} and {self._facts_name}, and make them again."
            )

    def _read_facts(self, keys: Sequence[str]) -> dict[str, str]:
        rows = self._get(self._facts_name, keys, ["key", "value"])
        return {row["key"]: row["value"] for row in rows}

    def _write_facts(self, facts: Mapping[str, str]) -> None:
        rows = [{"key": k, "value": v, "vector": [0.0, 0.0]} for k, v in facts.items()]
        with self._told():
            self._client.upsert(self._facts_name, rows, timeout=self._timeout)

    def _get(self, name: str, keys: Sequence[str], fields: list[str]) -> Iterator[dict]:
        for some in _in_parts(keys):
            with self._told():
                yield from self._client.get(
                    name,
                    ids=some,
                    output_fields=fields,
                    timeout=self._timeout,
                    consistency_level="Strong",
                )

    def _check_size(self, size: int) -> None:
        if str(size) != self.facts[SIZE]:
            raise UserError(
                f"{self._place} holds images of {self.facts[SIZE]} values, but the model's have "
                f"{size}: use the model that it was made with."
            )

    @contextlib.contextmanager
    def _told(self, filter: str = "") -> Iterator[None]:
        """Turns what the database complains of into one sentence."""
        try:
            yield
        except self._pymilvus.MilvusException as error:
            reason = " ".join(error.message.split())
            if error.code == _NO_CONNECTION:
                sentence = f"No Milvus answers at {self._place.uri}: {reason}"
            elif filter:
                sentence = f"{self._place} refused the filter {filter!r}: {reason}"
            else:
                sentence = f"{self._place} failed: {reason}"
            raise UserError(f"{sentence.rstrip('.')}.") from error
        except grpc.RpcError as error:
            reason = f"{error.code().name}, {error.details()}"
            raise UserError(
                f"{self._place} gave no answer within {self._timeout:g} s: {reason}."
            ) from error

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


def _serve(path: str, must_exist: bool) -> str:
    """The URL under which Milvus Lite serves a local file from this process."""
    from milvus_lite.server_manager import server_manager_instance

    lock = os.path.join(path, "LOCK")
    if not os.path.exists(path):
        if must_exist:
            raise UserError(f"There is no file {path}: make it with `python -m export.index`.")
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    elif not os.path.exists(lock):
        raise UserError(f"{path} is not a database of Milvus Lite: name another file.")
    url = server_manager_instance.start_and_get_uri(path)
    if url is None:
        reason = "another process has it open" if _is_locked(lock) else "it is damaged"
        raise UserError(f"{path} cannot be opened: {reason}.")
    return url


def _is_locked(path: str) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _in_parts(ids: Sequence[str]) -> Iterator[list[str]]:
    for first in range(0, len(ids), _ROWS_AT_ONCE):
        yield list(ids[first : first + _ROWS_AT_ONCE])


def _nearest(hits: Any, size: int) -> Nearest:
    projections = np.array([hit["entity"][PROJECTION] for hit in hits], np.float32)
    return Nearest([hit[ID] for hit in hits], projections.reshape(-1, size))

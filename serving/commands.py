"""The command line of serving.client: files and sentences in, tables or JSON lines out."""

import base64
import contextlib
import dataclasses
import itertools
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import grpc
import numpy as np
import tqdm
from absl import app, flags

from mrnn_tf import photos, schema
from mrnn_tf.errors import UserError
from mrnn_tf.escape import is_visible, printable
from mrnn_tf.retrieval.milvus import MilvusStore
from serving.answers import Row
from serving.client import Client, PhotosOrFeatures, ServingError

_SERVER = flags.DEFINE_string("server", "127.0.0.1:8500", "Host and gRPC port.")
_INDEX_SERVER = flags.DEFINE_string("index_server", None, "Those of mrnn_index, if others.")
_VERSION = flags.DEFINE_string("version", None, "Version of mrnn: a number or a label.")
_INDEX_VERSION = flags.DEFINE_string("index_version", None, "Version of mrnn_index, likewise.")
_STORE = flags.DEFINE_string("store", None, "Vector database to search: FILE.db or its URL.")
_FILTER = flags.DEFINE_string("filter", "", "Expression over its metadata, of Milvus.")
_K = flags.DEFINE_integer("k", 10, "Results of a search in it.", 1)
_TIMEOUT = flags.DEFINE_float(
    "timeout", 60.0, "Seconds for one call with its retries, and to wait for a server.", 0.001
)
_RETRIES = flags.DEFINE_integer("retries", 3, "Repetitions while it is unavailable.", 0, 4)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "Inputs per call.", 1)
_MAX_PHOTO_BYTES = flags.DEFINE_integer(
    "max_photo_bytes", 0, "Photos of more bytes are sent smaller; 0 sends every photo as it is.", 0
)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object per input, each on its line.")
_TLS = flags.DEFINE_bool("tls", False, "Encrypt, and verify the server.")
_CA_FILE = flags.DEFINE_string("ca_file", None, "Certificates to trust (PEM); default: gRPC's own.")
_CERT_FILE = flags.DEFINE_string("cert_file", None, "Own certificate (PEM), with --key_file.")
_KEY_FILE = flags.DEFINE_string("key_file", None, "Key of --cert_file (PEM).")

_REQUEST_BYTES = 32 << 20  # of photos; half of what serving.local accepts by default

Failure = str


@dataclasses.dataclass(frozen=True)
class Command:
    """A question to the server."""

    takes: str  # the arguments, as the usage shows them
    about: tuple[str, ...]  # what an input consists of, as the answers name it
    ask: Callable[..., list[Row]]  # from client, and images or texts or both, to a row per input
    show: Callable[[Row], str]  # what people read of a row
    means: str = ""  # what the numbers are that people read

    def inputs(self, arguments: list[str]) -> list[dict[str, str]]:
        """The inputs that the arguments of the program give; texts share the one photo."""
        texts = arguments[1:] or ([""] if "[" in self.takes else [])
        pairs = itertools.product(arguments[:1], texts)
        values = pairs if len(self.about) > 1 else zip(arguments, strict=True)
        return [dict(zip(self.about, value, strict=True)) for value in values]


def _encode(client: Client, images: PhotosOrFeatures) -> list[Row]:
    given = isinstance(images, np.ndarray)
    outputs = {schema.FEATURES: images} if given else client.encode(images)
    rows = zip(*(array.tolist() for array in outputs.values()), strict=True)
    return [dict(zip(outputs, row, strict=True)) for row in rows]


def _search(client: Client, sentences: Sequence[str]) -> list[Row]:
    rows = client.search_images(sentences)
    empty = [i for i, row in enumerate(rows) if not row[schema.IDS]]
    if empty:
        reasons = _why_nothing(client, [sentences[i] for i in empty])
        for i, reason in zip(empty, reasons, strict=True):
            rows[i][_REASON] = f"nothing found: {reason}"
    return rows


def _why_nothing(client: Client, sentences: Sequence[str]) -> list[str]:
    """Why each of the sentences found no image, as far as the model can tell."""
    try:
        counts = client.count_words(sentences)
    except ServingError:  # the model may be another server's, or of an earlier release
        return ["the index knows none of its words, takes fewer words, or has no images"] * len(
            sentences
        )
    reasons = []
    for sentence, (words, unknown) in zip(sentences, counts, strict=True):
        if words < 0:
            reasons.append("it has more words than the index takes")
        elif words == 0:
            reasons.append("it has no words")
        elif unknown == words:
            reasons.append(f"the index knows none of these words: {sentence}")
        else:
            reasons.append("the index has no images")
    return reasons


def _columns(number: str, *texts: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        columns = zip(row[number], *(row[text] for text in texts), strict=True)
        lines = [f"{value:9.3f}  " + "  ".join(map(printable, rest)) for value, *rest in columns]
        return "\n".join(lines or [row.get(_REASON, "nothing found")])

    return show


def _features(row: Row) -> str:
    return " ".join(f"{value:.6g}" for value in row[schema.FEATURES])


def _score(row: Row) -> str:
    known = f"{row[schema.NUM_WORDS] - row[schema.NUM_UNKNOWN]} of {row[schema.NUM_WORDS]}"
    perplexity = f"perplexity {row[schema.PERPLEXITY]:.3f}"
    return f"{row[schema.LOG_PROB]:9.3f}  {perplexity}, {known} words known, the end counted"


_REASON = "reason"  # why a row is empty
_BY_LENGTH = "log P, ranked relative to length"
_CAPTIONS = _columns(schema.LOG_PROBS, schema.CAPTIONS)
_WORDS = _columns(schema.LOG_PROBS, schema.WORDS)
_IDS = _columns(schema.SCORES, schema.IDS)
_SENTENCES = _columns(schema.SCORES, schema.IDS, schema.SENTENCES)
_CONSENSUS = _columns(schema.CONSENSUS, schema.CAPTIONS)
COMMANDS = {
    "caption": Command("PHOTO ...", ("file",), Client.caption, _CAPTIONS, _BY_LENGTH),
    "beam": Command("PHOTO [PREFIX ...]", ("file", "prefix"), Client.beam, _CAPTIONS, _BY_LENGTH),
    "score": Command("PHOTO SENTENCE ...", ("file", "sentence"), Client.score, _score),
    "next": Command("PHOTO [PREFIX ...]", ("file", "prefix"), Client.next_words, _WORDS, "log P"),
    "encode": Command("PHOTO ...", ("file",), _encode, _features),
    "search": Command("SENTENCE ...", ("sentence",), _search, _IDS, "log P"),
    "prefix": Command("PREFIX ...", ("prefix",), Client.search_prefix, _IDS, "log P of the words"),
    "sentences": Command(
        "PHOTO ...", ("file",), Client.search_sentences, _SENTENCES, "log P - log P of any image"
    ),
    "similar": Command("PHOTO ...", ("file",), Client.similar_images, _IDS, "minus the distance"),
    "rerank": Command("PHOTO ...", ("file",), Client.caption_reranked, _CONSENSUS, "consensus"),
}


def run() -> None:
    """Runs the program; exit code 0, or 1 and one sentence."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of Pillow, about photos
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    try:
        app.run(lambda argv: main(argv[1:]), flags_parser=flags.FLAGS)
    except (UserError, ServingError, OSError, flags.Error) as error:
        hint = " (--help lists the flags)" if isinstance(error, flags.Error) else ""
        sys.exit(f"error: {printable(' '.join(str(error).split()))}{hint}")
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)


def main(arguments: list[str]) -> None:
    name, *arguments = arguments or [""]
    if name == "request":
        return _print_request(arguments)
    if name != "status" and name not in COMMANDS:
        known = ", ".join([*COMMANDS, "request", "status"])
        raise UserError(f"{name!r} is no command; there are {known} (--help shows examples).")
    versions = {schema.MODEL: _VERSION.value, schema.INDEX: _INDEX_VERSION.value}
    versions = {m: int(v) if v.isdecimal() else v for m, v in versions.items() if v is not None}
    settings = {"timeout": _TIMEOUT.value, "retries": _RETRIES.value, "versions": versions}
    settings["index_server"] = _INDEX_SERVER.value
    if name != "status":
        settings["on_wait"] = lambda sentence: print(sentence, file=sys.stderr, flush=True)
    with Client(_SERVER.value, **settings, credentials=_credentials()) as client:
        if name == "status":
            _status(client)
        elif inputs := COMMANDS[name].inputs(arguments):
            with _stored(name) as command:
                _answer(client, command, inputs)
        else:
            raise UserError(f"{name} takes {COMMANDS[name].takes} (--help shows examples).")


@contextlib.contextmanager
def _stored(name: str) -> Iterator[Command]:
    """A command, which searches in a vector database where one is given."""
    command = COMMANDS[name]
    if _STORE.value is None:
        if _FILTER.value:
            raise UserError("--filter needs --store.")
        yield command
        return
    if name != "search":
        raise UserError(f"--store is for search: {name} asks the server alone.")
    with MilvusStore.open(_STORE.value, _TIMEOUT.value) as store:

        def ask(client: Client, sentences: list[str]) -> list[Row]:
            return client.search_store(store, sentences, _K.value, _FILTER.value)

        yield dataclasses.replace(command, ask=ask)


def _print_request(files: list[str]) -> None:
    """Prints the body of a REST request for captions of photos; asks no server."""
    contents = [_load(file) for file in files]
    for file, content in zip(files, contents, strict=True):
        if not isinstance(content, bytes):
            reason = content if isinstance(content, Failure) else f"{file}: features"
            raise UserError(f"request takes PHOTO ...: {reason}")
    instances = [{"b64": base64.b64encode(content).decode()} for content in contents]
    print(json.dumps({"instances": instances}))


def _credentials() -> grpc.ChannelCredentials | None:
    files = (_CA_FILE, _KEY_FILE, _CERT_FILE)
    if not _TLS.value:
        if given := [flag.name for flag in files if flag.value]:
            raise UserError(f"--{given[0]} needs --tls.")
        return None
    if bool(_KEY_FILE.value) != bool(_CERT_FILE.value):
        raise UserError("--key_file and --cert_file are given together or not at all.")
    contents = (flag.value and Path(flag.value).read_bytes() for flag in files)
    return grpc.ssl_channel_credentials(*contents)


def _status(client: Client) -> None:
    states = client.status()
    for model, versions in states.items():
        lines = [f"{model}  version {version}  {state}" for version, state in versions.items()]
        if _JSON.value:
            lines = [json.dumps({"model": model, "versions": versions})]
        print("\n".join(lines or [f"{model}  not served"]))
    if any(map(client.is_loading, states)):
        print(f"something is being loaded at {client.server}: ask again.", file=sys.stderr)
        sys.exit(os.EX_TEMPFAIL)
    if "AVAILABLE" not in states[schema.MODEL].values():
        raise UserError(f"no version of {schema.MODEL} is available at {client.server}.")


def _answer(client: Client, command: Command, inputs: list[dict[str, str]]) -> None:
    images = (_load(asked.get("file")) for asked in inputs)
    if len(command.about) > 1:  # all texts are about one photo: encode it once
        image = next(images)
        if isinstance(image, bytes):
            image = client.encode([image])[schema.FEATURES][0]
        images = [image] * len(inputs)
    failures = 0
    with tqdm.tqdm(total=len(inputs), unit="input", disable=None, leave=False) as bar:
        for batch in _batches(zip(inputs, images, strict=True)):
            for (asked, _), answer in zip(batch, _ask(client, command, batch), strict=True):
                failures += isinstance(answer, Failure)
                _write(bar, command, asked, answer)
                bar.update()
    if failures:
        raise UserError(f"{failures} of {len(inputs)} inputs failed.")


def _load(file: str | None) -> bytes | np.ndarray | Failure:
    try:
        return b"" if file is None else photos.load(file, _MAX_PHOTO_BYTES.value or None)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{file}: {error.strerror or error}"


def _batches(inputs: Iterable[tuple]) -> Iterator[list[tuple]]:
    """Consecutive inputs that fit into one request: all photos, or all features of one size."""
    batch, kind, size = [], None, 0
    for asked, image in inputs:
        last, kind = kind, getattr(image, "shape", type(image))
        size += len(image)
        if batch and (kind != last or len(batch) == _BATCH_SIZE.value or size > _REQUEST_BYTES):
            yield batch
            batch, size = [], len(image)
        batch.append((asked, image))
    yield batch


def _ask(client: Client, command: Command, batch: list[tuple]) -> Sequence[Row | Failure]:
    inputs, images = zip(*batch, strict=True)
    if isinstance(images[0], Failure):
        return images
    are_photos = isinstance(images[0], bytes)
    values = {key: [asked[key] for asked in inputs] for key in command.about}
    if "file" in values:
        values["file"] = images if are_photos else np.stack(images)
    try:
        rows = command.ask(client, *values.values())
    except ServingError as error:
        if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        return [str(error)] * len(batch)
    return [_failure(row, are_photos) or row for row in rows]


def _failure(row: Row, is_photo: bool) -> Failure | None:
    if row.get(schema.NUM_WORDS) == 0:  # the end counts as one
        return "the sentence has more words than the model takes"
    is_empty = is_photo and row.get(schema.CAPTIONS) == []
    reason = "the server could not decode it: it is damaged, or has more pixels than it decodes"
    return reason if is_empty else None


def _write(bar: tqdm.tqdm, command: Command, asked: dict[str, str], answer: Row | Failure) -> None:
    heading = "  ".join(filter(None, asked.values()))
    if _JSON.value:
        bar.write(_json(asked | ({"error": answer} if isinstance(answer, Failure) else answer)))
    elif isinstance(answer, Failure):
        is_named = answer.startswith(asked.get("file", heading))
        bar.write(printable(answer if is_named else f"{heading}: {answer}"), sys.stderr)
    else:
        means = f"  ({command.means})" if command.means else ""
        bar.write(f"{printable(heading)}{means}\n{command.show(answer)}".rstrip("\n"))


def _json(values: dict) -> str:
    """One line of JSON, which has no infinity, and on which a terminal sees no escapes."""
    text = json.dumps(_finite(values), ensure_ascii=False)
    return "".join(each if is_visible(each) else json.dumps(each)[1:-1] for each in text)


def _finite(values):
    match values:
        case dict():
            return {name: _finite(value) for name, value in values.items()}
        case list():
            return [_finite(value) for value in values]
        case float() if not math.isfinite(values):
            return None
    return values

"""The command line of serving.client: files and sentences in, tables or JSON lines out."""

import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grpc
import numpy as np
import tqdm
from absl import app, flags

from mrnn_tf import photos, schema
from mrnn_tf.errors import UserError
from serving.client import Client, PhotosOrFeatures, Row, ServingError

_SERVER = flags.DEFINE_string("server", "127.0.0.1:8500", "Host and gRPC port.")
_VERSION = flags.DEFINE_string("version", None, "Version of mrnn: a number or a label.")
_INDEX_VERSION = flags.DEFINE_string("index_version", None, "Version of mrnn_index, likewise.")
_TIMEOUT = flags.DEFINE_float("timeout", 30.0, "Seconds for one call with its retries.", 0.001)
_RETRIES = flags.DEFINE_integer(
    "retries", 3, "Repetitions of a call while the server is unavailable; gRPC makes at most 4.", 0
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "Inputs per call.", 1)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object per input, each on its line.")
_TLS = flags.DEFINE_bool("tls", False, "Encrypt, and verify the server.")
_CA_FILE = flags.DEFINE_string("ca_file", None, "Certificates to trust (PEM); default: gRPC's own.")
_CERT_FILE = flags.DEFINE_string("cert_file", None, "Own certificate (PEM), with --key_file.")
_KEY_FILE = flags.DEFINE_string("key_file", None, "Key of --cert_file (PEM).")

_REQUEST_BYTES = 32 << 20  # of photos; half of what serving.local accepts by default

Failure = str


@dataclasses.dataclass(frozen=True)
class Command:
    """A question to the server.

    Args:
        takes: str. The arguments, as the usage shows them.
        ask: Callable. From client, images and texts to one row per input.
        show: Callable. The lines that people read of a row.
    """

    takes: str
    ask: Callable[[Client, PhotosOrFeatures, list[str]], list[Row]]
    show: Callable[[Row], list[str]]

    @property
    def about_photos(self) -> bool:
        return self.takes.startswith("PHOTO")

    @property
    def text(self) -> str | None:
        """What the texts among the arguments are called in the answers."""
        name = re.search("PREFIX|SENTENCE", self.takes)
        return name and name[0].lower()


@dataclasses.dataclass(frozen=True)
class _Input:
    file: str | None
    text: str
    image: bytes | np.ndarray | Failure

    @property
    def kind(self) -> type | tuple[int, ...]:
        """What is equal for inputs of one request: photos, or features of one size."""
        return getattr(self.image, "shape", type(self.image))


def _images(method: Callable[[Client, PhotosOrFeatures], list[Row]]) -> Callable:
    return lambda client, images, _: method(client, images)


def _encode(client: Client, images: PhotosOrFeatures) -> list[Row]:
    given = isinstance(images, np.ndarray)
    outputs = {schema.FEATURES: images} if given else client.encode(images)
    rows = zip(*(array.tolist() for array in outputs.values()), strict=True)
    return [dict(zip(outputs, row, strict=True)) for row in rows]


def _columns(number: str, *texts: str) -> Callable[[Row], list[str]]:
    def show(row: Row) -> list[str]:
        columns = zip(row[number], *(row[text] for text in texts), strict=True)
        return [f"{value:9.3f}  " + "  ".join(rest) for value, *rest in columns]

    return show


def _features(row: Row) -> list[str]:
    return [" ".join(f"{value:.6g}" for value in row[schema.FEATURES])]


def _score(row: Row) -> list[str]:
    known = row[schema.NUM_WORDS] - row[schema.NUM_UNKNOWN]
    return [
        f"{row[schema.LOG_PROB]:9.3f}  perplexity {row[schema.PERPLEXITY]:.3f}, "
        f"{known} of {row[schema.NUM_WORDS]} words known, the end counted"
    ]


_CAPTIONS = _columns(schema.LOG_PROBS, schema.CAPTIONS)
_WORDS = _columns(schema.LOG_PROBS, schema.WORDS)
_IDS = _columns(schema.SCORES, schema.IDS)
_SENTENCES = _columns(schema.SCORES, schema.IDS, schema.SENTENCES)
_CONSENSUS = _columns(schema.CONSENSUS, schema.CAPTIONS)
COMMANDS = {
    "caption": Command("PHOTO ...", _images(Client.caption), _CAPTIONS),
    "beam": Command("PHOTO [PREFIX ...]", Client.beam, _CAPTIONS),
    "score": Command("PHOTO SENTENCE ...", Client.score, _score),
    "next": Command("PHOTO [PREFIX ...]", Client.next_words, _WORDS),
    "encode": Command("PHOTO ...", _images(_encode), _features),
    "search": Command("SENTENCE ...", lambda client, _, texts: client.search_images(texts), _IDS),
    "sentences": Command("PHOTO ...", _images(Client.search_sentences), _SENTENCES),
    "similar": Command("PHOTO ...", _images(Client.similar_images), _IDS),
    "rerank": Command("PHOTO ...", _images(Client.caption_reranked), _CONSENSUS),
}


def run() -> None:
    """Runs the program; exit code 0, or 1 and one sentence."""
    try:
        app.run(_guarded, flags_parser=_parse)
    except KeyboardInterrupt:
        sys.exit(130)


def _parse(argv: list[str]) -> list[str]:
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        _exit(f"{error} (--help lists the flags)")


def _guarded(argv: list[str]) -> None:
    try:
        main(argv[1:])
    except (UserError, ServingError, OSError) as error:
        _exit(" ".join(str(error).split()))


def _exit(sentence: str) -> None:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(1)


def main(arguments: list[str]) -> None:
    name, *arguments = arguments or [""]
    if name != "status" and name not in COMMANDS:
        known = ", ".join([*COMMANDS, "status"])
        raise UserError(f"{name!r} is no command; there are {known} (--help shows examples).")
    versions = {schema.MODEL: _VERSION.value, schema.INDEX: _INDEX_VERSION.value}
    with Client(
        _SERVER.value,
        timeout=_TIMEOUT.value,
        retries=_RETRIES.value,
        versions={m: int(v) if v.isdecimal() else v for m, v in versions.items() if v is not None},
        credentials=_credentials(),
    ) as client:
        if name == "status":
            _status(client)
        else:
            _answer_all(client, COMMANDS[name], *_files_and_texts(name, arguments))


def _credentials() -> grpc.ChannelCredentials | None:
    files = (_CA_FILE, _KEY_FILE, _CERT_FILE)
    if not _TLS.value:
        for flag in files:
            if flag.value is not None:
                raise UserError(f"--{flag.name} needs --tls.")
        return None
    if (_KEY_FILE.value is None) != (_CERT_FILE.value is None):
        raise UserError("--key_file and --cert_file are given together or not at all.")
    return grpc.ssl_channel_credentials(
        *(None if flag.value is None else Path(flag.value).read_bytes() for flag in files)
    )


def _files_and_texts(name: str, arguments: list[str]) -> tuple[list[str | None], list[str]]:
    """The files and the texts of the inputs; no file, or no text, where a command takes none."""
    command = COMMANDS[name]
    if not command.about_photos:
        files, texts = [None] * len(arguments), arguments
    elif command.text is None:
        files, texts = arguments, [""] * len(arguments)
    else:
        texts = arguments[1:] or ([""] if arguments and "[" in command.takes else [])
        files = arguments[:1] * len(texts)
    if not texts:
        raise UserError(f"{name} takes {command.takes} (--help shows examples).")
    return files, texts


def _status(client: Client) -> None:
    states = client.status()
    for model, versions in states.items():
        if _JSON.value:
            print(json.dumps({"model": model, "versions": versions}))
            continue
        for version, state in versions.items():
            print(f"{model}  version {version}  {state}")
        if not versions:
            print(f"{model}  not served")
    if "AVAILABLE" not in states[schema.MODEL].values():
        raise UserError(f"no version of {schema.MODEL} is available at {client.server}.")


def _answer_all(
    client: Client, command: Command, files: list[str | None], texts: list[str]
) -> None:
    images = map(_read, files)
    if command.about_photos and command.text:  # all texts are about one photo: encode it once
        image = next(images)
        if isinstance(image, bytes):
            image = client.encode([image])[schema.FEATURES][0]
        images = itertools.repeat(image)
    failures = 0
    with tqdm.tqdm(total=len(texts), unit="input", disable=None, leave=False) as bar:
        for batch in _batches(map(_Input, files, texts, images)):
            for asked, answer in zip(batch, _answers(client, command, batch), strict=True):
                failures += isinstance(answer, Failure)
                _write(bar, command, asked, answer)
                bar.update()
    if failures:
        raise UserError(f"{failures} of {len(texts)} inputs failed.")


def _read(file: str | None) -> bytes | np.ndarray | Failure:
    try:
        return b"" if file is None else photos.load(file)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{file}: {error.strerror or error}"


def _batches(inputs: Iterable[_Input]) -> Iterator[list[_Input]]:
    """Consecutive inputs that fit into one request."""
    batch = []
    for asked in inputs:
        size = sum(len(other.image) for other in [*batch, asked])
        full = len(batch) == _BATCH_SIZE.value or size > _REQUEST_BYTES
        if batch and (full or asked.kind != batch[0].kind):
            yield batch
            batch = []
        batch.append(asked)
    yield batch


def _answers(client: Client, command: Command, batch: list[_Input]) -> list[Row | Failure]:
    images, texts = [asked.image for asked in batch], [asked.text for asked in batch]
    if isinstance(images[0], Failure):
        return images
    are_photos = isinstance(images[0], bytes)
    try:
        rows = command.ask(client, images if are_photos else np.stack(images), texts)
    except ServingError as error:
        if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        return [str(error)] * len(batch)
    failure = "the server could not decode it as an image"
    return [failure if are_photos and row.get(schema.CAPTIONS) == [] else row for row in rows]


def _write(bar: tqdm.tqdm, command: Command, asked: _Input, answer: Row | Failure) -> None:
    about = {"file": asked.file} if command.about_photos else {}
    if command.text is not None:
        about[command.text] = asked.text
    heading = "  ".join(value for value in about.values() if value)
    if _JSON.value:
        row = {"error": answer} if isinstance(answer, Failure) else answer
        bar.write(json.dumps(about | row, ensure_ascii=False))
    elif isinstance(answer, Failure):
        named = asked.file is not None and answer.startswith(asked.file)
        bar.write(answer if named else f"{heading}: {answer}", sys.stderr)
    else:
        bar.write("\n".join([heading, *command.show(answer)]))

"""An index: all that a search needs of its images and sentences, as arrays on disk.

    index = Index.load("models/mrnn_index/1/assets.extra/index")
    index.images[7], index.ids[7]  # a = V_I I of an image, and its id

Opening an index reads it once, by its checksums. Then local files are mapped into memory.
"""

# ruff: noqa: RUF009 (`_array` makes fields, not arrays)

import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from mrnn_tf import checksums, schema
from mrnn_tf.arrays import read as read_array
from mrnn_tf.checksums import Checksums
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.search import SentenceTable

HEADER_FILE = "header.json"
_AGAIN = "make the index again with `python -m export.index`"
NO_IMAGE = -1  # the owner of a sentence that belongs to no image


@dataclasses.dataclass(frozen=True)
class Texts(Sequence[bytes]):
    """Byte strings as two arrays."""

    content: np.ndarray  # uint8 [bytes], one text after the other
    ends: np.ndarray  # int64 [N], where the texts end

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> "Texts":
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        return cls(np.frombuffer(b"".join(texts), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> bytes:
        begin = self.ends[row - 1] if row % len(self) else 0
        return self.content[begin : self.ends[row]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        content = self.content.tobytes()
        return (content[begin:end] for begin, end in pairwise([0, *self.ends.tolist()]))


@dataclasses.dataclass(frozen=True)
class Header:
    """What an index was made by, and how much it holds."""

    model: str  # the fingerprint of the model
    vocabulary: str  # the fingerprint of its vocabulary
    encoder: str  # the identity of the encoder whose features it takes
    seed: int  # of the sampled images of P(s)
    split: str  # which they were sampled from
    likeliest: int  # how many of them a sentence was scored by
    images: int  # I
    sentences: int  # S
    longest: int  # T
    size: int  # M
    sample: int  # the number of sampled images
    tool_version: str


def _array(dtype: type, *axes: str) -> Any:
    """A field with an array, whose shape the header has under the names of the axes."""
    return dataclasses.field(metadata={"dtype": np.dtype(dtype), "axes": axes})


@dataclasses.dataclass(frozen=True)
class Entries:
    """Images and sentences, ready to be searched."""

    ids: Texts = _array(np.int64, "images")
    images: np.ndarray = _array(np.float32, "images", "size")  # a = V_I I
    captions: Texts = _array(np.int64, "sentences")  # the raw sentences
    words: np.ndarray = _array(np.int32, "sentences", "longest")  # as `sentences.pad` makes them
    vectors: np.ndarray = _array(np.float16, "sentences", "size")  # v_s, see `expansion`
    mean_log_probs: np.ndarray = _array(np.float32, "sentences")  # log P(s|mean image)
    log_marginals: np.ndarray = _array(np.float64, "sentences")  # log P(s)
    owners: np.ndarray = _array(np.int32, "sentences")  # the row of its image, or `NO_IMAGE`

    def __post_init__(self):
        # They are computed as float32, and were stored so by earlier releases.
        object.__setattr__(self, "vectors", self.vectors.astype(np.float16, copy=False))

    @classmethod
    def join(cls, parts: Sequence["Entries"]) -> "Entries":
        """The entries of some parts, one after the other."""
        longest = max(part.words.shape[1] for part in parts)
        rows, first = [], 0
        for part in parts:
            padding = [(0, 0), (0, longest - part.words.shape[1])]
            words = np.pad(part.words, padding, constant_values=schema.PAD_ID)
            owners = np.where(part.owners == NO_IMAGE, NO_IMAGE, part.owners + first)
            first += len(part.ids)
            part = dataclasses.replace(part, words=words, owners=owners)
            rows.append([getattr(part, field.name) for field in dataclasses.fields(cls)])

        def joined(values: Sequence[Texts] | Sequence[np.ndarray]) -> Texts | np.ndarray:
            is_text = isinstance(values[0], Texts)
            return Texts.of([*chain(*values)]) if is_text else np.concatenate(values)

        return cls(*map(joined, zip(*rows, strict=True)))

    def without(self, ids: Iterable[bytes]) -> "Entries":
        """The entries that are left without some images and their sentences."""
        gone, entries = set(ids), {}
        kept = np.array([image_id not in gone for image_id in self.ids], bool)
        stays = np.append(kept, True)[self.owners]  # the last one is that of no image
        for field in dataclasses.fields(Entries):
            value = getattr(self, field.name)
            mask = kept if field.metadata["axes"][0] == "images" else stays
            is_text = isinstance(value, Texts)
            entries[field.name] = Texts.of([*compress(value, mask)]) if is_text else value[mask]
        new_rows = np.append(np.cumsum(kept, dtype=np.int32) - 1, np.int32(NO_IMAGE))
        return Entries(**entries | {"owners": new_rows[entries["owners"]]})

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array by the name of its file."""
        arrays = {}
        for name, value in vars(self).items():
            if isinstance(value, Texts):
                arrays |= {f"{name}.{part}": array for part, array in vars(value).items()}
            elif isinstance(value, np.ndarray):
                arrays[name] = value
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], **more) -> "Entries":
        """The reverse of `arrays`."""
        for name in ("ids", "captions"):
            more[name] = Texts(arrays[f"{name}.content"], arrays[f"{name}.ends"])
        return cls(**more, **{name: array for name, array in arrays.items() if "." not in name})


@dataclasses.dataclass(frozen=True)
class Index(Entries):
    """Entries, and what they were made with."""

    mean: np.ndarray = _array(np.float32, "size")  # around which sentences are expanded
    sample: np.ndarray = _array(np.float32, "sample", "size")  # training images of P(s)
    header: Header

    @property
    def table(self) -> SentenceTable:
        """The sentences as `Searcher` takes them."""
        # Vectors only choose the shortlist, and of the small types this one is cast fastest.
        vectors = self.vectors.astype(tf.bfloat16.as_numpy_dtype)
        return SentenceTable(self.words, vectors, self.mean_log_probs, self.log_marginals)

    def save(self, folder: str) -> None:
        """Writes the arrays and, last, the header with their checksums."""
        tf.io.gfile.makedirs(folder)
        arrays = {f"{name}.npy": array for name, array in self.arrays().items()}
        for name, array in arrays.items():
            with tf.io.gfile.GFile(tf.io.gfile.join(folder, name), "wb") as file:
                np.save(file, array)
        path = tf.io.gfile.join(folder, HEADER_FILE)
        checksums.write(path, dataclasses.asdict(self.header), folder, arrays)

    @classmethod
    def load(cls, folder: str, model: str | None = None) -> "Index":
        """Opens an index; refuses a damaged one and, where `model` is given, another model's."""
        path = tf.io.gfile.join(folder, HEADER_FILE)
        if not tf.io.gfile.exists(path):
            raise FileNotFoundError(f"{folder} holds no {HEADER_FILE}: it is not an index.")
        content, sums = checksums.read(path, "the header of an index is wanted", folder, _AGAIN)
        try:
            header = Header(**content)
        except TypeError as error:
            raise UserError(f"{path} is not the header of an index: {error}") from error
        if model not in (None, header.model):
            raise UserError(
                f"{folder} is the index of another model: its fingerprint is {header.model!s:.12}, "
                f"this model's is {model[:12]}."
            )
        sums.check_sizes()
        arrays = {}
        for field in dataclasses.fields(cls)[:-1]:  # the last is the header
            name, dtype = field.name, field.metadata["dtype"]
            shape = tuple(getattr(header, axis) for axis in field.metadata["axes"])
            if field.type is Texts:
                ends = _load_array(sums, f"{name}.ends", dtype, shape)
                arrays[f"{name}.ends"] = ends
                name, dtype = f"{name}.content", np.dtype(np.uint8)
                shape = (int(ends[-1]) if len(ends) else 0,)
            arrays[name] = _load_array(sums, name, dtype, shape)
        return cls.from_arrays(arrays, header=header)


def _load_array(sums: Checksums, name: str, dtype: np.dtype, shape: tuple) -> np.ndarray:
    name = f"{name}.npy"
    path = tf.io.gfile.join(sums.folder, name)
    if "://" in path:
        source = io.BytesIO(sums.read(name))
    else:
        sums.check(name)
        source = path
    try:
        array = read_array(source, path)
    except UserError as error:
        raise UserError(f"{path} cannot be read: {error}; the index is damaged.") from error
    earlier = np.float32 if dtype == np.float16 else dtype
    if array.dtype not in (dtype, earlier) or array.shape != shape:
        raise UserError(
            f"{path} holds {array.dtype} {list(array.shape)}, but the index has {dtype} "
            f"{list(shape)} by its header: it is damaged."
        )
    return array

"""An index: all that a search needs of its images and sentences, as arrays on disk.

    index = Index.load("models/mrnn_index/1/assets.extra/index")
    index.images[7], index.ids[7]  # a = V_I I of an image, and its id

Local files are mapped into memory: opening an index reads only what is used of it.
"""

import dataclasses
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

import numpy as np
import tensorflow as tf

from mrnn_tf import files, schema
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.search import SentenceTable

HEADER_FILE = "header.json"
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
        content, begin = self.content.tobytes(), 0
        for end in self.ends.tolist():
            yield content[begin:end]
            begin = end


@dataclasses.dataclass(frozen=True)
class Entries:
    """Images and sentences, ready to be searched."""

    ids: Texts  # of the images
    images: np.ndarray  # float32 [I, M], a = V_I I
    captions: Texts  # the raw sentences
    words: np.ndarray  # int32 [S, T], their ids with the end token, padded with `schema.PAD_ID`
    vectors: np.ndarray  # float32 [S, M], v_s of the expansion around the mean image
    mean_log_probs: np.ndarray  # float32 [S], log P(s|mean image)
    log_marginals: np.ndarray  # float64 [S], log P(s)
    owners: np.ndarray  # int32 [S], the row of the image that a sentence describes, or `NO_IMAGE`

    @classmethod
    def join(cls, parts: Sequence["Entries"]) -> "Entries":
        """The entries of some parts, one after the other."""
        names = [field.name for field in dataclasses.fields(cls)]
        columns = {name: [getattr(part, name) for part in parts] for name in names}
        longest = max(words.shape[1] for words in columns["words"])
        columns["words"] = [
            np.pad(words, [(0, 0), (0, longest - words.shape[1])], constant_values=schema.PAD_ID)
            for words in columns["words"]
        ]
        first_image = np.cumsum([0, *map(len, columns["images"])], dtype=np.int32)
        columns["owners"] = [
            np.where(owners == NO_IMAGE, NO_IMAGE, owners + first)
            for owners, first in zip(columns["owners"], first_image[:-1], strict=True)
        ]
        return cls(
            **{
                name: Texts.of([text for texts in values for text in texts])
                if isinstance(values[0], Texts)
                else np.concatenate(values)
                for name, values in columns.items()
            }
        )

    def without(self, ids: Iterable[bytes]) -> "Entries":
        """The entries that are left without some images and their sentences."""
        gone = set(ids)
        kept = np.array([image_id not in gone for image_id in self.ids], bool)
        new_rows = np.append(np.cumsum(kept, dtype=np.int32) - 1, np.int32(NO_IMAGE))
        stays = np.append(kept, True)[self.owners]  # the last one is that of no image
        entries = {}
        for field in dataclasses.fields(Entries):
            value = getattr(self, field.name)
            mask = kept if field.name in ("ids", "images") else stays
            is_text = isinstance(value, Texts)
            entries[field.name] = Texts.of([*compress(value, mask)]) if is_text else value[mask]
        return Entries(**entries | {"owners": new_rows[self.owners[stays]]})

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array by the name of its file."""
        arrays = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Texts):
                arrays |= {f"{field.name}.{part}": array for part, array in vars(value).items()}
            elif isinstance(value, np.ndarray):
                arrays[field.name] = value
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], **more) -> "Entries":
        """The reverse of `arrays`."""
        texts = {
            name: Texts(arrays[f"{name}.content"], arrays[f"{name}.ends"])
            for name in ("ids", "captions")
        }
        plain = {name: array for name, array in arrays.items() if "." not in name}
        return cls(**texts, **plain, **more)


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


@dataclasses.dataclass(frozen=True)
class Index(Entries):
    """Entries, and what they were made with."""

    mean: np.ndarray  # float32 [M], the mean image, around which sentences are expanded
    sample: np.ndarray  # float32 [n, M], the sampled training images of P(s)
    header: Header

    @property
    def table(self) -> SentenceTable:
        """The sentences as `Searcher` takes them."""
        return SentenceTable(self.words, self.vectors, self.mean_log_probs, self.log_marginals)

    def save(self, folder: str) -> None:
        """Writes the arrays and, last, the header."""
        tf.io.gfile.makedirs(folder)
        for name, array in self.arrays().items():
            with tf.io.gfile.GFile(tf.io.gfile.join(folder, f"{name}.npy"), "wb") as file:
                np.save(file, array)
        files.write_json(tf.io.gfile.join(folder, HEADER_FILE), dataclasses.asdict(self.header))

    @classmethod
    def load(cls, folder: str, model: str | None = None) -> "Index":
        """Opens an index; refuses a damaged one and, where `model` is given, another model's."""
        path = tf.io.gfile.join(folder, HEADER_FILE)
        if not tf.io.gfile.exists(path):
            raise FileNotFoundError(f"{folder} holds no {HEADER_FILE}: it is not an index.")
        with tf.io.gfile.GFile(path) as file:
            try:
                header = Header(**json.load(file))
            except (ValueError, TypeError) as error:
                raise UserError(f"{path} is not the header of an index: {error}") from error
        if model not in (None, header.model):
            raise UserError(
                f"{folder} is the index of another model: its fingerprint is {header.model[:12]}, "
                f"this model's is {model[:12]}."
            )
        forms = _forms(header)
        arrays = {name: _load_array(folder, name) for name in forms}
        for name, (dtype, shape) in forms.items():
            if name.endswith(".content"):
                ends = arrays[name.replace("content", "ends")]
                shape = (int(ends[-1]) if len(ends) else 0,)
            array = arrays[name]
            if (array.dtype, array.shape) != (dtype, shape):
                raise UserError(
                    f"{folder}/{name}.npy holds {array.dtype} {list(array.shape)}, but the index "
                    f"has {np.dtype(dtype)} {list(shape)} by its header: it is damaged."
                )
        return cls.from_arrays(arrays, header=header)


def _forms(header: Header) -> dict[str, tuple[type, tuple]]:
    """The type and the shape of every array; the bytes of texts are as many as their ends say."""
    images, sentences, size = header.images, header.sentences, header.size
    return {
        "ids.content": (np.uint8, ()),
        "ids.ends": (np.int64, (images,)),
        "images": (np.float32, (images, size)),
        "captions.content": (np.uint8, ()),
        "captions.ends": (np.int64, (sentences,)),
        "words": (np.int32, (sentences, header.longest)),
        "vectors": (np.float32, (sentences, size)),
        "mean_log_probs": (np.float32, (sentences,)),
        "log_marginals": (np.float64, (sentences,)),
        "owners": (np.int32, (sentences,)),
        "mean": (np.float32, (size,)),
        "sample": (np.float32, (header.sample, size)),
    }


def _load_array(folder: str, name: str) -> np.ndarray:
    path = tf.io.gfile.join(folder, f"{name}.npy")
    try:
        if "://" not in path:
            return np.load(path, mmap_mode="r")
        with tf.io.gfile.GFile(path, "rb") as file:
            return np.load(io.BytesIO(file.read()))
    except (OSError, ValueError, EOFError, tf.errors.NotFoundError) as error:
        raise UserError(f"{path} cannot be read: {error}; the index is damaged.") from error

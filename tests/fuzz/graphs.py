"""What parses inside a graph, as a server runs it: images, records, texts."""

import functools
import io
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

from fuzz.datasets import Folder, npy
from fuzz.engine import Case, Parser
from mrnn_tf import photos, schema, text
from mrnn_tf.data import records
from mrnn_tf.rows import successes
from mrnn_tf.vision import headers, images

_AT_ONCE = 64
_MAX_PIXELS = 1 << 20
_SIZE = 12
_TEXTS = [
    "a dog runs on the beach",
    "A man's hat -- isn't 'it' nice?",
    "Ein Hund läuft über die Straße.",
    "İstanbul ΟΔΥΣΣΕΥΣ \ufb01ne \uff21\uff22 x\u00b2 e\u0301",
    "狗在跑 мальчик ребёнок",
    "\u0301\u0302 '' ' s",
    "",
]


def pictures() -> list[tuple[str, bytes]]:
    """A small image in every format that is understood, with EXIF where there can be."""
    pixels = np.random.default_rng(0).integers(0, 256, (9, 13, 3), np.uint8)
    picture, seeds = Image.fromarray(pixels), []
    exif = Image.Exif()
    exif[0x0112] = 6
    forms = {"jpeg": {"exif": exif}, "png": {"exif": exif}, "bmp": {}, "webp": {"exif": exif}}
    forms |= {"gif": {"save_all": True, "append_images": [picture.rotate(90), picture]}}
    for form, options in forms.items():
        content = io.BytesIO()
        picture.save(content, form, **options)
        seeds.append((f"p.{form}", content.getvalue()))
    for mode in ("L", "P", "1", "CMYK", "RGBA", "I;16"):
        content = io.BytesIO()
        form = "jpeg" if mode == "CMYK" else "png"
        source = Image.fromarray(pixels[..., 0].astype(np.uint16)) if mode == "I;16" else picture
        source.convert(mode).save(content, form)
        seeds.append((f"{mode[0]}.{form}", content.getvalue()))
    return seeds


def _contents(cases: Sequence[Case]) -> tf.Tensor:
    return tf.constant([case.content for case in cases])


def _headers(_: Path) -> Parser:
    """What is read of an image before it is decoded."""

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def read(content):
        first = headers.first_frame(content)
        return headers.pixels(first), headers.orientation(first)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def read_all(contents):
        return successes(read, contents)

    def parse(cases: Sequence[Case]) -> list[bool]:
        rows, (pixels, orientations) = read_all(_contents(cases))
        assert np.all((orientations >= 1) & (orientations <= 8))
        known = rows.numpy()[pixels.numpy() < 1 << 62]
        return [row in known for row in range(len(cases))]

    return Parser(pictures(), parse, at_once=_AT_ONCE)


def _decoding(_: Path) -> Parser:
    """Images as a model decodes them: a bad one is left out, the others are answered."""

    def size(content):
        return tf.shape(images.decode(content, _MAX_PIXELS))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def decode_all(contents):
        return successes(size, contents)

    def parse(cases: Sequence[Case]) -> list[bool]:
        rows, sizes = decode_all(_contents(cases))
        assert np.all(np.prod(sizes, axis=1) <= 3 * _MAX_PIXELS)
        return [row in rows.numpy() for row in range(len(cases))]

    return Parser(pictures(), parse, at_once=_AT_ONCE, share=0.3)


def _examples() -> list[tuple[str, bytes]]:
    features = np.linspace(-1, 1, _SIZE).astype(np.float32)
    captions = ["a dog runs", "Ein Hund läuft"]
    return [
        ("both.pb", records.serialize("a.jpg", captions, features, b"\xff\xd8\xff")),
        ("features.pb", records.serialize("b.jpg", (), features)),
        ("images.pb", records.serialize("c.jpg", captions, None, b"\x89PNG")),
    ]


def _served_examples(_: Path) -> Parser:
    """Records as the signature `caption_examples` parses them."""
    parse_image = functools.partial(records.parse_image, size=_SIZE)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def parse_all(contents):
        return successes(parse_image, contents)

    def parse(cases: Sequence[Case]) -> list[bool]:
        rows, (features, _) = parse_all(_contents(cases))
        assert features.shape[1] == _SIZE
        return [row in rows.numpy() for row in range(len(cases))]

    return Parser(_examples(), parse, at_once=_AT_ONCE, share=2)


def _records(path: Path) -> Parser:
    """Records of a dataset, as training and evaluation read them; a bad one is named."""
    counts = {schema.TRAIN: records.SplitCounts(1, 1, 1)}
    stores = (schema.FEATURES, schema.IMAGES)
    info = records.DatasetInfo("d", counts, stores, None, _SIZE, {}, 9, {}, "f", "0")
    info.save(str(path))
    [shard] = info.shards(str(path), schema.TRAIN)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def parse_one(contents):
        return records.parse(contents, info, stores)

    def parse(case: Case) -> None:
        with tf.io.TFRecordWriter(shard) as writer:
            writer.write(case.content)
        with records.naming_corruption(str(path)):
            parse_one(_contents([case]))

    return Parser(_examples(), parse, share=0.2)


def _tokenizer(_: Path) -> Parser:
    """Words of any bytes: valid UTF-8, without spaces, and the same when they are read again."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize(contents):
        return text.tokenized(contents), *text.tokenize_short(contents, 50)

    def parse(cases: Sequence[Case]) -> list[bool]:
        joined, short, is_short = tokenize(_contents(cases))
        again, _, _ = tokenize(joined)
        lengths = short.row_lengths().numpy()
        for words, same, length, fits in zip(
            joined.numpy(), again.numpy(), lengths, is_short, strict=True
        ):
            words.decode()
            assert words == same, (words, same)
            assert length <= 50 and (length == len(words.split()) or not fits)
        return is_short.numpy().tolist()

    seeds = [(f"{n}.txt", sentence.encode()) for n, sentence in enumerate(_TEXTS)]
    return Parser(seeds, parse, at_once=_AT_ONCE, share=0.3)


def _photos(path: Path) -> Parser:
    """Photos and features as the client and `Captioner` take them."""
    seeds = [*pictures(), ("f.npy", npy(np.linspace(0, 1, _SIZE)))]
    seeds.append(("r.bmp", struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 70, 0, 0, 54, 40, 2, -2, 1, 24,
                                       0, 16, 0, 0, 0, 0) + bytes(16)))  # fmt: skip
    folder = Folder(path, {"f.npy": b""})

    def parse(case: Case) -> None:
        photo = folder.place(case) if case.name == "f.npy" else case.content
        loaded = photos.load(photo)
        assert isinstance(loaded, bytes) or np.isfinite(loaded).all()
        if isinstance(loaded, bytes):
            photos.load(loaded, max_bytes=300)

    return Parser(seeds, parse, share=2)


PARSERS = {
    "image headers": _headers,
    "images": _decoding,
    "caption_examples": _served_examples,
    "records": _records,
    "tokeniser": _tokenizer,
    "photos": _photos,
}

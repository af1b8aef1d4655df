"""Cards of TensorBoard: a picture, what the model says of it, and what people say."""

import io
import itertools
from collections.abc import Iterator, Sequence

import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont
from tensorboard.plugins.image import metadata

from mrnn_tf.vision import images

_MARGIN, _LINE_HEIGHT, _FONT_SIZE = 6, 18, 14
_SIDE = 320  # the width of a card, and the most height of its picture
_REFERENCES = 2
_QUALITY = 85


def decode(encoded: bytes) -> Image.Image:
    """A small upright picture of an encoded image."""
    picture = Image.open(io.BytesIO(images.picture(images.decode(encoded)).numpy()))
    picture.thumbnail((_SIDE, _SIDE))
    return picture


def write(name: str, picture: Image.Image, generated: str, references: Sequence[str]) -> None:
    """Writes the card of an image to the default summary writer, as a JPEG."""
    card = draw(picture, generated, references)
    content = io.BytesIO()
    card.save(content, "JPEG", quality=_QUALITY)
    plugin = metadata.create_summary_metadata(display_name=name, description="")
    tensor = tf.stack([str(card.width), str(card.height), content.getvalue()])
    tf.summary.write(f"samples/{name}", tensor, metadata=plugin)


def draw(picture: Image.Image, generated: str, references: Sequence[str]) -> Image.Image:
    """The picture with the sentences below it."""
    font = ImageFont.load_default(_FONT_SIZE)
    texts = [f"model: {generated}", *(f"reference: {text}" for text in references[:_REFERENCES])]
    lines = list(
        itertools.chain.from_iterable(_wrapped(text, font, _SIDE - 2 * _MARGIN) for text in texts)
    )
    height = picture.height + 2 * _MARGIN + _LINE_HEIGHT * len(lines)
    card = Image.new("RGB", (_SIDE, height), "white")
    card.paste(picture)
    pen = ImageDraw.Draw(card)
    for number, line in enumerate(lines):
        place = _MARGIN, picture.height + _MARGIN + number * _LINE_HEIGHT
        pen.text(place, line, fill="black", font=font)
    return card


def _wrapped(text: str, font: ImageFont.FreeTypeFont, width: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and font.getlength(longer) > width:
            yield line
            longer = word
        line = longer
    yield line

"""The places of a scene: sky, ground and scenery, painted at twice the picture's size."""

import numpy as np
from PIL import Image, ImageChops, ImageColor

from mrnn_tf.data.demo.pen import SHAPES, Pen
from mrnn_tf.data.demo.scene import PLACES, TABLES

SIZE = 224
ZOOM = 2  # shapes are drawn at twice the size, then averaged down


def paint(place: str, light: str, rng: np.random.Generator) -> Image.Image:
    """The empty place, `ZOOM` times the picture's size."""
    sky, ground = TABLES["lights"][light], PLACES[place]
    soil = _gradient(ground.far, ground.near, SIZE - ground.horizon, sky["tint"])
    image = Image.new("RGB", (SIZE, SIZE))
    image.paste(_gradient(sky["top"], sky["bottom"], ground.horizon))
    soil = ImageChops.add(soil, _grain(soil.size, ground.roughness, rng), offset=-128)
    image.paste(soil, (0, ground.horizon))
    image = image.resize((SIZE * ZOOM, SIZE * ZOOM), Image.Resampling.NEAREST)
    Pen(image, ZOOM, rng).draw(SHAPES[light])
    Pen(image, ZOOM, rng, sky["tint"]).draw(SHAPES[place])
    return image


def _gradient(top: str, bottom: str, rows: int, tint=(1, 1, 1)) -> Image.Image:
    ends = (np.multiply(ImageColor.getrgb(colour), tint) for colour in (top, bottom))
    column = np.linspace(*ends, rows).astype(np.uint8)
    return Image.fromarray(column[:, None]).resize((SIZE, rows))


def _grain(size: tuple[int, int], roughness: float, rng: np.random.Generator) -> Image.Image:
    """Coarse and fine noise around 128."""
    fine = Image.frombytes("L", size, rng.bytes(size[0] * size[1]))
    coarse = Image.frombytes("L", (28, 14), rng.bytes(28 * 14)).resize(size)
    noise = Image.blend(fine, coarse, 0.55)
    flat = Image.new("L", size, 128)
    return Image.merge("RGB", [Image.blend(flat, noise, roughness / 50)] * 3)

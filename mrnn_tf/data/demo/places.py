"""The places of a scene: sky, ground and scenery, painted at twice the picture's size."""

import dataclasses

import numpy as np
from PIL import Image, ImageChops, ImageColor

from mrnn_tf.data.demo.pen import Pen
from mrnn_tf.data.demo.shapes import SHAPES

SIZE = 224
ZOOM = 2  # shapes are drawn at twice the size, then averaged down


# The colours at the top and at the bottom of the sky, and the tint of all that is under it.
LIGHTS = {
    "sunny": ("#4696ec", "#cee8fa", (1, 1, 1)),
    "cloudy": ("#808a96", "#cad0d6", (0.86, 0.88, 0.9)),
    "sunset": ("#5c3c8c", "#ff9e54", (1, 0.84, 0.74)),
    "night": ("#080a28", "#2c3268", (0.46, 0.5, 0.7)),
    "indoors": ("#e8d6ba", "#dec8aa", (1, 1, 1)),
}


@dataclasses.dataclass(frozen=True)
class Ground:
    """Where the ground begins, how it looks from far to near, and where things are on it."""

    horizon: int
    far: str
    near: str
    roughness: int
    standing: tuple[int, int] = (180, 212)  # where feet touch the ground
    floating: tuple[int, int] | None = None  # where hulls touch the water


GROUNDS = {
    "beach": Ground(96, "#e8d096", "#f4e0ac", 16, floating=(140, 150)),
    "park": Ground(104, "#60aa48", "#3c8c32", 20),
    "street": Ground(120, "#707076", "#54545a", 18, standing=(176, 208)),
    "room": Ground(150, "#aa7448", "#8c5834", 8, standing=(186, 212)),
    "desert": Ground(112, "#e29e58", "#cc7c3e", 16),
    "snow": Ground(108, "#e2eaf4", "#f8faff", 8),
    "lake": Ground(92, "#3c82aa", "#1e5c8e", 10, standing=(208, 216), floating=(150, 190)),
    "city": Ground(150, "#787888", "#5a5a68", 14, standing=(188, 212)),
}


def paint(place: str, light: str, rng: np.random.Generator) -> Image.Image:
    """The empty place, `ZOOM` times the picture's size."""
    (top, bottom, tint), ground = LIGHTS[light], GROUNDS[place]
    soil = _gradient(ground.far, ground.near, SIZE - ground.horizon, tint)
    image = Image.new("RGB", (SIZE, SIZE))
    image.paste(_gradient(top, bottom, ground.horizon))
    image.paste(
        ImageChops.add(soil, _grain(soil.size, ground.roughness, rng), offset=-128),
        (0, ground.horizon),
    )
    image = image.resize((SIZE * ZOOM, SIZE * ZOOM), Image.Resampling.NEAREST)
    Pen(image, ZOOM, rng).draw(SHAPES[light])
    Pen(image, ZOOM, rng, tint).draw(SHAPES[place])
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

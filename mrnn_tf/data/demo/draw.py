"""A scene as a picture: the place, where the things are in it, and how they are lit."""

import math

import numpy as np
from PIL import Image, ImageChops, ImageColor, ImageDraw

from mrnn_tf.data.demo import sprites
from mrnn_tf.data.demo.pen import COLOURS, SHAPES, Pen
from mrnn_tf.data.demo.scene import GROUND, PLACES, SIZES, SKY, TABLES, WATER, Scene, Thing

SIZE = 224
ZOOM = 2  # shapes are drawn at twice the size, then averaged down
MARGIN = 5
RISE = {"jump": 24, "bounce": 36, "leap": 22}  # pixels between a thing and what is under it
TILT = {"jump": 12, "leap": 35}  # degrees
DIMMED = {"night": (0.8, 0.82, 0.95), "sunset": (1.0, 0.93, 0.88), "cloudy": (0.95, 0.95, 0.96)}
OUTLINE = ((-2, 0), (2, 0), (0, -2), (0, 2))

Placed = tuple[Thing, float, float, float]  # a thing, its middle x, its lowest y, its scale


def render(scene: Scene, rng: np.random.Generator) -> Image.Image:
    """The scene as an RGB picture of `SIZE` x `SIZE` pixels."""
    image = paint_place(scene.place, scene.light, rng)
    for thing, x, y, scale in sorted(_layout(scene, rng), key=lambda placed: placed[2]):
        _put(image, thing, x, y, scale, scene.light, rng)
    return image.reduce(ZOOM)


def paint_place(place: str, light: str, rng: np.random.Generator) -> Image.Image:
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


def _layout(scene: Scene, rng: np.random.Generator) -> list[Placed]:
    if scene.relation is None:
        things = [scene.first] * scene.first.count
        xs, scale = _row(things, 1.0, rng.uniform(1.0, 1.2), rng)
        return [(scene.first, x, _bottom(scene.first, scene.place, scale, rng), scale) for x in xs]
    if scene.relation == "above":
        return _above(scene, rng)
    pair, spread = [scene.first, scene.second], rng.uniform(1.05, 1.25)
    if scene.relation == "behind":
        pair, spread = pair[:: rng.choice((-1, 1))], rng.uniform(0.65, 0.75)
    xs, scale = _row(pair, 0.85, spread, rng)
    ys = {thing: _bottom(thing, scene.place, scale, rng) for thing in pair}
    if scene.relation == "behind" and scene.first.zone == scene.second.zone:
        near = PLACES[scene.place].standing[1]
        ys = {scene.first: near - rng.uniform(20, 28), scene.second: near}
    return [(thing, x, ys[thing], scale) for thing, x in zip(pair, xs, strict=True)]


def _above(scene: Scene, rng: np.random.Generator) -> list[Placed]:
    first, second = scene.first, scene.second
    (_, high), (wide, low) = _extent(first), _extent(second)
    floor = _bottom(second, scene.place, 1.0, rng)
    scale = min(0.85, (floor - 3 * MARGIN) / (high + low))
    xs, scale = _row([first] * first.count, scale, 1.1, rng)
    ceiling = floor - low * scale - MARGIN
    ys = ceiling - rng.random(len(xs)) * (ceiling - high * scale - MARGIN)
    reach = wide * scale / 2 + MARGIN
    below = np.clip(xs.mean() + rng.uniform(-15, 15), reach, SIZE - reach)
    group = [(first, x, y, scale) for x, y in zip(xs, ys, strict=True)]
    return [*group, (second, below, floor, scale)]


def _extent(thing: Thing) -> tuple[float, float]:
    """Width, and height from the ground, of a thing at scale 1."""
    width, height = thing.extent
    tilt = math.radians(TILT.get(thing.action, 0))
    rise = RISE.get(thing.action, 0) * SIZES[thing.size]
    cos, sin = math.cos(tilt), math.sin(tilt)
    return width * cos + height * sin, height * cos + width * sin + rise


def _row(things: list[Thing], scale: float, spread: float, rng) -> tuple[np.ndarray, float]:
    """The middles of things side by side, and the scale at which the picture holds them."""
    widths = np.array([_extent(thing)[0] for thing in things]) * scale
    middles = np.cumsum([0, *(spread * (widths[:-1] + widths[1:]) / 2)])
    left, right = (middles - widths / 2).min(), (middles + widths / 2).max()
    fit = min(1.0, (SIZE - 2 * MARGIN) / (right - left))
    start = MARGIN + rng.random() * (SIZE - 2 * MARGIN - (right - left) * fit)
    return start + (middles - left) * fit, scale * fit


def _bottom(thing: Thing, place: str, scale: float, rng: np.random.Generator) -> float:
    if thing.zone == SKY:
        return _extent(thing)[1] * scale + rng.uniform(MARGIN, 34)
    ground = PLACES[place]
    return rng.uniform(*(ground.floating if thing.zone == WATER else ground.standing))


def _put(image, thing, x, y, scale, light, rng) -> None:
    scale *= SIZES[thing.size]
    colour = np.array(COLOURS[thing.colour]) * rng.uniform(0.92, 1.06) + rng.uniform(-8, 8, 3)
    colour = tuple(int(channel) for channel in colour.clip(0, 255))
    tile = sprites.paint(thing, scale * ZOOM, colour, rng)
    if thing.action in TILT:
        tile = tile.rotate(TILT[thing.action], Image.Resampling.BILINEAR, expand=True)
    facing = int(rng.choice((-1, 1)))
    if facing < 0:
        tile = tile.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    rise = RISE.get(thing.action, 0) * scale
    _surroundings(image, thing, x, y, tile.width / ZOOM, tile.height / ZOOM, rise, facing)
    left = round(ZOOM * x - tile.width / 2)
    top = max(MARGIN, round(ZOOM * (y - rise) - tile.height))
    mask = tile.getchannel("A")
    for dx, dy in OUTLINE:
        image.paste(tuple(channel // 3 for channel in colour), (left + dx, top + dy), mask)
    shade = _shade(tile.size, DIMMED.get(light, (1, 1, 1)), rng)
    image.paste(ImageChops.multiply(tile.convert("RGB"), shade), (left, top), mask)


def _shade(size: tuple[int, int], tint: tuple[float, ...], rng) -> Image.Image:
    """Light from above on a rough skin, to be multiplied with a thing's colours."""
    grain = rng.standard_normal((24, 24), np.float32) * 0.05
    light = np.linspace(1.04, 0.8, 24, dtype=np.float32)[:, None] + grain
    pixels = (255 * light[..., None] * np.float32(tint)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)


def _surroundings(image, thing, x, y, width, height, rise, facing) -> None:
    """Shadow, ripples, drops and the lines of motion."""
    brush = ImageDraw.Draw(image, "RGBA")

    def box(middle: float, level: float, rx: float, ry: float) -> list[float]:
        return [ZOOM * v for v in (middle - rx, level - ry, middle + rx, level + ry)]

    if thing.zone == GROUND:
        brush.ellipse(box(x, y - 1, width * 0.46, max(3, width * 0.06)), fill=(0, 0, 0, 90))
    if thing.zone == WATER:
        for share in (0.62, 0.5):
            brush.ellipse(box(x, y, width * share, 4.5), fill=(225, 240, 250, 120))
    if thing.action == "leap":
        for dx in (-14, -6, 5, 13):
            brush.ellipse(box(x + dx, y - 12 + abs(dx) / 2, 2, 3.5), fill=(235, 246, 255))
    if thing.action in ("bounce", "jump"):
        for level in (0.3, 0.65):
            arc = box(x, y - rise * level, width * 0.25, 5)
            brush.arc(arc, 20, 160, fill=(255, 255, 255, 220), width=2 * ZOOM)
    if thing.action in ("run", "drive"):
        for level, length in ((0.3, 12), (0.5, 28), (0.7, 12)):
            start, row = x - facing * (width / 2 + 4), y - height * level
            ends = [ZOOM * v for v in (start, row, start - facing * length, row)]
            brush.line(ends, fill=(255, 255, 255, 200), width=2 * ZOOM)

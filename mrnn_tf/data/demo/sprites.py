"""Draws one thing of a scene: the shapes of its kind, or a person in a pose."""

from PIL import Image

from mrnn_tf.data.demo.pen import BLACK, SHAPES, TABLES, WHITE, Pen, mix
from mrnn_tf.data.demo.scene import KINDS, Thing

HANDS, FEET = TABLES["hands"], TABLES["feet"]


def paint(thing: Thing, scale: float, colour: tuple[int, ...], rng) -> Image.Image:
    """The thing on a transparent tile, `scale` times its natural size."""
    tile = Image.new("RGBA", tuple(round(side * scale) for side in KINDS[thing.kind].size))
    dark = sum(colour) < 180  # shades of black are lighter than black
    shades = {
        "main": colour,
        "dark": mix(colour, WHITE, 0.22) if dark else mix(colour, BLACK, 0.3),
        "light": mix(colour, WHITE, 0.3 if dark else 0.4),
    }
    pen = Pen(tile, scale, rng, colours=shades, action=thing.action)
    if thing.kind in SHAPES:
        pose = SHAPES.get(f"{thing.kind} {thing.action}", SHAPES.get(f"{thing.kind} *", ""))
        pen.draw(f"{pose}\n{SHAPES[thing.kind]}")
    else:
        _person(pen, thing.kind, thing.action)
    return tile


def _person(pen: Pen, kind: str, action: str) -> None:
    child, dress = kind in ("boy", "girl"), kind in ("woman", "girl")
    tall, x, head = KINDS[kind].size[1], 32, 15 if child else 13
    neck = 34 if child else 32
    hip = neck + (26 if child else 42)
    drop = tall - hip - 12 if action == "sit" else 0
    neck, hip, trousers = neck + drop, hip + drop, "skin" if dress else "denim"
    if action == "sit":
        for knee, foot in ((22, tall - 5), (14, tall - 10)):
            pen.line(trousers, 10, x, hip + 6, x + knee, hip + 4, x + 27, foot)
    else:
        feet = FEET.get(action, (-7, 0, 7, 0))
        for dx, y in ((feet[0], tall - feet[1]), (feet[2], tall - feet[3])):
            pen.line(trousers, 10, x + dx / 4, hip, x + dx, y - 7)
            if kind == "boy":
                pen.line("skin", 8, x + dx * 0.7, (hip + tall) / 2, x + dx, y - 7)
            pen.line("black", 7, x + dx, y - 4, x + dx + 5, y - 4)
    if dress:
        tip = (22, -6) if child else (14, 8)
        for side in (-1, 1):
            pen.line("hair", 9, x + side * 11, neck - 18, x + side * tip[0], neck + tip[1])
    hands, reach = HANDS[action], 0.75 if child else 1.0
    for side, dx, dy in ((-9, *hands[:2]), (9, *hands[2:])):
        pen.line("skin", 7, x + side, neck + 6, x + dx, neck + 6 + dy * reach)
        pen.line("main", 9, x + side, neck + 6, x + dx * 0.75, neck + 6 + dy * reach * 0.5)
    if dress:
        hem = min(hip + 18, tall - 2)
        pen.shape("main", x - 10, neck, x + 10, neck, x + 12, hip - 6, x + 24, hem, x - 24, hem)
        pen.line("light", 4, x - 10, hip - 10, x + 10, hip - 10)
    else:
        pen.slab("main", 5, x - 15, neck - 1, x + 15, hip + 3)
        pen.line("dark", 3, x - 12, hip, x + 12, hip)
    pen.oval("hair", x - head - 1, neck - 2 * head - 3, x + head + 1, neck - 4)
    pen.oval("skin", x - head + 2, neck - 2 * head + 3, x + head - 1, neck + 1)
    if kind == "man":
        pen.slab("hair", 4, x - 8, neck - 9, x + 10, neck + 2)
    if kind == "boy":
        pen.slice("main", 180, 360, x - 16, neck - 34, x + 16, neck - 8)
        pen.line("dark", 4, x, neck - 21, x + 22, neck - 21)
    for eye in (-4, 5):
        pen.oval("black", x + eye - 1.5, neck - head - 1, x + eye + 1.5, neck - head + 2.5)
    pen.line("red", 1.6, x - 4, neck - 7, x + 1, neck - 4.5, x + 6, neck - 7)

"""Draws pictures that are written as text: one shape after the other, back to front.

A drawing is a list of commands separated by `;` or line ends, each `what colour numbers`, where
`what` is a method of `Pen`. A number `3~5` is drawn between 3 and 5 each time; `20* oval ...` or
`1~4* oval ...` repeats a command; `at x y` moves the origin of what follows.
"""

import functools

import numpy as np
from PIL import ImageColor, ImageDraw

from mrnn_tf.data.demo import resources

TABLES = resources.load("shapes.toml")
SHAPES = TABLES["shapes"]
COLOURS = {name: tuple(channels) for name, channels in TABLES["colours"].items()}
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def mix(colour: tuple[int, ...], other: tuple[int, ...], share: float) -> tuple[int, ...]:
    return tuple(round(a + (b - a) * share) for a, b in zip(colour, other, strict=True))


@functools.cache
def _parse(drawing: str) -> list[tuple]:
    """The commands as (least and most times, method, its words, ranges of its numbers)."""
    commands = []
    for words in map(str.split, drawing.replace(";", "\n").splitlines()):
        if words:
            times = _range(words.pop(0)[:-1]) if words[0].endswith("*") else (1.0, 1.0)
            split = 1 if words[0] == "at" else 2
            commands.append((times, words[0], words[1:split], [*map(_range, words[split:])]))
    return commands


def _range(text: str) -> tuple[float, float]:
    low, _, high = text.partition("~")
    return float(low), float(high or low)


class Pen:
    """Draws on an image in units of `scale` pixels.

    `tint` is the light on colours written as #rrggbb; colours by name shine as they are. `colours`
    are more of these. `action` is the pose of what is drawn.
    """

    def __init__(self, image, scale, rng, tint=(1, 1, 1), colours=(), action=""):
        self._draw, self._scale, self._rng, self._tint = ImageDraw.Draw(image), scale, rng, tint
        self._colours, self._action, self._origin = COLOURS | dict(colours), action, (0.0, 0.0)

    def draw(self, drawing: str) -> None:
        for times, method, words, ranges in _parse(drawing):
            for _ in range(round(self._between(*times))):
                getattr(self, method)(*words, *(self._between(*ends) for ends in ranges))

    def _between(self, low: float, high: float) -> float:
        return low if low == high else low + (high - low) * self._rng.random()

    def _ink(self, colour: str) -> tuple[int, ...]:
        if colour not in self._colours:
            channels = zip(ImageColor.getrgb(colour), self._tint, strict=True)
            self._colours[colour] = tuple(int(value * share) for value, share in channels)
        return self._colours[colour]

    def _points(self, *numbers: float) -> list[float]:
        return [(n + self._origin[i % 2]) * self._scale for i, n in enumerate(numbers)]

    def at(self, x: float, y: float) -> None:
        self._origin = x, y

    def oval(self, colour: str, *box: float) -> None:
        self._draw.ellipse(self._points(*box), fill=self._ink(colour))

    def spot(self, colour: str, x: float, y: float, rx: float, ry: float) -> None:
        self.oval(colour, x - rx, y - ry, x + rx, y + ry)

    def ring(self, colour: str, width: float, *box: float) -> None:
        width = round(width * self._scale)
        self._draw.ellipse(self._points(*box), outline=self._ink(colour), width=max(1, width))

    def slice(self, colour: str, start: float, end: float, *box: float) -> None:
        self._draw.pieslice(self._points(*box), start, end, fill=self._ink(colour))

    def box(self, colour: str, *box: float) -> None:
        self._draw.rectangle(self._points(*box), fill=self._ink(colour))

    def slab(self, colour: str, radius: float, *box: float) -> None:
        radius *= self._scale
        self._draw.rounded_rectangle(self._points(*box), radius, fill=self._ink(colour))

    def shape(self, colour: str, *points: float) -> None:
        self._draw.polygon(self._points(*points), fill=self._ink(colour))

    def line(self, colour: str, width: float, *points: float) -> None:
        """A line with round ends."""
        ink, points, radius = self._ink(colour), self._points(*points), width * self._scale / 2
        self._draw.line(points, fill=ink, width=max(1, round(2 * radius)), joint="curve")
        if width > 2:
            for x, y in (points[:2], points[-2:]):
                self._draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)

    def stroke(self, colour: str, width: float, x: float, y: float, dx: float, dy: float) -> None:
        self.line(colour, width, x, y, x + dx, y + dy)

    def peak(self, colour: str, x: float, y: float, reach: float, height: float) -> None:
        self.shape(colour, x - reach, y, x, y - height, x + reach, y)

    def stamp(self, name: str, x: float, y: float) -> None:
        """One of the `SHAPES`, moved."""
        origin, self._origin = self._origin, (self._origin[0] + x, self._origin[1] + y)
        self.draw(SHAPES[name])
        self._origin = origin

    def skyline(self, colour: str, y: float, low: float, high: float, lit: float) -> None:
        """Houses side by side on the line y, with the given share of lit windows."""
        x = self._between(-30, 0)
        while x < 224:
            wide, top = self._between(24, 52), y - self._between(low, high)
            self._colours["wall"] = mix(self._ink(colour), BLACK, self._between(0, 0.35))
            self.box("wall", x, top, x + wide, y)
            for left in np.arange(x + 5, x + wide - 5, 9):
                for up in np.arange(top + 6, y - 10, 12):
                    pane = "glow" if self._rng.random() < lit else "#4c5a70"
                    self.box(pane, left, up, left + 4.5, up + 7)
            x += wide + 1

    def eye(self, colour: str, x: float, y: float, size: float) -> None:
        if self._action == "sleep":
            self.line("black", 1.6, x, y + size / 2, x + size, y + size / 2)
        else:
            self.oval(colour, x, y, x + size, y + size)
            self.oval("black", x + size * 0.35, y + size * 0.2, x + size * 0.9, y + size * 0.8)

    def legs(self, colour: str, width: float, top: float, bottom: float, *xs: float) -> None:
        """Four legs, hind ones first: the far ones darker, spread in a run or jump."""
        reach = {"run": 20, "jump": 24}.get(self._action, 0)
        for index, x in enumerate(xs):
            near, side = index % 2, 1 if index > 1 else -1
            step = side * reach * (1.0 if near else 0.55)
            lift = 8 if reach and not near else width * 0.6
            self.line(colour if near else "dark", width, x, top, x + step, bottom - lift)

"""What a scene of the embedded dataset shows, and which scenes a split may hold."""

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from mrnn_tf import schema

SKY, WATER, GROUND = "sky", "water", "ground"

# Where an action happens, if not on the ground; it also is the pose that is drawn.
ZONES = {"fly": SKY, "float": SKY, "swim": WATER, "sail": WATER, "drift": WATER, "leap": WATER}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a thing can be: its size in pixels, its colours and its actions."""

    size: tuple[int, int]
    colours: tuple[str, ...]
    actions: tuple[str, ...]


def _kind(width: int, height: int, colours: str, actions: str) -> Kind:
    return Kind((width, height), tuple(colours.split()), tuple(actions.split()))


# The last colour of every kind is kept for the test split; what is named twice is twice as likely.
KINDS = {
    "dog": _kind(106, 82, "brown black white grey", "stand run sit jump sleep"),
    "cat": _kind(100, 84, "orange grey white black", "stand sit jump sleep"),
    "horse": _kind(126, 114, "black white grey brown", "stand run jump"),
    "bird": _kind(92, 72, "red yellow black white blue", "fly fly stand"),
    "duck": _kind(88, 70, "white brown grey yellow", "swim swim stand"),
    "fish": _kind(88, 60, "blue red yellow green orange", "leap"),
    "man": _kind(64, 136, "blue white green black red", "stand run wave sit jump"),
    "woman": _kind(64, 132, "red blue yellow purple green", "stand run wave sit jump"),
    "boy": _kind(60, 104, "red yellow green orange blue", "stand run wave sit jump"),
    "girl": _kind(60, 104, "blue pink red purple yellow", "stand run wave sit jump"),
    "car": _kind(128, 62, "red blue green black white yellow", "park drive"),
    "bus": _kind(150, 88, "yellow blue green orange red", "park drive"),
    "bicycle": _kind(116, 76, "red yellow blue black green", "park"),
    "boat": _kind(120, 112, "blue white green yellow red", "sail drift"),
    "house": _kind(132, 124, "white yellow red pink blue", "stand"),
    "tree": _kind(104, 142, "green yellow pink orange", "stand"),
    "ball": _kind(70, 70, "red blue green orange yellow pink", "lie bounce"),
    "chair": _kind(70, 100, "red brown blue white green", "stand"),
    "umbrella": _kind(116, 116, "red yellow green blue purple", "stand"),
    "kite": _kind(84, 118, "yellow red green blue purple", "fly"),
    "balloon": _kind(64, 112, "red yellow purple blue green pink", "float"),
    "plane": _kind(132, 70, "white yellow blue red", "fly"),
}

# The lights of a place, and what may be there.
PLACES = {
    "beach": (
        "sunny sunny cloudy sunset",
        "dog horse man woman boy girl ball chair umbrella umbrella boat boat bird kite plane",
    ),
    "park": (
        "sunny sunny cloudy sunset",
        "dog cat horse duck man boy girl bicycle tree ball bird kite balloon umbrella",
    ),
    "street": (
        "sunny cloudy",
        "dog cat man woman boy girl car bus bicycle house tree bird balloon umbrella",
    ),
    "room": ("indoors", "dog cat man woman boy girl ball ball chair chair balloon"),
    "desert": ("sunny sunny sunset night", "horse dog man woman car bus house bird plane"),
    "snow": ("sunny cloudy night", "dog cat horse man boy girl car house tree ball bird"),
    "lake": (
        "sunny cloudy sunset",
        "boat boat boat duck duck duck fish fish fish man girl dog chair bird kite plane",
    ),
    "city": ("night night sunset", "cat man woman car car bus bus bicycle bicycle plane balloon"),
}
WATERS = ("beach", "lake")

# The relations of a first thing to a second one by their zones. "right of", "under" and "in front
# of" are the same facts told from the second thing: `captions` words them both ways.
RELATIONS = {
    (GROUND, GROUND): ("left", "left", "behind"),
    (WATER, WATER): ("left",),
    (SKY, SKY): ("left",),
    (WATER, GROUND): ("behind",),
    (SKY, GROUND): ("above",),
    (SKY, WATER): ("above",),
}

SIZES = {"small": 0.72, "medium": 1.0, "big": 1.3}


@dataclasses.dataclass(frozen=True)
class Thing:
    """One thing, or a group of equal ones."""

    kind: str
    colour: str
    size: str
    action: str
    count: int = 1

    @property
    def zone(self) -> str:
        return ZONES.get(self.action, GROUND)

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height in pixels before the picture's layout scales them."""
        width, height = KINDS[self.kind].size
        return width * SIZES[self.size], height * SIZES[self.size]


@dataclasses.dataclass(frozen=True)
class Scene:
    """The facts of a picture: everything its captions may say."""

    place: str
    light: str
    first: Thing
    relation: str | None = None
    second: Thing | None = None

    @property
    def things(self) -> tuple[Thing, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)


def unseen_colours(scene: Scene) -> list[tuple[str, str]]:
    """The pairs (kind, colour) of the scene that only the test split may hold."""
    pairs = [(thing.kind, thing.colour) for thing in scene.things]
    return [(kind, colour) for kind, colour in pairs if colour == KINDS[kind].colours[-1]]


def unseen_relation(scene: Scene) -> bool:
    """Whether only the test split may hold the scene's (kind, relation, kind): one in six."""
    if scene.second is None:
        return False
    triple = f"{scene.first.kind} {scene.relation} {scene.second.kind}"
    return zlib.crc32(triple.encode()) % 6 == 0


def sample(rng: np.random.Generator, split: str, index: int) -> Scene:
    """A scene for the split: two of three test scenes hold a combination never trained on."""
    turn, case = divmod(index, 3)
    kind = list(KINDS)[turn % len(KINDS)]
    while True:
        scene = _any_scene(rng)
        if split != schema.TEST:
            fits = not unseen_colours(scene) and not unseen_relation(scene)
        elif case == 0:
            fits = kind in dict(unseen_colours(scene))
        else:
            fits = case == 1 or unseen_relation(scene)
        if fits:
            return scene


def pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[rng.integers(len(options))]


def _any_scene(rng: np.random.Generator) -> Scene:
    place = pick(rng, list(PLACES))
    lights, kinds = (names.split() for names in PLACES[place])
    first, second = (
        _any_thing(rng, pick(rng, kinds), place),
        _any_thing(rng, pick(rng, kinds), place),
    )
    if (first.zone, second.zone) not in RELATIONS:
        first, second = second, first
    relation = pick(rng, RELATIONS[first.zone, second.zone])
    if relation == "behind" and first.extent[1] < 0.9 * second.extent[1]:  # it would be hidden
        relation = "left" if first.zone == second.zone else None
    if relation is None or first.kind == second.kind or rng.random() < 0.3:
        relation = second = None
    if relation in (None, "above") and rng.random() < 0.4:
        first = dataclasses.replace(first, count=int(rng.integers(2, 4)))
    return Scene(place, pick(rng, lights), first, relation, second)


def _any_thing(rng: np.random.Generator, name: str, place: str) -> Thing:
    kind = KINDS[name]
    actions = [a for a in kind.actions if place in WATERS or ZONES.get(a) != WATER]
    size = pick(rng, ("small", "medium", "medium", "big"))
    return Thing(name, pick(rng, kind.colours), size, pick(rng, actions))

"""What people would write under a scene: templates filled with its facts."""

import re

import numpy as np

from mrnn_tf.data.demo import scene

CAPTIONS_PER_IMAGE = 5
LENGTHS = range(5, 17)  # words of a caption

# Singular and plural where an s is not enough or there is more than one word for it.
NOUNS = {
    "fish": (("fish", "fish"),),
    "man": (("man", "men"),),
    "woman": (("woman", "women"),),
    "boy": (("boy", "boys"), ("child", "children")),
    "girl": (("girl", "girls"), ("child", "children")),
    "bus": (("bus", "buses"),),
    "bicycle": (("bicycle", "bicycles"), ("bike", "bikes")),
    "plane": (("plane", "planes"), ("airplane", "airplanes")),
}
SHIRT, DRESS = ("shirt", "shirts"), ("dress", "dresses")
CLOTHES = {"man": SHIRT, "boy": SHIRT, "woman": DRESS, "girl": DRESS}
SIZE_WORDS = {"small": ("small", "little"), "big": ("big", "large")}
HEIGHT_WORDS = {"small": ("small", "short"), "big": ("big", "tall")}
COUNTS = {2: "two", 3: "three"}

# Third person singular, plural, participle.
VERBS = {
    "stand": ("stands", "stand", "standing"),
    "sit": ("sits", "sit", "sitting"),
    "run": ("runs", "run", "running"),
    "jump": ("jumps", "jump", "jumping"),
    "sleep": ("sleeps", "sleep", "sleeping"),
    "wave": ("waves", "wave", "waving"),
    "park": ("is parked", "are parked", "parked"),
    "drive": ("drives", "drive", "driving"),
    "lie": ("lies", "lie", "lying"),
    "bounce": ("bounces", "bounce", "bouncing"),
    "swim": ("swims", "swim", "swimming"),
    "sail": ("sails", "sail", "sailing"),
    "drift": ("drifts", "drift", "drifting"),
    "leap": ("leaps", "leap", "leaping"),
    "fly": ("flies", "fly", "flying"),
    "float": ("floats", "float", "floating"),
}

PLACES = {
    "beach": ("a beach", "a sandy beach"),
    "park": ("a park", "a green park"),
    "street": ("a street", "a wide street"),
    "room": ("a room", "a bright room"),
    "desert": ("a desert", "a hot desert"),
    "snow": ("a snowy field", "a winter landscape"),
    "lake": ("a lake", "a lake in the forest"),
    "city": ("a city", "a big city"),
}
ON_GROUND = {
    "beach": ("on the beach", "on the sand", "by the sea"),
    "park": ("in the park", "on the grass", "on green grass"),
    "street": ("on the street", "on the road", "near some houses"),
    "room": ("in a room", "on the carpet", "in the living room"),
    "desert": ("in the desert", "in the hot desert", "on the dunes"),
    "snow": ("in the snow", "on white snow", "near the mountains"),
    "lake": ("at the lake", "by the water", "on the shore"),
    "city": ("in the city", "downtown", "near tall buildings"),
}
IN_SKY = {
    "beach": ("over the beach", "above the sea"),
    "park": ("over the park", "above the grass"),
    "street": ("over the street", "above the road"),
    "room": ("in a room", "in the living room"),
    "desert": ("over the desert", "above the dunes"),
    "snow": ("over the snow", "above the mountains"),
    "lake": ("over the lake", "above the water"),
    "city": ("over the city", "above tall buildings"),
}
ON_WATER = {
    "beach": ("on the sea", "on the blue sea"),
    "lake": ("on the lake", "on the water"),
}
WHERE = {scene.GROUND: ON_GROUND, scene.SKY: IN_SKY, scene.WATER: ON_WATER}
WHERE_BY_ACTION = {
    "swim": ("in the lake", "in the water"),
    "leap": ("in the lake", "out of the water"),
}

LIGHTS = {
    "sunny": ("on a sunny day", "in the sunshine"),
    "cloudy": ("on a cloudy day", "under grey clouds"),
    "sunset": ("at sunset", "in the evening"),
    "night": ("at night", "in the moonlight"),
}
WEATHER = {"sunny": "sunny", "cloudy": "cloudy", "sunset": "evening", "night": "night"}

RELATIONS = {
    "left": (("left of", "to the left of", "next to"), ("right of", "to the right of", "beside")),
    "above": (("above", "over"), ("under", "below")),
    "behind": (("behind",), ("in front of",)),
}

# A template is its own example: the first thing is the dog that runs, the second the parked car.
ABOUT_ONE = (
    "{a_big_red_dog} {runs} {on_the_beach}.",
    "{a_red_dog} {is} {running} {on_the_beach}.",
    "{a_red_dog} {running} {on_the_beach} {at_night}",
    "{a_dog} {runs} {on_the_beach} {at_night}.",
    "{a_dog} {is} {running} {on_the_beach}",
    "There {is} {a_red_dog} {on_the_beach}.",
    "There {is} {a_big_red_dog} {running} {on_the_beach}.",
    "{a_big_dog} {runs} {on_the_beach}.",
    "{a_big_dog} {is} {running} {on_the_beach} {at_night}.",
    "{the_dog} {on_the_beach} {is_red}.",
    "{a_beach} with {a_big_red_dog}",
    "{a_beach} {at_night} with {a_red_dog}",
    "{a_red_dog} {on_the_beach} {at_night}",
    "{at_night}, {a_red_dog} {runs} {on_the_beach}.",
    "{on_the_beach} {runs} {a_red_dog}.",
    "{on_the_beach} there {is} {a_big_red_dog}.",
    "Look at {the_red_dog} {on_the_beach}!",
    "{a_big_red_dog} {is} {running} {at_night}.",
    "{red_dog} {running} {on_the_beach}",
    "It is {sunny} and {a_red_dog} {runs} {on_the_beach}.",
    "{the_red_dog} {runs} {on_the_beach}.",
    "We see {a_red_dog} {running} {on_the_beach}.",
)
ABOUT_BOTH = (
    "{a_big_red_dog} {runs} {left_of} {a_car}.",
    "{a_red_dog} {runs} {left_of} {a_red_car} {at_the_beach}.",
    "{a_dog} {is} {left_of} {a_big_red_car}.",
    "{a_red_dog} {left_of} {a_red_car}",
    "{a_dog} {left_of} {a_car} {at_the_beach} {at_night}",
    "{a_dog} and {a_red_car} {at_the_beach}",
    "{a_big_red_dog} and {a_red_car} {at_night}.",
    "{a_red_car} {is_car} {right_of} {a_red_dog}.",
    "{a_car} {parks} {right_of} {a_big_red_dog}.",
    "{a_big_red_car} {parks} {right_of} {a_dog} {at_the_beach}.",
    "{a_red_car} and {a_red_dog} {at_the_beach}.",
    "{a_beach} with {a_red_dog} and {a_red_car}",
    "There {is} {a_red_dog} {left_of} {a_car} {at_the_beach}.",
    "{left_of} {a_red_car} {runs} {a_red_dog}.",
    "{right_of} {a_dog} {parks} {a_red_car}.",
    "{at_the_beach}, {a_red_dog} {runs} {left_of} {a_red_car}.",
    "{the_red_dog} {runs} {left_of} {the_red_car}.",
    "{a_dog} {running} {left_of} {a_car} {at_night}",
    "{at_night} {a_red_dog} {runs} {left_of} {a_car}.",
    "{a_red_dog} {runs} while {a_red_car} {parks}.",
    "{a_red_car} with {a_red_dog} {left_of} it",
    "Here {is} {a_red_dog} {left_of} {a_red_car}.",
    "{red_dog} and {red_car} {at_the_beach}",
    "{the_car} {right_of} {the_dog} {is_red_car}.",
)


def describe(facts: scene.Scene, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Five different true captions, each with its template."""
    slots = _slots(facts)
    one, both = (rng.permutation(templates).tolist() for templates in (ABOUT_ONE, ABOUT_BOTH))
    captions = {}
    for template in one[:2] + both + one[2:]:
        names = re.findall(r"{(\w+)}", template)
        if len(captions) < CAPTIONS_PER_IMAGE and slots.keys() >= set(names):
            text = template.format(**{name: scene.pick(rng, slots[name]) for name in names})
            if len(text.split()) in LENGTHS:
                captions.setdefault(text[0].upper() + text[1:], template)
    return [(template, text) for text, template in captions.items()]


def _slots(facts: scene.Scene) -> dict[str, tuple[str, ...]]:
    """What may be said for each name of the templates; a fact that is missing has no entry."""
    first, second = facts.first, facts.second
    there = WHERE_BY_ACTION.get(first.action, WHERE[first.zone].get(facts.place))
    slots = {"a_beach": PLACES[facts.place], "on_the_beach": there} | _phrases(first, "dog")
    slots |= zip(("runs", "running", "is", "is_red"), _predicates(first), strict=True)
    if facts.light in LIGHTS:
        slots |= {"at_night": LIGHTS[facts.light], "sunny": (WEATHER[facts.light],)}
    if second:
        slots |= _phrases(second, "car")
        slots |= zip(("parks", "parked", "is_car", "is_red_car"), _predicates(second), strict=True)
        slots["left_of"], slots["right_of"] = RELATIONS[facts.relation]
        same = first.zone == second.zone
        slots["at_the_beach"] = WHERE[first.zone if same else scene.GROUND][facts.place]
    return slots


def _phrases(thing: scene.Thing, example: str) -> dict[str, tuple[str, ...]]:
    """The thing with and without article, size and colour, under the names of an example."""
    plain, red = _nouns(thing, coloured=False), _nouns(thing, coloured=True)
    phrases = {example: plain, f"red_{example}": red, f"big_red_{example}": red}
    sizes = (HEIGHT_WORDS if thing.kind in CLOTHES else SIZE_WORDS).get(thing.size)
    if sizes:
        for name, nouns in ((f"big_{example}", plain), (f"big_red_{example}", red)):
            phrases[name] = tuple(f"{size} {noun}" for size in sizes for noun in nouns)
    if thing.count > 1:
        count = COUNTS[thing.count]
        phrases = {n: tuple(f"{count} {p}" for p in ps) for n, ps in phrases.items()}
    indefinite = str if thing.count > 1 else _indefinite
    a = {f"a_{name}": tuple(map(indefinite, nouns)) for name, nouns in phrases.items()}
    the = {f"the_{name}": tuple(f"the {n}" for n in nouns) for name, nouns in phrases.items()}
    return phrases | a | the


def _nouns(thing: scene.Thing, coloured: bool) -> tuple[str, ...]:
    many = thing.count > 1
    nouns = [forms[many] for forms in NOUNS.get(thing.kind, ((thing.kind, f"{thing.kind}s"),))]
    if coloured and thing.kind in CLOTHES:
        return tuple(f"{noun} in {_clothes(thing)}" for noun in nouns)
    return tuple(f"{thing.colour} {noun}" for noun in nouns) if coloured else tuple(nouns)


def _clothes(thing: scene.Thing) -> str:
    one, more = CLOTHES[thing.kind]
    return f"{thing.colour} {more}" if thing.count > 1 else _indefinite(f"{thing.colour} {one}")


def _indefinite(phrase: str) -> str:
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _predicates(thing: scene.Thing) -> tuple[tuple[str], ...]:
    """The thing "runs", "running", "is", "is red"."""
    many = thing.count > 1
    verb, be = VERBS[thing.action], "are" if many else "is"
    looks = f"{be} {thing.colour}"
    if thing.kind in CLOTHES:
        looks = f"{'wear' if many else 'wears'} {_clothes(thing)}"
    return (verb[many],), (verb[2],), (be,), (looks,)

"""What people would write under a scene: templates filled with its facts."""

import re

import numpy as np

from mrnn_tf.data.demo import resources, scene

CAPTIONS_PER_IMAGE = 5
LENGTHS = range(5, 17)  # words of a caption
COUNTS = {2: "two", 3: "three"}
WORDS = resources.load("words.toml")


def describe(facts: scene.Scene, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Five different true captions, each with its template."""
    slots = _slots(facts)
    templates = WORDS["templates"]
    one, both = (rng.permutation(templates[key]).tolist() for key in ("about_one", "about_both"))
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
    where, light = WORDS["where"], facts.light
    address = WORDS["where_by_action"].get(first.action, where[first.zone].get(facts.place))
    slots = {"a_beach": WORDS["places"][facts.place], "on_the_beach": address}
    slots |= _phrases(first, "dog")
    slots |= zip(("runs", "running", "is", "is_red"), _predicates(first), strict=True)
    if light in WORDS["lights"]:
        slots |= {"at_night": WORDS["lights"][light], "sunny": (WORDS["weather"][light],)}
    if second:
        slots |= _phrases(second, "car")
        slots |= zip(("parks", "parked", "is_car", "is_red_car"), _predicates(second), strict=True)
        slots["left_of"], slots["right_of"] = WORDS["relations"][facts.relation]
        zone = first.zone if first.zone == second.zone else scene.GROUND
        slots["at_the_beach"] = where[zone][facts.place]
    return slots


def _phrases(thing: scene.Thing, example: str) -> dict[str, tuple[str, ...]]:
    """The thing with and without article, size and colour, under the names of an example."""
    plain, red = _nouns(thing)
    phrases = {example: plain, f"red_{example}": red, f"big_red_{example}": red}
    sizes = WORDS["heights" if thing.kind in WORDS["clothes"] else "sizes"].get(thing.size)
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


def _nouns(thing: scene.Thing) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the thing, without and with its colour."""
    regular = ((thing.kind, f"{thing.kind}s"),)
    nouns = tuple(forms[thing.count > 1] for forms in WORDS["nouns"].get(thing.kind, regular))
    if thing.kind in WORDS["clothes"]:
        return nouns, tuple(f"{noun} in {_clothes(thing)}" for noun in nouns)
    return nouns, tuple(f"{thing.colour} {noun}" for noun in nouns)


def _clothes(thing: scene.Thing) -> str:
    one, more = WORDS["clothes"][thing.kind]
    return f"{thing.colour} {more}" if thing.count > 1 else _indefinite(f"{thing.colour} {one}")


def _indefinite(phrase: str) -> str:
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _predicates(thing: scene.Thing) -> tuple[tuple[str], ...]:
    """The thing "runs", "running", "is", "is red"."""
    many = thing.count > 1
    verb, be = WORDS["verbs"][thing.action], "are" if many else "is"
    looks = f"{be} {thing.colour}"
    if thing.kind in WORDS["clothes"]:
        looks = f"{'wear' if many else 'wears'} {_clothes(thing)}"
    return (verb[many],), (verb[2],), (be,), (looks,)

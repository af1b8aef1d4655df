import collections
import io
import itertools
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from mrnn_tf import schema
from mrnn_tf.data import demo
from mrnn_tf.data.demo import captions, draw, scene

IMAGES = 1500


def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


@pytest.fixture(scope="module")
def described():
    """Split, scene and (template, caption) pairs of the whole dataset, without the pictures."""
    return [
        (split, facts, captions.describe(facts, rng))
        for _, split, facts, rng in demo.scenes(0, IMAGES)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo")
    assert demo.write(str(path), images=30) == 30
    return path


def read(folder):
    lines = (folder / "captions.jsonl").read_text().splitlines()
    return {row["image"]: row for row in map(json.loads, lines)}


def test_files(folder):
    rows = read(folder)
    assert collections.Counter(row["split"] for row in rows.values()) == {
        schema.TRAIN: 23,
        schema.VAL: 3,
        schema.TEST: 4,
    }
    assert {path.name for path in (folder / "images").iterdir()} == {
        path.removeprefix("images/") for path in rows
    }
    assert "images/train-00012.jpg" in rows
    for path, row in rows.items():
        assert len(set(row["captions"])) == 5
        with Image.open(folder / path) as picture:
            assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (224, 224))
    assert {path.name for path in folder.iterdir()} == {"images", "captions.jsonl", "demo.json"}


def test_written_captions_are_those_described(folder):
    rows = read(folder)
    for name, split, facts, rng in demo.scenes(0, 30):
        texts = [text for _, text in captions.describe(facts, rng)]
        assert rows[f"images/{name}.jpg"]["captions"] == texts
        assert rows[f"images/{name}.jpg"]["split"] == split


def test_same_seed_same_bytes_whatever_the_size(folder, tmp_path):
    demo.write(str(tmp_path), images=15)
    smaller = read(tmp_path)
    assert len(smaller) == 15
    for path, row in smaller.items():
        assert row == read(folder)[path]
        assert (tmp_path / path).read_bytes() == (folder / path).read_bytes()


def test_other_seed_other_pictures(folder, tmp_path):
    demo.write(str(tmp_path), seed=1, images=15)
    assert not any(
        (tmp_path / path).read_bytes() == (folder / path).read_bytes() for path in read(tmp_path)
    )


def test_complete_folder_is_left_alone(tmp_path):
    demo.write(str(tmp_path), images=8)
    (tmp_path / "images/train-00000.jpg").unlink()
    assert demo.write(str(tmp_path), images=8) == 8
    assert not (tmp_path / "images/train-00000.jpg").exists()
    with pytest.raises(ValueError, match="delete it or choose another"):
        demo.write(str(tmp_path), seed=1, images=8)


def test_killed_run_is_finished(tmp_path):
    demo.write(str(tmp_path), images=8)
    wanted = read(tmp_path)
    (tmp_path / "captions.jsonl").unlink()
    (tmp_path / "images/train-00003.jpg").write_bytes(b"half")
    demo.write(str(tmp_path), images=8)
    assert read(tmp_path) == wanted
    assert (tmp_path / "images/train-00003.jpg").stat().st_size > 4


def test_captions_of_others_are_not_overwritten(tmp_path):
    (tmp_path / "captions.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="captions of other images"):
        demo.write(str(tmp_path), images=8)
    assert (tmp_path / "captions.jsonl").read_text() == "{}\n"


def test_remote_folder():
    assert demo.write("ram://demo", images=4) == 4
    with tf.io.gfile.GFile("ram://demo/images/train-00000.jpg", "rb") as file:
        assert Image.open(io.BytesIO(file.read())).size == (224, 224)


def test_splits(described):
    assert collections.Counter(split for split, _, _ in described) == {
        schema.TRAIN: 1150,
        schema.VAL: 150,
        schema.TEST: 200,
    }


def test_five_different_captions_of_5_to_16_words(described):
    for _, facts, pairs in described:
        texts = [text for _, text in pairs]
        assert len(set(texts)) == len({template for template, _ in pairs}) == 5, facts
        assert all(5 <= len(words(text)) <= 16 for text in texts), texts


def test_no_template_dominates(described):
    counts = collections.Counter(template for _, _, pairs in described for template, _ in pairs)
    assert counts.total() == 5 * IMAGES
    assert len(counts) >= 30
    assert max(counts.values()) <= 0.05 * counts.total()


def test_vocabulary(described):
    counts = collections.defaultdict(collections.Counter)
    for split, _, pairs in described:
        counts[split].update(word for _, text in pairs for word in words(text))
    assert 150 <= len(set().union(*counts.values())) <= 250
    known = {word for word, count in counts[schema.TRAIN].items() if count >= 3}
    for split in (schema.VAL, schema.TEST):
        assert set(counts[split]) <= set(counts[schema.TRAIN])
        covered = sum(count for word, count in counts[split].items() if word in known)
        assert covered >= 0.99 * counts[split].total()


def combinations(described, *splits):
    chosen = [facts for split, facts, _ in described if split in splits]
    colours = {(thing.kind, thing.colour) for facts in chosen for thing in facts.things}
    relations = {
        (facts.first.kind, facts.relation, facts.second.kind) for facts in chosen if facts.second
    }
    return colours, relations


def test_only_the_test_split_holds_what_training_does_not(described):
    seen_colours, seen_relations = combinations(described, schema.TRAIN, schema.VAL)
    colours, relations = combinations(described, schema.TEST)
    held_out = {(kind, facts.colours[-1]) for kind, facts in scene.KINDS.items()}
    assert colours - seen_colours == held_out
    assert len(relations - seen_relations) >= 40
    for split, facts, _ in described:
        if split != schema.TEST:
            assert not scene.unseen_colours(facts) and not scene.unseen_relation(facts)
    novel = [
        not combinations([row], schema.TEST)[0] <= seen_colours
        or not combinations([row], schema.TEST)[1] <= seen_relations
        for row in described
        if row[0] == schema.TEST
    ]
    assert sum(novel) >= 0.6 * len(novel)


def test_every_kind_and_colour_is_trained_on_by_itself(described):
    colours, _ = combinations(described, schema.TRAIN)
    assert {kind for kind, _ in colours} == set(scene.KINDS)
    assert {colour for _, colour in colours} == {c for k in scene.KINDS.values() for c in k.colours}


def test_captions_are_true(described):
    """No caption names a thing, colour, count or action that its scene does not have."""
    nouns = {
        kind: {
            form
            for forms in captions.WORDS["nouns"].get(kind, ((kind, f"{kind}s"),))
            for form in forms
        }
        for kind in scene.KINDS
    }
    colours = {colour for kind in scene.KINDS.values() for colour in kind.colours}
    where = captions.WORDS["where"]
    phrases = [captions.WORDS["places"], where["ground"], where["water"], captions.WORDS["lights"]]
    settings = sorted({p for table in phrases for row in table.values() for p in row}, key=len)
    for _, facts, pairs in described:
        for _, text in pairs:
            said = " ".join(words(text))
            for setting in reversed(settings):  # "on green grass" says nothing of a thing's colour
                said = said.replace(setting, "")
            said = set(said.split())
            there = set().union(*(nouns[thing.kind] for thing in facts.things))
            assert said & set().union(*nouns.values()) <= there, (facts, text)
            assert said & colours <= {thing.colour for thing in facts.things}, (facts, text)
            assert said & {"two", "three"} <= {captions.COUNTS.get(facts.first.count)}, text
            verbs = {
                form for thing in facts.things for form in captions.WORDS["verbs"][thing.action]
            }
            others = {form for forms in captions.WORDS["verbs"].values() for form in forms} - verbs
            assert not said & others, (facts, text)


def test_captions_leave_out_different_facts(described):
    """Of the five captions of a picture some leave out the place, the colour or the other thing."""
    sets = [[frozenset(re.findall(r"{(\w+)}", t)) for t, _ in pairs] for _, _, pairs in described]
    assert all(len(set(slots)) >= 3 for slots in sets)
    flat = [slots for row in sets for slots in row]
    assert 0.1 < np.mean([not any("beach" in slot for slot in slots) for slots in flat]) < 0.5
    assert 0.1 < np.mean([not any("red" in slot for slot in slots) for slots in flat]) < 0.5


def test_things_are_where_the_relation_says(described):
    checked = collections.Counter()
    for index, (_, facts, _) in enumerate(described):
        if facts.second:
            placed = draw._layout(facts, np.random.default_rng(index))
            *firsts, (_, second_x, second_y, scale) = sorted(
                placed, key=lambda item: item[0] is facts.second
            )
            for _, x, y, _ in firsts:
                if facts.relation == "left":
                    assert x < second_x
                elif facts.relation == "above":
                    assert y <= second_y - facts.second.extent[1] * scale
                else:
                    assert y < second_y
                    reach = (facts.first.extent[0] + facts.second.extent[0]) * scale / 2
                    assert abs(x - second_x) < reach
            checked[facts.relation] += 1
    assert min(checked.values()) > 50 and len(checked) == 3


@pytest.mark.parametrize("kind", scene.KINDS)
def test_every_pose_is_drawn(kind):
    """Each kind in each action and colour covers a good part of a place where it may be."""
    for action in set(scene.KINDS[kind].actions):
        place = "lake" if scene.ZONES.get(action) == scene.WATER else "park"
        empty = np.asarray(
            draw.paint_place(place, "sunny", np.random.default_rng(0)).reduce(2), int
        )
        pictures = []
        for colour in scene.KINDS[kind].colours:
            facts = scene.Scene(place, "sunny", scene.Thing(kind, colour, "medium", action))
            pictures.append(np.asarray(draw.render(facts, np.random.default_rng(0)), int))
            changed = np.abs(pictures[-1] - empty).sum(-1) > 30
            assert 0.02 < changed.mean() < 0.5
        for picture, other in itertools.pairwise(pictures):
            assert (np.abs(picture - other).sum(-1) > 60).mean() > 0.004

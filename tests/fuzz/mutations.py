"""Damages valid files: by their bytes, and by the structure that their names tell.

Everything is a function of a `random.Random`, so that an input can be made again from its number.
"""

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

LONGEST = 1 << 16  # bytes of an input
_DEEPEST = 500  # brackets of a document that is changed by its structure, which takes recursion
_INTEGERS = [0, 1, 127, 128, 255, 256, 32767, 65535, 1 << 31, (1 << 31) - 1, (1 << 32) - 1]
_INTEGERS += [1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
_NUMBERS = [
    "0",
    "-1",
    "-0",
    "1e999",
    "-1e-999",
    "NaN",
    "Infinity",
    "1.5",
    "9" * 5000,
    "1e5",
    "0x7f",
]
_NUMBERS += [str(n) for n in _INTEGERS] + [str(-n) for n in _INTEGERS]
_TEXTS = ["", "\0", "\ufeff", "\u2028", "\x85", "\x1b[2J", "e\u0301", "\u0345", "\u202e", "ß" * 40]
_TEXTS += [
    "\U0001f600",
    "İıſςﬁＡ²",
    "\ud800",
    "'" * 30,
    "../../x",
    "/",
    "a" * 3000,
    "ram://x",
    "%s{0}",
]
_FRAGMENTS = [b"\0", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\r\n", b"\r", b"\n\n", b"\t", b"#0\t"]
_FRAGMENTS += [b'"', b"\\", b"\\ud800", b"{", b"}", b"[]", b",", b":", b"null", b"true", b"(", b"'"]
_FRAGMENTS += [
    b"[" * 30_000,
    b'{"a":' * 10_000,
    b"(" * 300,
    b"<" * 50,
    b"\xff\xd8\xff\xda",
    b"!\xff",
]
_FRAGMENTS += [text.encode("utf-8", "surrogatepass") for text in _TEXTS]
_FRAGMENTS += [number.encode() for number in _NUMBERS]
_VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e999,
    float("nan"),
    1 << 40,
    10**30,
    [],
    {},
    [[]],
    [None],
]
_VALUES += [*_TEXTS, ["a"], {"a": 1}, {"id": 1}]


def mutate(seeds: Sequence[tuple[str, bytes]], rng: random.Random) -> tuple[str, bytes]:
    """One of the seeds, each a file's name and its content, with some damage."""
    name, content = rng.choice(seeds)
    structure = _STRUCTURES.get(name.rpartition(".")[2])
    for _ in range(min(1 + int(rng.expovariate(0.7)), 8)):
        if structure and rng.random() < 0.6:
            content = structure(content, rng)
        else:
            content = rng.choice(_CHANGES)(content, rng, seeds)
    return name, content[:LONGEST]


# Bytes


def _span(content: bytes, rng: random.Random, longest: int = 64) -> tuple[int, int]:
    begin = rng.randint(0, len(content))
    return begin, min(len(content), begin + rng.randint(0, longest))


def _flip(content: bytes, rng: random.Random, _) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 8]) if content else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _truncate(content: bytes, rng: random.Random, _) -> bytes:
    return content[: rng.randint(0, len(content))]


def _delete(content: bytes, rng: random.Random, _) -> bytes:
    begin, end = _span(content, rng)
    return content[:begin] + content[end:]


def _repeat(content: bytes, rng: random.Random, _) -> bytes:
    begin, end = _span(content, rng)
    return content[:begin] + content[begin:end] * rng.choice([2, 3, 10, 300]) + content[end:]


def _splice(content: bytes, rng: random.Random, seeds: Sequence[tuple[str, bytes]]) -> bytes:
    other = rng.choice(seeds)[1]
    begin, end = _span(other, rng, 400)
    at, rest = _span(content, rng)
    return content[:at] + other[begin:end] + content[rng.choice([at, rest]) :]


def _insert(content: bytes, rng: random.Random, _) -> bytes:
    begin, end = _span(content, rng, 8)
    return content[:begin] + rng.choice(_FRAGMENTS) + content[rng.choice([begin, end]) :]


def _integer(content: bytes, rng: random.Random, _) -> bytes:
    """Overwrites some bytes by a number at the edge of its type."""
    form = rng.choice("<>") + rng.choice("BHIQ")
    size = struct.calcsize(form)
    number = struct.pack(form, rng.choice(_INTEGERS) % (1 << 8 * size))
    begin = rng.randint(0, max(0, len(content) - size))
    return content[:begin] + number + content[begin + size :]


def _number(content: bytes, rng: random.Random, _) -> bytes:
    """Replaces a number in text."""
    begin = rng.randint(0, len(content))
    while begin < len(content) and not content[begin : begin + 1].isdigit():
        begin += 1
    end = begin
    while end < len(content) and content[end : end + 1].isdigit():
        end += 1
    return content[:begin] + rng.choice(_NUMBERS).encode() + content[end:]


_CHANGES = (_flip, _flip, _truncate, _delete, _repeat, _splice, _insert, _insert, _integer, _number)


# Structure


def _json(content: bytes, rng: random.Random) -> bytes:
    """Changes a value, a key or the place of something in a JSON document."""
    if rng.random() < 0.02:  # about as deep as can be read
        depth = rng.randint(850, 1000)
        return b"[" * depth + content + b"]" * depth
    if content.count(b"[") + content.count(b"{") > _DEEPEST:
        return content
    try:
        root = [json.loads(content)]
    except ValueError:
        return content
    places = _places(root)
    holder, key = rng.choice(places)
    match rng.randrange(6):
        case 0 if isinstance(holder, dict):
            holder[rng.choice([*_TEXTS, *holder])] = holder.pop(key)
        case 1:
            del holder[key]
        case 2:
            other, name = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[name]))
        case 3 if isinstance(holder, list):
            holder[key:key] = [holder[key]] * rng.choice([1, 2, 100])
        case 4:
            for _ in range(rng.choice([1, 3, 300])):
                holder[key] = [holder[key]]
        case _:
            holder[key] = rng.choice(_VALUES)
    text = json.dumps(root[0] if root else None, ensure_ascii=rng.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def _places(root: list) -> list[tuple[Any, Any]]:
    """Every place of a document: what holds it, and its key or index there."""
    places, inside = [], [root]
    while inside and len(places) < 2000:
        holder = inside.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            places.append((holder, key))
            if isinstance(holder[key], dict | list):
                inside.append(holder[key])
    return places


def _json_line(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = _json(lines[at], rng)
    return b"\n".join(lines)


def _wire(content: bytes, rng: random.Random) -> bytes:
    """Changes a field of a protocol buffer, of any depth, and keeps the lengths around it right."""
    fields = _fields(content)
    if not fields:
        return rng.choice(_CHANGES)(content, rng, [("", content)])
    begin, value, end = rng.choice(fields)
    match rng.randrange(4):
        case 0:
            field = content[begin:end] * rng.choice([0, 2, 2, 50])
        case 1:
            number, kind = rng.randrange(1, 20), rng.choice([0, 1, 2, 5])
            field = bytes([number << 3 | kind if number < 16 else kind]) + content[value:end]
        case _ if content[begin] & 7 == 2:
            length = value
            while length > begin and len(_varint(end - value)) != value - length:
                length -= 1
            inner = _wire(content[value:end], rng)
            field = content[begin:length] + _varint(len(inner)) + inner
        case _:
            field = content[begin:value] + _varint(rng.choice(_INTEGERS) % (1 << 64))
    return content[:begin] + field + content[end:]


def _fields(content: bytes) -> list[tuple[int, int, int]]:
    """Where each field, its value and the next field begin; nothing if it is no message."""
    fields, at = [], 0
    while at < len(content):
        begin = at
        tag, at = _read_varint(content, at)
        value = at
        match tag & 7:
            case 0:
                _, at = _read_varint(content, at)
            case 1:
                at += 8
            case 2:
                length, value = _read_varint(content, at)
                at = value + length
            case 5:
                at += 4
            case _:
                return []
        if at > len(content) or not tag >> 3:
            return []
        fields.append((begin, value, at))
    return fields


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content) and shift < 70:
        value |= (content[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 128:
            break
    return value, at


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


_STRUCTURES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "json": _json,
    "jsonl": _json_line,
    "pb": _wire,
}

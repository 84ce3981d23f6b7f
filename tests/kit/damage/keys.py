"""Damages of hashes and strings, and of keys of any type."""

import random

from kit.damage.target import Damage, Target, flipped


def _a_field_changed(target: Target) -> str:
    name = target.draw.choice(sorted(target.nodes[0].hkeys(target.key)))
    for node in target.nodes:
        value = node.hget(target.key, name) or b""
        node.hset(target.key, name, flipped(random.Random(target.draw.random()), value))
    return f"field {name[:40]!r} changed"


def _a_field_gone(target: Target) -> str:
    name = target.draw.choice(sorted(target.nodes[0].hkeys(target.key)))
    for node in target.nodes:
        node.hdel(target.key, name)
    return f"field {name[:40]!r} gone"


def _a_field_more(target: Target) -> str:
    name = target.draw.choice([b"nonsense", b"3-9", b"7", b"9999999-1"])
    for node in target.nodes:
        node.hset(target.key, name, target.draw.choice([b"nonsense", b"3-9", b"9999999-1"]))
    return f"field {name!r} more"


def _two_fields_swapped(target: Target) -> str:
    names = sorted(target.nodes[0].hkeys(target.key))
    one, two = target.draw.choice(names), target.draw.choice(names)
    for node in target.nodes:
        values = node.hmget(target.key, one, two)
        node.hset(target.key, mapping={one: values[1] or b"", two: values[0] or b""})
    return f"fields {one[:40]!r} and {two[:40]!r} swapped"


def _another_value(target: Target) -> str:
    value = target.draw.choice([b"nonsense", b"0-1", b"9999999-1", b"", b"\xff\xfe", b"1-1"])
    for node in target.nodes:
        node.set(target.key, value)
    return f"value {value!r}"


def _gone(target: Target) -> str:
    for node in target.nodes:
        node.delete(target.key)
    return "all"


def _another_kind(target: Target) -> str:
    for node in target.nodes:
        node.delete(target.key)
        target.draw.choice([node.sadd, node.rpush])(target.key, "nonsense")
    return "another kind"


def _set_to_expire(target: Target) -> str:
    for node in target.nodes:
        node.expire(target.key, 86_400)
    return "a time to live"


def _of_another_key(target: Target) -> str:
    other = target.draw.choice(target.others)
    for node in target.nodes:
        if other != target.key and node.exists(other):
            node.copy(other, target.key, replace=True)
    return f"what {other.decode()} holds"


ANY: tuple[Damage, ...] = (_gone, _another_kind, _set_to_expire)
HASHES: tuple[Damage, ...] = (
    _a_field_changed,
    _a_field_changed,
    _a_field_gone,
    _a_field_more,
    _two_fields_swapped,
    _of_another_key,
)
STRINGS: tuple[Damage, ...] = (_another_value, _of_another_key)

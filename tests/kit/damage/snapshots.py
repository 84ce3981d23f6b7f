"""Damages of stored snapshots: parts that are cut, exchanged, doubled, of another place or another log."""

from typing import Any

from kit.damage.target import Damage, Target
from muster_core.log.snapshot import part_hash


def _a_part_cut(target: Target) -> str:
    """Ends a part early, with or without a hash that fits."""
    fits, share = target.draw.random() < 0.5, target.draw.random()
    for node in target.nodes:
        number = _numbers(node, target.key)[-1:]
        for name in number:
            part = node.hget(target.key, name)
            _store(node, target.key, {name: part[: int(len(part) * share)]}, fits=fits)
    return f"its last part cut{', with its hash' if fits else ''}"


def _two_parts_exchanged(target: Target) -> str:
    """Lets two parts be in each other's place, with or without hashes that fit."""
    fits = target.draw.random() < 0.5
    for node in target.nodes:
        numbers = _numbers(node, target.key)
        if len(numbers) > 1:
            one, other = numbers[0], numbers[-1]
            parts = node.hmget(target.key, one, other)
            _store(node, target.key, {one: parts[1], other: parts[0]}, fits=fits)
    return f"its first and last part exchanged{', with their hashes' if fits else ''}"


def _a_part_less(target: Target) -> str:
    """Takes the last part out, with its hash."""
    for node in target.nodes:
        numbers = _numbers(node, target.key)
        node.hdel(target.key, *numbers[-1:])
        _store(node, target.key, {}, fits=True)
    return "its last part, with its hash"


def _a_part_more(target: Target) -> str:
    """Stores a part again after the last one, with its hash."""
    for node in target.nodes:
        numbers = _numbers(node, target.key)
        if numbers:
            again = str(int(numbers[-1]) + 1).encode()
            _store(node, target.key, {again: node.hget(target.key, numbers[-1])}, fits=True)
    return "its last part twice, with its hash"


def _elsewhere(target: Target) -> str:
    """Names another place as its end."""
    prefix, _, upto = target.key.rpartition(b":")
    epoch, _, offset = upto.partition(b"-")
    moved = target.draw.choice([b"%d-%b" % (int(epoch) + 1, offset), b"%b-%d" % (epoch, int(offset) + 1)])
    listed = target.draw.random() < 0.5
    for node in target.nodes:
        if node.exists(target.key):
            node.rename(target.key, prefix + b":" + moved)
        marker = node.hget(target.base + b":snapshots", upto)
        if listed and marker is not None:
            node.hdel(target.base + b":snapshots", upto)
            node.hset(target.base + b":snapshots", moved, marker)
    return f"stored as up to {moved.decode()}{', and listed so' if listed else ''}"


def _numbers(node: Any, key: bytes) -> list[bytes]:
    return sorted((name for name in node.hkeys(key) if name.isdigit()), key=int)


def _store(node: Any, key: bytes, parts: dict[bytes, bytes], *, fits: bool) -> None:
    """Stores parts; their list of hashes is made right, if it is to fit."""
    if parts:
        node.hset(key, mapping=parts)
    if fits:
        stored = node.hgetall(key)
        hashes = b"".join(part_hash(stored[number]) for number in _numbers(node, key))
        node.hset(key, "hashes", hashes)


SNAPSHOTS: tuple[Damage, ...] = (
    _a_part_cut,
    _two_parts_exchanged,
    _a_part_less,
    _a_part_more,
    _elsewhere,
)

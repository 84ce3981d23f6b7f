"""Damages of whole nodes and of whole logs: data that is in the place of other data."""

from typing import Any

from kit.damage.target import Damage, Target


def _two_nodes_exchanged(target: Target) -> str:
    """Lets a node hold what another one held: all, or all but what says which node it is."""
    one, other = target.draw.sample(list(target.every), 2)
    left = target.draw.choice([b"muster:node", b""])
    ours, theirs = _held(one, left), _held(other, left)
    _put(one, ours, theirs)
    _put(other, theirs, ours)
    return f"two nodes exchanged{' but for their names' if left else ''}"


def _a_node_over_another(target: Target) -> str:
    """Lets a node hold what another one holds, too."""
    one, other = target.draw.sample(list(target.every), 2)
    left = target.draw.choice([b"muster:node", b""])
    _put(other, _held(other, left), _held(one, left))
    return f"a node copied over another{' but for its name' if left else ''}"


def _a_node_wiped(target: Target) -> str:
    """Takes all from some nodes, with what says which they are or without it."""
    left = target.draw.choice([b"muster:node", b""])
    for node in target.nodes:
        _put(node, _held(node, left), {})
    return f"nodes wiped{' but for their names' if left else ''}"


def _logs_exchanged(target: Target) -> str:
    """Lets two logs of a node be in each other's place, with all that is said of them or as streams alone."""
    one, other = target.draw.sample(target.bases, 2)
    alone = target.draw.random() < 0.5
    for node in target.nodes:
        ours, theirs = _of_log(node, one, alone=alone), _of_log(node, other, alone=alone)
        _put(node, {one + name for name in ours}, {one + name: dump for name, dump in theirs.items()})
        _put(node, {other + name for name in theirs}, {other + name: dump for name, dump in ours.items()})
    return f"{one.decode()} and {other.decode()} exchanged{', the entries alone' if alone else ''}"


def _a_log_gone(target: Target) -> str:
    """Takes a log with all that is said of it."""
    base = target.draw.choice(target.bases)
    for node in target.nodes:
        _put(node, {base + name for name in _of_log(node, base)}, {})
    return f"all of {base.decode()}"


def _held(node: Any, left: bytes) -> dict[bytes, bytes]:
    return {key: node.dump(key) for key in node.keys("muster:*") if key != left}


def _of_log(node: Any, base: bytes, *, alone: bool = False) -> dict[bytes, bytes]:
    """The keys of a log by what follows its base."""
    keys = [key for key in node.keys("muster:*") if key.startswith(base + b":")]
    return {key[len(base) :]: node.dump(key) for key in keys if not alone or key == base + b":log"}


def _put(node: Any, gone: "set[bytes] | dict[bytes, bytes]", dumps: dict[bytes, bytes]) -> None:
    for key in gone:
        node.delete(key)
    for key, dump in dumps.items():
        node.restore(key, 0, dump, replace=True)


NODES: tuple[Damage, ...] = (
    _two_nodes_exchanged,
    _a_node_over_another,
    _a_node_wiped,
    _logs_exchanged,
    _a_log_gone,
)

"""Damages of streams: entries that are gone, changed, moved, written twice or of another log."""

from kit.damage.target import Damage, Entry, Target, flipped, place
from muster_core.log.chain import chain_hash


def _a_bit(target: Target) -> str:
    entries = target.entries
    index, name = target.draw.randrange(len(entries)), target.draw.choice([b"r", b"n", b"h"])
    fields = entries[index][1]
    fields[name] = flipped(target.draw, fields.get(name, b""))
    target.rewrite(entries)
    return f"a bit of {name.decode()} of {entries[index][0].decode()}"


def _other_fields(target: Target) -> str:
    entries = target.entries
    index = target.draw.randrange(len(entries))
    id_, fields = entries[index]
    pairs = list(fields.items())
    how = target.draw.choice(["renamed", "more", "fewer", "moved"])
    if how == "renamed":
        changed = target.draw.randrange(len(pairs))
        pairs[changed] = (flipped(target.draw, pairs[changed][0]), pairs[changed][1])
    elif how == "more":
        pairs.insert(target.draw.randrange(len(pairs) + 1), (b"x", b"more"))
    elif how == "fewer":
        pairs.pop(target.draw.randrange(len(pairs)))
    else:
        pairs.append(pairs.pop(target.draw.randrange(len(pairs) - 1)))
    entries[index] = (id_, dict(pairs))
    target.rewrite(entries)
    return f"fields {how} of {id_.decode()}"


def _entries_gone(target: Target) -> str:
    entries = target.entries
    first = target.draw.randrange(len(entries))
    last = min(first + target.draw.choice([1, 1, 3, 20]), len(entries))
    target.rewrite(entries[:first] + entries[last:])
    return f"entries {first} to {last}"


def _the_beginning_gone(target: Target) -> str:
    entries = target.entries
    left = target.draw.randrange(len(entries))
    target.rewrite(entries[left:])
    return f"the first {left} entries"


def _the_end_gone(target: Target) -> str:
    entries = target.entries
    left = target.draw.randrange(len(entries))
    target.rewrite(entries[:left])
    return f"all but the first {left} entries"


def _two_swapped(target: Target) -> str:
    entries = target.entries
    index = target.draw.randrange(max(len(entries) - 1, 1))
    if len(entries) > 1:
        (one, a), (two, b) = entries[index : index + 2]
        entries[index : index + 2] = [(one, b), (two, a)]
    target.rewrite(entries)
    return f"the contents of entries {index} and {index + 1}"


def _doubled(target: Target) -> str:
    """Writes entries again after one, or after the last; those after them move on."""
    entries = target.entries
    first = target.draw.randrange(len(entries))
    again = entries[first : first + target.draw.choice([1, 1, 3])]
    at = target.draw.choice([first + len(again), len(entries)])
    contents = [fields for _, fields in entries[:at] + again + entries[at:]]
    last = place(entries[-1][0])
    ids = [id_ for id_, _ in entries] + [last.after(n).stream_id.encode() for n in range(1, len(again) + 1)]
    target.rewrite(list(zip(ids, contents, strict=True)))
    return f"entries {first} to {first + len(again)} again at {at}"


def _forged(target: Target) -> str:
    """Replaces the content of an entry by that of another one and makes the chain whole again."""
    entries = target.entries
    index, other = (target.draw.randrange(len(entries)) for _ in range(2))
    entries[index][1][b"r"] = target.draw.choice([entries[other][1][b"r"], b"", entries[index][1][b"r"][:-1]])
    rechain(entries, index)
    target.rewrite(entries)
    return f"entry {index} forged after {other}, with a chain"


def rechain(entries: list[Entry], first: int) -> None:
    """Makes the chain of hashes whole again from an entry on."""
    before = entries[first - 1][1][b"h"] if first else bytes(32)
    for id_, fields in entries[first:]:
        before = fields[b"h"] = chain_hash(before, place(id_), fields[b"n"], fields[b"r"])


def _of_another_log(target: Target) -> str:
    others = [key for key in target.others if key != target.key]
    other = target.draw.choice(others)
    for node in target.nodes:
        node.copy(other, target.key, replace=True)
    return f"the entries of {other.decode()}"


def _what_the_server_keeps(target: Target) -> str:
    last = target.entries[-1][0]
    for node in target.nodes:
        node.xgroup_create(target.key, "readers", "0")
        node.execute_command("XSETID", target.key, place(last).after(1_000).stream_id)
    return "a group of readers, and another last id"


STREAMS: tuple[Damage, ...] = (
    _a_bit,
    _a_bit,
    _a_bit,
    _other_fields,
    _entries_gone,
    _the_beginning_gone,
    _the_end_gone,
    _two_swapped,
    _doubled,
    _forged,
    _forged,
    _of_another_log,
    _what_the_server_keeps,
)

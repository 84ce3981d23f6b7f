"""Damages of streams: entries that are gone, changed, moved, written twice or of another log."""

import hashlib

from kit.damage.target import Damage, Entry, Target, flipped, place
from muster_core.log.chain import HEAD, chain_hash
from muster_core.position import Position


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


def _hashed_otherwise(target: Target) -> str:
    """Hashes entries as nobody does from one on: by another algorithm, without the nonce or the place."""
    entries = target.entries
    first = target.draw.randrange(len(entries))
    how = target.draw.choice(["sha3", "blake2", "sha512", "no nonce", "no place", "not chained"])
    before = entries[first - 1][1].get(b"h", b"") if first else bytes(32)
    for id_, fields in entries[first:]:
        at, nonce, record = HEAD.pack(*place(id_)), fields.get(b"n", b""), fields.get(b"r", b"")
        parts = {"no nonce": (before, at, record), "no place": (before, nonce, record)}
        parts["not chained"] = (at, nonce, record)
        data = b"".join(parts.get(how, (before, at, nonce, record)))
        named = {"sha3": "sha3_256", "blake2": "blake2s", "sha512": "sha512"}.get(how, "sha256")
        before = fields[b"h"] = hashlib.new(named, data).digest()[:32]
    target.rewrite(entries)
    return f"hashes from {entries[first][0].decode()} on made otherwise: {how}"


def _another_epoch(target: Target) -> str:
    """Moves entries from one on to a later epoch, with or without hashes that fit."""
    entries = target.entries
    first, chained = target.draw.randrange(len(entries)), target.draw.random() < 0.5
    more = target.draw.choice([1, 1, 5, 1_000])
    moved = [
        (Position(place(id_).epoch + more, place(id_).offset), fields) for id_, fields in entries[first:]
    ]
    entries[first:] = [(at.stream_id.encode(), fields) for at, fields in moved]
    if chained:
        rechain(entries, first)
    target.rewrite(entries)
    return f"entries from {first} on moved {more} epochs on{', with a chain' if chained else ''}"


def _ids_moved(target: Target) -> str:
    """Leaves out an offset from an entry on, with or without hashes that fit."""
    entries = target.entries
    first, chained = target.draw.randrange(len(entries)), target.draw.random() < 0.5
    entries[first:] = [(place(id_).after(1).stream_id.encode(), fields) for id_, fields in entries[first:]]
    if chained:
        rechain(entries, first)
    target.rewrite(entries)
    return f"an offset left out before entry {first}{', with a chain' if chained else ''}"


def _one_more(target: Target) -> str:
    """Adds an entry at the end: nothing, nonsense, a record again, or a very long one; chained or not."""
    entries = target.entries
    last, fields = entries[-1]
    record = target.draw.choice([b"", b"\xff\xff", fields.get(b"r", b""), bytes(1 << 20)])
    more = (place(last).after(1).stream_id.encode(), {b"r": record, b"n": bytes(16), b"h": bytes(32)})
    entries.append(more)
    chained = target.draw.random() < 0.5
    if chained:
        rechain(entries, len(entries) - 1)
    target.rewrite(entries)
    return f"an entry of {len(record)} bytes more{', with a chain' if chained else ''}"


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
    _hashed_otherwise,
    _another_epoch,
    _ids_moved,
    _one_more,
    _what_the_server_keeps,
)

"""Forged records that do not belong where they are: of another log, one more, with fields of no version."""

from kit.damage.forging import make_right
from kit.damage.target import Damage, Target, place

_UNKNOWN_FIELD = b"\xfa\x7f\x05later"
"""Field 2047, as a later version may have it."""


def a_record_of_another_log(target: Target) -> str:
    """Lets an entry say what one of another log says, the catalog's or a shard's."""
    entries = target.entries
    key, record = _any_record(target)
    index = target.draw.randrange(len(entries))
    entries[index][1][b"r"] = record
    make_right(target, entries, index)
    target.rewrite(entries)
    return f"what an entry of {key.decode()} says at {entries[index][0].decode()}, with all hashes"


def a_record_more(target: Target) -> str:
    """Puts a record between two, of this log, of another one or of no known kind, and moves the others on."""
    entries = target.entries
    _, record = _any_record(target)
    record = target.draw.choice(
        [record, entries[target.draw.randrange(len(entries))][1][b"r"], _UNKNOWN_FIELD]
    )
    index = target.draw.randrange(1, len(entries)) if len(entries) > 1 else 0
    end = place(entries[-1][0]).after(1)
    ids = [*(id_ for id_, _ in entries), end.stream_id.encode()]
    contents = [fields for _, fields in entries]
    nonce = target.draw.randbytes(16)
    contents.insert(index, {b"r": record, b"n": nonce, b"h": b""})
    moved = list(zip(ids, contents, strict=True))
    make_right(target, moved, index)
    target.rewrite(moved)
    for node in target.nodes:
        node.set(target.base + b":acknowledged", end.stream_id)
    return f"a record of {len(record)} bytes more at {ids[index].decode()}, the others moved on"


def a_field_of_a_later_version(target: Target) -> str:
    """Gives a record a field that this version does not know."""
    entries = target.entries
    index = target.draw.randrange(len(entries))
    entries[index][1][b"r"] += _UNKNOWN_FIELD
    make_right(target, entries, index)
    target.rewrite(entries)
    return f"an unknown field in {entries[index][0].decode()}, with all hashes"


def a_nonce_again(target: Target) -> str:
    """Gives an entry the nonce of another one, or one of its own."""
    entries = target.entries
    index, other = (target.draw.randrange(len(entries)) for _ in range(2))
    entries[index][1][b"n"] = target.draw.choice(
        [entries[other][1][b"n"], target.draw.randbytes(16), bytes(16)]
    )
    make_right(target, entries, index)
    target.rewrite(entries)
    return f"another nonce in {entries[index][0].decode()}, with all hashes"


def _any_record(target: Target) -> tuple[bytes, bytes]:
    """A record of a log, with the key of that."""
    key = target.draw.choice(target.others or [target.key])
    entries = list(target.nodes[0].xrange(key))
    return key, target.draw.choice(entries)[1][b"r"] if entries else b""


STRANGE: tuple[Damage, ...] = (
    *(a_record_of_another_log,) * 2,
    *(a_record_more,) * 2,
    a_field_of_a_later_version,
    a_nonce_again,
)

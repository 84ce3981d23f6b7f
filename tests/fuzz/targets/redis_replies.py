"""Any answers of Redis: each becomes a value, and what stands in the place of a log or a table harms nobody.

An answer that no script of ours gives is a problem of that node. Entries that are none are `Malformed` or
damaged; rows of tables that are none are passed over, and what is taken has the types that it is used with.
"""

import json
import logging
from typing import Any

import structlog
from muster_core.log.page import Page
from muster_core.position import Position
from muster_metadata.cluster.leases import LIVE, merged, newest
from muster_metadata.cluster.owners import OwnerRow, highest, owners
from muster_metadata.cluster.tables import lease_rows, owner_rows
from muster_metadata.log.runs import Malformed, runs_of
from muster_metadata.nodes.configuration import Introduction, agreed_configuration
from muster_metadata.nodes.connection import all_written, fields
from muster_metadata.nodes.keys import Identity, replaced_in
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.reply import NodeReply, Status, plain
from redis.exceptions import BusyLoadingError, NoScriptError, OutOfMemoryError, ResponseError

from fuzz.draw import Draw
from fuzz.target import Broken

LONGEST_BYTES = 2_048
PLACES = ("redis://a:1", "redis://b:1", "redis://c:1")

_ERRORS = (ResponseError, OutOfMemoryError, NoScriptError, BusyLoadingError)
_WORDS = (
    *(
        b"",
        b"0",
        b"1-1",
        b"2-5",
        b"x",
        b"-",
        b"1-",
        b"\xff\xfe",
        b"foreign",
        b"empty",
        b"remains",
        b"9" * 5_000,
    ),
    *(b"c/1/1/3/1", b"c 4 1 3", b"yes", b"run_id:a\r\nuptime_in_seconds:x", b"aof_enabled:1", b"redis://a:1"),
)
_JSON: tuple[Any, ...] = (
    *(0, 1, -1, 2**70, 1.5, float("inf"), float("nan"), True, None, "", "x", "7", "\ud800", [], {}),
    *([[1, 2]], [["1", 2]], [[1]], [1, 2], ["a"], {"a": 1}, "9" * 5_000),
)
_LEASE = {
    "node_id": "n",
    "session": "s",
    "run": 1,
    "counter": 2,
    "host": "h",
    "port": 1,
    "version": "v",
    "draining": False,
    "released": False,
    "dead": False,
    "serving": [[0, 1]],
    "features": ["a"],
    "lease_ms": 5,
    "catalog": 3,
    "catalog_epoch": 1,
}
_OWNER = {"epoch": 1, "node_id": "n", "session": "s"}


def play(data: bytes) -> None:
    source = Draw(data)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    parts = (_answers, _entries, _leases, _owners, _introductions, _pages)
    while not source.over:
        source.choice(parts)(source)


def _answers(source: Draw) -> None:
    node = Node(1, PLACES[0], 500)
    node.belongs_to("c", 4, 3, addresses=("a:1", "b:1", "c:1"))
    raw = _raw(source, 0)
    for read in (node._read, node._wrote, plain):
        reply = read(raw)
        if not isinstance(reply, NodeReply):
            raise Broken(f"no reply of {raw!r}")
        _ = reply.silent, reply.done, str(reply.problem)
    info = _bytes(source)
    fields(info)
    all_written(info)


def _entries(source: Draw) -> None:
    rows: list[Any] = []
    place = Position(source.randrange(3), source.randrange(5))
    for _ in range(source.randrange(1, 6)):
        place = place.after(1) if source.random() < 0.9 else Position(place.epoch + 1, place.offset + 1)
        row = [b"record", _bytes(source), b"nonce", bytes(16), b"hash", bytes(32)]
        if source.random() < 0.2:
            row[source.randrange(6)] = _bytes(source)
        if source.random() < 0.1:
            del row[source.randrange(1, 6) :]
        rows.append([place.stream_id.encode(), None if source.random() < 0.05 else row])
    try:
        runs = runs_of(rows)
    except Malformed:
        return
    entries = [entry for run in runs for entry in run.entries()]
    if [entry.position.stream_id.encode() for entry in entries] != [row[0] for row in rows]:
        raise Broken("entries got lost, or others came")
    if [entry.record for entry in entries] != [row[1][1] for row in rows]:
        raise Broken("records are others")
    limit = source.randrange(1, 100)
    for run in runs:
        cut = [entry for part in run.cut(limit) for entry in part.entries()]
        if cut != list(run.entries()):
            raise Broken("a run that is cut is another one")


def _leases(source: Draw) -> None:
    tables = [lease_rows(_table(source, _LEASE)) for _ in range(3)]
    for table in tables:
        for row in table.values():
            if lease_rows((b"n", row.to_json().encode())) != {"n": row}:
                raise Broken(f"a row is read as another one: {row}")
    newest(tables)
    rows = merged(tables, 2)
    claims = highest([{}])
    for one in owners(2, claims, [(row, LIVE) for row in rows.values()]):
        one.SerializeToString()


def _owners(source: Draw) -> None:
    tables = [owner_rows(_table(source, _OWNER, b"0")) for _ in range(3)]
    best = highest(tables)
    for row in best.values():
        if OwnerRow.from_json(row.to_json().encode()) != row:
            raise Broken(f"a row is read as another one: {row}")
    for one in owners(3, best, []):
        one.SerializeToString()


def _introductions(source: Draw) -> None:
    said = []
    for _ in PLACES:
        text = source.choice((_bytes(source).decode("utf-8", "replace"), str(_identity(source))))
        replaced_in(text)
        addresses = ("a:1", "b:1", "c:1")[: source.randrange(4)]
        said.append(Introduction(text, 0, addresses, source.choice("abc")) if source.random() < 0.9 else None)
    agreed_configuration(("a:1", "b:1", "c:1"), said)


def _identity(source: Draw) -> Identity:
    return Identity("c", source.randrange(3), source.randrange(4), source.choice((1, 3)), source.randrange(3))


def _pages(source: Draw) -> None:
    ids = [f"{source.randrange(2)}-{source.randrange(12)}".encode() for _ in range(source.randrange(5))]
    columns = [[b"x"] * len(ids)] * 3
    page = Page.of_stream(ids, *columns)
    if [page.position(index).stream_id.encode() for index in range(len(page))] != ids:
        raise Broken("a page has other places")
    parts = [entry for part in page.dense_parts() for entry in part.entries()]
    if ids and parts != list(page.entries()):
        raise Broken("the dense parts of a page are another one")


def _table(source: Draw, row: dict[str, Any], name: bytes = b"n") -> list[bytes]:
    flat: list[bytes] = []
    for _ in range(source.randrange(3)):
        flat.append(source.choice((name, name, b"1", b"-1", _bytes(source))))
        flat.append(_bytes(source) if source.random() < 0.2 else _json(source, row))
    return flat


def _json(source: Draw, row: dict[str, Any]) -> bytes:
    changed = dict(row)
    for _ in range(source.choice((0, 1, 1, 2))):
        name = source.choice(sorted(row))
        if source.random() < 0.2:
            changed.pop(name, None)
        else:
            changed[name] = source.choice(_JSON)
    text = json.dumps(changed).encode()
    if source.random() < 0.05:
        return b"[" * 2_000 * source.randrange(60)
    return text


def _raw(source: Draw, depth: int) -> Any:
    what = source.randrange(8)
    if what == 0:
        return None
    if what == 1:
        return source.randrange(-5, 2**20)
    if what == 2:
        text = source.choice(("OOM", "MISCONF", "BUSY x", "READONLY", "DAMAGED", "WRONGTYPE", "NOAUTH", ""))
        return source.choice(_ERRORS)(text)
    if what < 5 or depth > 3:
        return _bytes(source)
    values = [_raw(source, depth + 1) for _ in range(source.randrange(4))]
    if what > 5:
        return [source.choice(list(Status)).value.encode(), *values]
    return values


def _bytes(source: Draw) -> bytes:
    return source.choice(_WORDS) if source.random() < 0.6 else source.take(source.randrange(20))

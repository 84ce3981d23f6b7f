"""What a repair writes to a node at a time, on real nodes and of a source that is played."""

import asyncio
import secrets
from pathlib import Path
from typing import Any, cast

import pytest
from kit.metadata.metadata_instances import Writer, metadata_cluster, records
from kit.waiting import until
from muster_core.position import GENESIS, Position
from muster_metadata.log.repairs import sources
from muster_metadata.log.repairs.sources import Sources
from muster_metadata.nodes.entries import LogEnd, NodeEntry, chain
from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import LOST, NodeReply, Status
from muster_protos.muster.internal.v1 import metadata_pb2

BEFORE = LogEnd(GENESIS, secrets.token_bytes(32))


@pytest.mark.cluster
async def test_a_claim_never_adopts_a_part_of_what_was_stored_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-70: its owner dies with it on one node; the next claimant and that node while it is copied."""
    parts = [b"w:part %d" % number for number in range(600)]
    async with metadata_cluster(tmp_path, 3) as cluster:
        old, new, last = (Writer(0, f"c-{number}") for number in range(3))
        await old.own(cluster[0])
        await old.append(cluster[0], b"w:before")
        await until(lambda: cluster.level(0), "level before")
        for index in (0, 1):
            await cluster.nodes[index].kill()
        sent = await old.send(cluster[0], old.batch(*parts))
        assert sent.outcome == metadata_pb2.LOG_OUTCOME_UNKNOWN, "it is on node 3 alone"
        with monkeypatch.context() as patch:
            repair, written = Node.repair, list[Answer]()

            def once(node: Node, *arguments: Any) -> Answer:
                if any(not answer.done() or is_well(answer) for answer in written):
                    silent: Answer = asyncio.get_running_loop().create_future()
                    silent.set_result(LOST)
                    return silent
                written.append(repair(node, *arguments))
                return written[-1]

            patch.setattr(Node, "repair", once)
            await cluster.nodes[0].start()

            async def begun() -> bool:
                await new.claim(cluster[0])
                return any(map(is_well, written))

            await until(begun, "a copy is begun, and interrupted")
            await cluster.nodes[2].kill()
        await cluster.nodes[1].start()
        await last.own(cluster[0])
        assert records(await cluster[0].read(0, last)) == [b"w:before", *parts]


def is_well(answer: Answer) -> bool:
    """Whether it came, and says that all was written."""
    return answer.done() and not answer.cancelled() and answer.result().done


class Source:
    """A node that is read."""

    index, place = 0, "played"

    def __init__(self, entries: list[NodeEntry]) -> None:
        self.log = entries
        self.acknowledged = 0
        self.comes: list[NodeEntry] = []

    async def inspect(self, _shard: int, *, vote: bool) -> NodeReply:
        """What it says of itself, with so many entries after the first acknowledged; then more comes."""
        assert not vote
        end, place = (
            self.log[-1].end,
            Position(int(self.acknowledged > 0), GENESIS.offset + self.acknowledged),
        )
        values = (
            end.position.stream_id.encode(),
            end.hash,
            place.stream_id.encode(),
            b"1",
            b"",
            b"0-1",
            21,
            0,
        )
        self.log += self.comes
        self.comes = []
        return NodeReply(Status.OK, (*values, b""))

    async def entries(self, _shard: int, first: str, count: int, _max_bytes: int) -> NodeReply:
        after = Position(*map(int, first.removeprefix("(").split("-")))
        rows = [
            [entry.position.stream_id.encode(), [b"r", entry.record, b"n", entry.nonce, b"h", entry.hash]]
            for entry in self.log
            if entry.position > after
        ]
        return NodeReply(Status.OK, tuple(rows[:count]))


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    """One with twenty entries, of which three are read at a time."""
    monkeypatch.setattr(sources, "_PAGE_ENTRIES", 3)
    return Source(chain(BEFORE, 1, [(b"%d" % number, secrets.token_bytes(16)) for number in range(20)]))


async def portions(source: Source) -> list[int]:
    """How many entries come at a time."""
    read, sizes, end = Sources(Quorum([], 0), lambda: 0), list[int](), BEFORE
    while True:
        some = await read.portion(cast(Node, source), 0, end)
        assert some is not None
        if not some:
            return sizes
        sizes.append(len(some))
        end = some[-1].end


@pytest.mark.parametrize(
    ("acknowledged", "sizes"), [(20, [3] * 6 + [2]), (16, [3] * 5 + [1, 4]), (3, [3, 17]), (0, [20])]
)
async def test_a_portion_ends_at_what_is_acknowledged_or_has_all_that_is_not(
    source: Source, acknowledged: int, sizes: list[int]
) -> None:
    source.acknowledged = acknowledged
    assert await portions(source) == sizes


async def test_what_comes_while_a_copy_is_read_waits_for_the_next_portion(source: Source) -> None:
    source.comes = chain(source.log[-1].end, 1, [(b"later", secrets.token_bytes(16)) for _ in range(5)])
    assert await portions(source) == [20, 5]


@pytest.mark.parametrize("limit", ["_OPEN_ENTRIES", "_OPEN_BYTES"])
async def test_a_copy_of_what_must_be_acknowledged_goes_in_portions(
    source: Source, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the source has heard late that it is."""
    monkeypatch.setattr(sources, limit, 5 if limit == "_OPEN_ENTRIES" else 5 * 34)
    assert await portions(source) == [3, 3, 3, 3, 8]

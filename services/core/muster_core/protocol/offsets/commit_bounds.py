"""What a commit may add: to the offsets of its group, and to what shard and process hold."""

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.protocol.context import ShardContext
from muster_core.protocol.offsets.commit_records import CommitRecords
from muster_core.protocol.room import Limit
from muster_core.record_bounds import utf8_bytes
from muster_core.state.holdings import OFFSET_BYTES
from muster_core.state.offsets.offset_store import OffsetStore, weight_of

NOTHING = OffsetStore()
"""The offsets of a group that there is not."""


class CommitSize:
    """What commits that are on their way to the log may bring.

    Attributes:
        offsets: how many.
        bytes: what they take in memory if all are new, or a little more.
    """

    __slots__ = ("bytes", "offsets")

    def __init__(self, offsets: int = 0, most_bytes: int = 0) -> None:
        self.offsets = offsets
        self.bytes = most_bytes


class _OnTheirWay(CommitSize):
    """The commits of a group that are on their way to the log."""

    __slots__ = ("commits",)

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0


class CommitBounds:
    """Counts what commits bring, before it is stored: what the log has is always accepted.

    What is on its way to the log counts as if all of it were new, so a group is never above its limits; one
    that is about to reach them may refuse what would just have had room.

    Args:
        context: the shard.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._open: dict[str, _OnTheirWay] = {}

    def excess(self, commit: CommitRecords, *, at_work: bool) -> tuple[ErrorCode, str] | None:
        """What is too much with a commit, the code first; None: nothing, or it brings nothing new.

        Args:
            commit: what would be stored.
            at_work: whether a member sends it that the log knows.
        """
        number, most_bytes = _most(commit)
        group = self._context.groups.get(commit.group_id)
        offsets = NOTHING if group is None else group.offsets
        held, held_bytes = self._held(commit.group_id, offsets)
        config = self._context.config
        if (
            held + number <= config.max_offsets
            and held_bytes + most_bytes <= config.max_offset_bytes
            and not self._context.bounds.is_full_with(most_bytes)
        ):
            return None
        new, grows_bytes = _growth(commit, offsets)
        if new > 0 and held + new > config.max_offsets:
            text = f"the group has its limit of {config.max_offsets:,} committed partitions"
            return error_code.INVALID_REQUEST, self._context.bounds.over(Limit.OFFSETS, text)
        if grows_bytes > 0 and held_bytes + grows_bytes > config.max_offset_bytes:
            text = f"the offsets of the group have their limit of {config.max_offset_bytes:,} bytes"
            return error_code.INVALID_REQUEST, self._context.bounds.over(Limit.OFFSET_BYTES, text)
        if full := self._context.bounds.too_much(grows_bytes, at_work=at_work):
            return error_code.COORDINATOR_NOT_AVAILABLE, full
        return None

    def too_large(self) -> str:
        """Counts a commit as refused because of its size; returns why, for people."""
        self._context.room.refused(Limit.COMMIT_BYTES)
        limit_bytes = self._context.config.commit_max_bytes
        text = f"the commit takes more than {limit_bytes:,} bytes in the log ({Limit.COMMIT_BYTES.setting})"
        return f"{text}: commit its partitions in several calls"

    def opened(self, commit: CommitRecords) -> CommitSize:
        """Counts a commit that goes to the log; returns the argument for `closed`."""
        size = CommitSize(*_most(commit))
        on_their_way = self._open.get(commit.group_id)
        if on_their_way is None:
            on_their_way = self._open[commit.group_id] = _OnTheirWay()
        on_their_way.commits += 1
        on_their_way.offsets += size.offsets
        on_their_way.bytes += size.bytes
        return size

    def part_closed(self, group_id: str, size: CommitSize, offsets: int) -> None:
        """Counts a part of a commit no longer as on its way, about as large as its share of the offsets."""
        part = CommitSize(offsets, size.bytes * offsets // size.offsets)
        for one in (size, self._open[group_id]):
            one.offsets -= part.offsets
            one.bytes -= part.bytes

    def closed(self, group_id: str, size: CommitSize) -> None:
        """Counts a commit, or what is left of it, no longer as on its way: the log has it."""
        on_their_way = self._open[group_id]
        on_their_way.commits -= 1
        on_their_way.offsets -= size.offsets
        on_their_way.bytes -= size.bytes
        if not on_their_way.commits:
            del self._open[group_id]

    def on_their_way(self, group_id: str) -> bool:
        """Whether the log is about to know commits of a group."""
        return group_id in self._open

    def _held(self, group_id: str, offsets: OffsetStore) -> tuple[int, int]:
        """Offsets of a group, and their bytes, with those on their way."""
        on_their_way = self._open.get(group_id)
        if on_their_way is None:
            return len(offsets), offsets.held_bytes
        return len(offsets) + on_their_way.offsets, offsets.held_bytes + on_their_way.bytes


def _most(commit: CommitRecords) -> tuple[int, int]:
    """Its offsets, and what they take in memory if all are new, or a little more."""
    count = commit.count
    return count, OFFSET_BYTES * count + commit.size_bytes


def _growth(commit: CommitRecords, offsets: OffsetStore) -> tuple[int, int]:
    """How many partitions it has that had no offset, and how many bytes it adds."""
    new = grows_bytes = 0
    for entry in commit.entries():
        partition = (entry.topic, entry.partition)
        before = offsets.table.get(partition)
        if before is None:
            new += 1
            grows_bytes += weight_of(partition, entry.metadata)
        else:
            grows_bytes += utf8_bytes(entry.metadata) - utf8_bytes(before[2])
    return new, grows_bytes

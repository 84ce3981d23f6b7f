"""An OffsetFetch of many partitions: its answer is built in steps."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster_core.sharding import shard_of
from muster_protos.muster.v1 import common_pb2, coordinator_pb2
from muster_runtime.loop_share import LoopShare

from muster_coordinator.api.named import in_topics
from muster_coordinator.api.steps import CUT_S, Ask, Budget

STEP_PARTITIONS = 1_000
SMALL_PARTITIONS = 100
_PAGE_BYTES = 1 << 18
_WHOLE_GROUPS_AT_ONCE = 10


def is_small(request: coordinator_pb2.OffsetFetchRequest) -> bool:
    """Whether it takes so little that any number of them may be answered in one turn."""
    total = 0
    for group in request.groups:
        if not group.topics:
            return False
        total += sum(len(topic.partitions) or 1 for topic in group.topics)
    return total <= SMALL_PARTITIONS


@dataclass(slots=True)
class _Piece:
    """What is asked of one group in one step.

    Attributes:
        place: the group's place in the request.
        asked: the question.
        cost: how many partitions the step may have to answer with for it.
        is_whole: whether it asks for all partitions.
    """

    place: int
    asked: coordinator_pb2.OffsetFetchRequest.Group
    cost: int
    is_whole: bool


@dataclass(slots=True)
class _Progress:
    """The answer for one group as far as it is known.

    Attributes:
        answer: what is known.
        left: how many partitions the caller wants still.
        bytes: size of the answer.
    """

    answer: coordinator_pb2.OffsetFetchResponse.Group
    left: int
    bytes: int = 0


@dataclass(slots=True)
class Fetch:
    """One OffsetFetch that takes several steps."""

    request: coordinator_pb2.OffsetFetchRequest
    shard_count: int
    budget: Budget
    sees: Callable[[str], bool] | None
    _progress: list[_Progress] = field(default_factory=list)
    _lines: dict[int, deque[_Piece]] = field(default_factory=lambda: defaultdict(deque))

    async def run(self, asks: Mapping[int, Ask], host: str) -> coordinator_pb2.OffsetFetchResponse:
        """Asks the shards, which were reached, step by step.

        Raises:
            InvalidArgument: the answer would be too large.
        """
        response = coordinator_pb2.OffsetFetchResponse()
        share = LoopShare()
        for place, group in enumerate(self.request.groups):
            # It is filled in place: to put a group that is complete into an answer copies all of it.
            self._progress.append(_Progress(response.groups.add(group_id=group.group_id), group.limit))
            line = self._lines[shard_of(group.group_id, self.shard_count)]
            for piece in _pieces(place, group):
                line.append(piece)
                if share.taken_s > CUT_S:
                    await share.rest()
        for number, line in self._lines.items():
            while step := self._step(line):
                asked = coordinator_pb2.OffsetFetchRequest(groups=[piece.asked for piece in step])
                part = asks[number](asked, host)
                self.budget.take(part)
                for piece, answer in zip(step, part.groups, strict=True):
                    self._take(line, piece, answer)
                await share.rest()
        return response

    def _step(self, line: deque[_Piece]) -> list[_Piece]:
        """The next pieces that a turn can bear."""
        step: list[_Piece] = []
        cost = 0
        while line and (not step or cost + line[0].cost <= STEP_PARTITIONS):
            piece = line.popleft()
            if self._progress[piece.place].answer.error_code:
                continue
            if piece.is_whole:
                left = self._progress[piece.place].left
                piece.asked.limit = min(piece.cost, left) if left else piece.cost
            cost += piece.cost
            step.append(piece)
        return step

    def _take(
        self, line: deque[_Piece], piece: _Piece, part: coordinator_pb2.OffsetFetchResponse.Group
    ) -> None:
        progress = self._progress[piece.place]
        answer = progress.answer
        if part.error_code:
            answer.CopyFrom(part)
            return
        answer.shard_epoch = part.shard_epoch
        topics = list(part.topics)
        if piece.is_whole:
            self.budget.pay(in_topics(topics))
        if piece.is_whole and self.sees is not None:
            topics = [topic for topic in topics if self.sees(topic.name)]
        _append(answer, topics)
        if not part.more:
            return
        wanted = self.request.groups[piece.place].limit
        if wanted:  # to ask for a size encodes what it is of
            progress.bytes += sum(topic.ByteSize() for topic in topics)
            progress.left -= sum(len(topic.partitions) for topic in topics)
            if progress.left <= 0 or progress.bytes >= _PAGE_BYTES:
                answer.more = True
                return
        if part.topics:  # else the shard was still busy putting them in order
            piece.asked.after_topic = part.topics[-1].name
            piece.asked.after_partition = part.topics[-1].partitions[-1].partition
        piece.cost = STEP_PARTITIONS  # there is much of it: the next step is its own
        line.appendleft(piece)


def _append(answer: coordinator_pb2.OffsetFetchResponse.Group, topics: Any) -> None:
    """Puts further partitions at the end; those of the last topic go on there."""
    rest = list(topics)
    if rest and answer.topics and answer.topics[-1].name == rest[0].name:
        answer.topics[-1].partitions.extend(rest.pop(0).partitions)
    answer.topics.extend(rest)


def _pieces(place: int, group: coordinator_pb2.OffsetFetchRequest.Group) -> Iterable[_Piece]:
    if not group.topics:
        asked = coordinator_pb2.OffsetFetchRequest.Group()
        asked.CopyFrom(group)
        yield _Piece(place, asked, STEP_PARTITIONS // _WHOLE_GROUPS_AT_ONCE, is_whole=True)
        return
    asked, cost = coordinator_pb2.OffsetFetchRequest.Group(group_id=group.group_id), 0
    for topic in group.topics:
        for begin in range(0, len(topic.partitions), STEP_PARTITIONS):
            numbers = topic.partitions[begin : begin + STEP_PARTITIONS]
            if cost + len(numbers) > STEP_PARTITIONS:
                yield _Piece(place, asked, cost, is_whole=False)
                asked, cost = coordinator_pb2.OffsetFetchRequest.Group(group_id=group.group_id), 0
            asked.topics.append(common_pb2.TopicPartitions(topic=topic.topic, partitions=numbers))
            cost += len(numbers)
    if not cost:  # whose the group is, and what it is not, is answered though nothing of it is asked
        asked.topics.add(topic=group.topics[0].topic)
    yield _Piece(place, asked, max(1, cost), is_whole=False)

"""The tokens of partitions that members keep, as SyncGroup answers them."""

from collections.abc import Sequence
from itertools import groupby

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.coordinator_pb2 import PartitionToken, SyncGroupResponse

from muster_core.numbered_messages import numbered_messages
from muster_core.position import Position

_KEPT_TOKENS = SyncGroupResponse.KEPT_TOKENS_FIELD_NUMBER
_PARTITION = PartitionToken.PARTITION_FIELD_NUMBER

MANY = 1_000
"""Of so many tokens the answer is remembered: to write twenty thousand takes some tens of milliseconds."""

_RUN = 8
"""So many that differ in their numbers alone are written together sooner than one by one."""


class KeptTokens:
    """Writes kept tokens into answers, and remembers the last large answer of a process.

    A member may ask for its assignment as often as it likes, and gets the same answer each time, which nobody
    changes or copies (LIM-53). What is remembered is about as large as a record of the log may be.
    """

    def __init__(self) -> None:
        self._last: Sequence[records_pb2.KeptToken] = ()
        self._without = self._answer = SyncGroupResponse()

    def added(
        self, answer: SyncGroupResponse, tokens: Sequence[records_pb2.KeptToken], written: bytes = b""
    ) -> SyncGroupResponse:
        """An answer with the tokens of a member.

        Args:
            answer: has none yet; it is written to.
            tokens: of the member, as it keeps them.
            written: the same, as `written_tokens` has written them; empty: that was not done.
        """
        if tokens is self._last and answer == self._without:
            return self._answer
        if len(tokens) > MANY:
            self._last, self._answer, self._without = tokens, answer, SyncGroupResponse()
            self._without.CopyFrom(answer)
        if written:
            answer.MergeFromString(written)
        else:
            _write(answer, tokens)
        return answer


def written_tokens(topic: str, position: Position, numbers: Sequence[int]) -> bytes:
    """Tokens that differ in the numbers of their partitions alone, as part of an answer."""
    like = PartitionToken(topic=topic, token=position.token).SerializeToString()
    return numbered_messages(_KEPT_TOKENS, like, _PARTITION, numbers)


def _write(answer: SyncGroupResponse, tokens: Sequence[records_pb2.KeptToken]) -> None:
    add = answer.kept_tokens.add
    texts: dict[tuple[int, int], str] = {}  # many partitions have few tokens
    for (topic, epoch, offset), alike in groupby(tokens, _topic_and_token):
        text = texts.get((epoch, offset))
        if text is None:
            text = texts[epoch, offset] = Position(epoch, offset).token
        numbers = [kept.partition for kept in alike]
        if len(numbers) < _RUN:
            for number in numbers:
                told = add()
                told.topic, told.partition, told.token = topic, number, text
        else:
            answer.MergeFromString(written_tokens(topic, Position(epoch, offset), numbers))


def _topic_and_token(kept: records_pb2.KeptToken) -> tuple[str, int, int]:
    """What few of the kept partitions that follow each other differ in."""
    position = kept.position
    return kept.topic, position.epoch, position.offset

"""The tokens of partitions that members keep, as SyncGroup answers them."""

from collections.abc import Sequence

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.coordinator_pb2 import SyncGroupResponse

from muster_core.position import Position

MANY = 1_000
"""Of so many tokens the answer is remembered: to write twenty thousand takes some tens of milliseconds."""


class KeptTokens:
    """Writes kept tokens into answers, and remembers the last large ones of a process, encoded.

    A member may ask for its assignment as often as it likes, and gets the same tokens each time (LIM-53).
    What is remembered is smaller than a record of the log.
    """

    def __init__(self) -> None:
        self._last: Sequence[records_pb2.KeptToken] = ()
        self._encoded = b""

    def put_into(self, answer: SyncGroupResponse, tokens: Sequence[records_pb2.KeptToken]) -> None:
        """Writes the tokens of a member at the end of an answer that has none."""
        if tokens is self._last:
            answer.MergeFromString(self._encoded)
            return
        _write(answer, tokens)
        if len(tokens) > MANY:
            only_them = SyncGroupResponse(kept_tokens=answer.kept_tokens)
            self._last, self._encoded = tokens, only_them.SerializeToString()


def _write(answer: SyncGroupResponse, tokens: Sequence[records_pb2.KeptToken]) -> None:
    texts: dict[tuple[int, int], str] = {}  # many partitions have few tokens
    add = answer.kept_tokens.add
    for kept in tokens:
        place = kept.position.epoch, kept.position.offset
        text = texts.get(place) or texts.setdefault(place, Position(*place).token)
        add(topic=kept.topic, partition=kept.partition, token=text)

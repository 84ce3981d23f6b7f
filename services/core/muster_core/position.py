"""Places in a shard's log and the fencing tokens made from them."""

from typing import NamedTuple

from muster_protos.muster.v1 import common_pb2

_EPOCH_DIGITS = 10
_OFFSET_DIGITS = 16
_new = tuple.__new__


class Position(NamedTuple):
    """Place of a record: the epoch that wrote it and its dense number in the log, from 1.

    Positions compare in the order of the log and only grow, over fail-over, take-over and deletion of
    groups. `Position(0, 0)` is before everything.
    """

    epoch: int
    offset: int

    @property
    def token(self) -> str:
        """The fencing token: `<epoch, 10 digits>-<offset, 16 digits>`, which sorts as text.

        A 64-bit number would pass through doubles in Lua and JavaScript, and neighbours would compare
        equal (docs/safety.md, "Groups").
        """
        return f"{self.epoch:0{_EPOCH_DIGITS}d}-{self.offset:0{_OFFSET_DIGITS}d}"

    @property
    def stream_id(self) -> str:
        """The id of the entry in the Redis stream: `<epoch>-<offset>`."""
        return f"{self.epoch}-{self.offset}"

    def after(self, count: int) -> "Position":
        """The position `count` records later in this epoch."""
        return _new(Position, (self[0], self[1] + count))  # half the time: logs are made of places

    def to_proto(self) -> common_pb2.Position:
        """This position as a message."""
        return common_pb2.Position(epoch=self.epoch, offset=self.offset)

    @classmethod
    def from_proto(cls, message: common_pb2.Position) -> "Position":
        """The place that a message names."""
        return cls(message.epoch, message.offset)

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Reads a stream id or a token.

        Raises:
            ValueError: the text is not of the form `<number>-<number>`.
        """
        epoch, dash, offset = text.partition("-")
        if (
            not dash
            or not epoch.isascii()
            or not epoch.isdigit()
            or not offset.isascii()
            or not offset.isdigit()
        ):
            raise ValueError(f"not a position: {text!r}")
        return cls(int(epoch), int(offset))


NOWHERE = Position(0, 0)
GENESIS = Position(0, 1)

"""What was done to the cluster as a whole: nodes replaced, restores, features."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from muster_protos.muster.log.v1 import records_pb2

from muster_audit.lake.row import Place, Row, day_of
from muster_audit.lake.tracker import Take, Tracker


@dataclass(slots=True, kw_only=True)
class Operation(Row):
    """What was done to the cluster as a whole, as a record of the catalog's log says.

    A server took the place of a node of the log (`node replaced`), the nodes were restored from a backup
    (`restored`), or the cluster uses a feature from here on (`feature enabled`).
    """

    table: ClassVar[str] = "operations"

    written_at_ms: Annotated[int, "When it was written: wall clock of the writer, ms since the Unix epoch."]
    kind: Annotated[str, "What was done."]
    reason: Annotated[str | None, "Why the nodes were restored, in the operator's words; else null."] = None
    configuration: Annotated[int | None, "Number of the configuration with the new node; else null."] = None
    node: Annotated[int | None, "Place of the node that was replaced, from 1; else null."] = None
    old_address: Annotated[str | None, "`host:port` of the server that left; else null."] = None
    new_address: Annotated[str | None, "`host:port` of the server that came; else null."] = None
    feature: Annotated[str | None, "Name of the feature that was enabled; else null."] = None
    version: Annotated[str | None, "Version of the software that enabled it; else null."] = None

    @property
    def day(self) -> str:
        """The UTC day of the record."""
        return day_of(self.written_at_ms)


class Operations(Tracker[Operation]):
    """Takes each record by itself. Nothing is carried on."""

    row = Operation

    @property
    def takes(self) -> Mapping[str, Take[Operation]]:
        """What it does with which kind of record."""
        return {
            "node_replaced": self._node_replaced,
            "restored": self._restored,
            "feature_enabled": self._feature_enabled,
        }

    def resume(self, row: Operation) -> None:
        """There are none: each row is final."""

    def running(self) -> Iterator[Operation]:
        """None: each row is final."""
        return iter(())

    def _node_replaced(self, at: Place, message: records_pb2.NodeReplaced) -> Iterator[Operation]:
        row = _row(at, "node replaced")
        row.configuration, row.node = message.configuration, message.node
        row.old_address, row.new_address = message.old_address, message.new_address
        yield row

    def _restored(self, at: Place, message: records_pb2.Restored) -> Iterator[Operation]:
        row = _row(at, "restored")
        row.reason = message.reason
        yield row

    def _feature_enabled(self, at: Place, message: records_pb2.FeatureEnabled) -> Iterator[Operation]:
        row = _row(at, "feature enabled")
        row.feature, row.version = message.name, message.version
        yield row


def _row(at: Place, kind: str) -> Operation:
    return Operation(
        shard=at.shard,
        epoch=at.position.epoch,
        offset=at.position.offset,
        written_at_ms=at.at_ms,
        kind=kind,
    )

"""Settings of groups: what was set for each, from when to when."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from muster_core.state.group_settings import is_any_set
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.group_settings_pb2 import GroupSettings

from muster_audit.lake.row import Interval, Place
from muster_audit.lake.tracker import Take, Tracker


@dataclass(slots=True, kw_only=True)
class Setting(Interval):
    """What was set for a group: it holds instead of what its coordinators are set to.

    It lasts until other things are set or taken back (`altered`), or until the end of the group (`group
    gone`). While nothing is set there is no row.
    """

    table: ClassVar[str] = "settings"

    group_id: Annotated[str, "The group."]
    assignor: Annotated[str | None, "Assignor of an incremental group; null: not set, here and below."] = None
    assignment_interval_ms: Annotated[
        int | None, "Pause between two assignments, ms; 0: none, -1: as its coordinator finds best."
    ] = None
    session_timeout_ms: Annotated[int | None, "Session timeout of its members, ms."] = None
    heartbeat_interval_ms: Annotated[int | None, "How often they are to send a heartbeat, ms."] = None
    disconnect_grace_ms: Annotated[
        int | None, "How long they may stay away after their stream broke, ms."
    ] = None
    convert: Annotated[
        str | None, "When it becomes incremental while its members work: `never`, `auto` or `always`."
    ] = None
    hold: Annotated[
        bool | None, "Whether nothing is taken from a living member to give it to another one."
    ] = None


class Settings(Tracker[Setting]):
    """Follows what is set."""

    row = Setting

    def __init__(self) -> None:
        self._groups: dict[str, Setting] = {}

    @property
    def takes(self) -> Mapping[str, Take[Setting]]:
        """What it does with which kind of record."""
        return {"group_settings_altered": self._altered, "group_tombstone": self._group_tombstone}

    def resume(self, row: Setting) -> None:
        """Takes back a row that was not final."""
        self._groups[row.group_id] = row

    def running(self) -> Iterator[Setting]:
        """What is set now."""
        return iter(self._groups.values())

    def _altered(self, at: Place, message: records_pb2.GroupSettingsAltered) -> Iterator[Setting]:
        before = self._groups.pop(message.group_id, None)
        if before is not None:
            yield before.end(at, "altered")
        if is_any_set(message.settings):
            self._groups[message.group_id] = setting_row(at, message.group_id, message.settings)

    def _group_tombstone(self, at: Place, message: records_pb2.GroupTombstone) -> Iterator[Setting]:
        row = self._groups.pop(message.group_id, None)
        if row is not None:
            yield row.end(at, "group gone")


def setting_row(at: Place, group_id: str, settings: GroupSettings) -> Setting:
    """The row of what is set from a record on."""
    row = Setting(
        shard=at.shard,
        epoch=at.position.epoch,
        offset=at.position.offset,
        from_ms=at.at_ms,
        group_id=group_id,
    )
    for field, value in settings.ListFields():
        setattr(row, field.name, value)
    return row

"""What made a core fail: who is to blame, and what is kept of it."""

import traceback
from collections.abc import Iterable
from dataclasses import dataclass

from muster_core import fault
from muster_core.clock import Now
from muster_core.events import Event, GroupRequest, Request, groups_of
from muster_core.fault import Journal
from muster_core.log.application import group_of
from muster_core.shard import Shard
from muster_core.veil import veiled_record
from muster_protos.muster.internal.v1 import fault_pb2
from muster_runtime.about import software_version

_ERROR_MAX_CHARACTERS = 500
_TRACEBACK_MAX_CHARACTERS = 20_000
_CALLS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Failure:
    """A core raised: its state must be dropped.

    Attributes:
        group_id: the group that was worked on; empty: none in particular.
        event: kind of the event, such as `HeartbeatRequest` or `Tick`.
        error: kind and text of the error.
        kept: what is needed to repeat it.
    """

    group_id: str
    event: str
    error: str
    kept: fault_pb2.Fault


def of_turn(
    core: Shard,
    epoch: int,
    event: Event | None,
    now: Now,
    error: BaseException,
    *,
    group_id: str,
    journal: Journal | None,
    open_calls: Iterable[tuple[int, GroupRequest]],
) -> Failure:
    """A failure while a shard is served.

    Args:
        core: the core that raised.
        epoch: epoch of the ownership.
        event: what it was given; None: the end of its load.
        now: when.
        error: what it raised.
        group_id: the group that is to blame; empty: none.
        journal: what happened to the group since the load, if that was kept.
        open_calls: calls that wait for their answer, by number.
    """
    kept = _begun(core, epoch, now.wall_ms, error, group_id)
    kept.features.extend(sorted(core.features))
    last = None if event is None else fault.message_of(event, now)
    if journal is not None and journal.complete and group_id:
        kept.complete = True
        kept.snapshot_parts.extend(journal.snapshot_parts)
        kept.events.extend(journal.events(event, now))
    else:
        kept.snapshot_parts.extend(_snapshot(core, group_id))
        if last is None:
            kept.events.add(boot_ms=now.boot_ms, wall_ms=now.wall_ms, loaded=epoch)
        else:
            own = event.call_id if isinstance(event, Request) else 0
            for call_id, message in open_calls:
                if call_id != own and groups_of(message) == [group_id]:
                    kept.events.append(fault.message_of(Request(call_id, message), now))
                if len(kept.events) == _CALLS_MAX:
                    break
            kept.events.append(last)
    return Failure(group_id, _name(event), kept.error, kept)


def of_replay(core: Shard, wall_ms: int, error: BaseException) -> Failure | None:
    """A failure while a log is read back; None: no group is to blame.

    Args:
        core: the core that raised.
        wall_ms: when.
        error: what it raised.
    """
    failed = core.failed_record
    group_id = "" if failed is None else group_of(failed[1])
    if failed is None or not group_id:
        return None
    position, record = failed
    kept = _begun(core, 0, wall_ms, error, group_id)
    kept.snapshot_parts.extend(_snapshot(core, group_id))
    replayed = kept.events.add(wall_ms=wall_ms).replayed
    replayed.position.CopyFrom(position.to_proto())
    replayed.record.CopyFrom(veiled_record(record))
    return Failure(group_id, str(record.WhichOneof("kind")), kept.error, kept)


def _begun(core: Shard, epoch: int, wall_ms: int, error: BaseException, group_id: str) -> fault_pb2.Fault:
    shown = "".join(traceback.format_exception(error))
    begun = fault_pb2.Fault(
        format=fault.FORMAT,
        version=software_version(),
        shard=core.number,
        shard_epoch=epoch,
        group_id=group_id,
        failed_at_ms=wall_ms,
        error=_sendable(repr(error)[:_ERROR_MAX_CHARACTERS]),
        traceback=_sendable(shown[-_TRACEBACK_MAX_CHARACTERS:]),
    )
    fault.keep_config(begun, core.config)
    return begun


def _snapshot(core: Shard, group_id: str) -> list[bytes]:
    try:
        return fault.snapshot_of(core, {group_id})
    except Exception:
        return []  # the state is half changed: it may not fit together


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _name(event: Event | None) -> str:
    if event is None:
        return "loaded"
    return type(event.message if isinstance(event, Request) else event).__name__

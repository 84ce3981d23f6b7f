"""What made a shard fail, as a message that can be kept, and how it is repeated."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, get_args

from google.protobuf.any_pb2 import Any as AnyMessage
from muster_protos.muster.internal.v1 import fault_pb2, metadata_pb2

from muster_core.catalog import Catalog
from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.events import (
    Append,
    AppendDone,
    Assigned,
    Attach,
    Beat,
    Cancelled,
    Detach,
    Event,
    FeaturesEnabled,
    GroupRequest,
    Request,
    Resolved,
    Resume,
    StreamBroken,
    StreamPlace,
    Suspend,
    Tick,
    TopicsChanged,
    Unload,
    groups_of,
)
from muster_core.features import Feature, known_of
from muster_core.incremental.partitions import by_topic, named_in
from muster_core.incremental.targets.target import Change
from muster_core.log.application import group_of
from muster_core.log.snapshot import nothing_of, parts
from muster_core.log.topics.topic_names import removed_by_topic
from muster_core.log.topics.topic_partitions import weights_by_topic, zones_by_topic, zones_message
from muster_core.position import Position
from muster_core.shard import Shard
from muster_core.veil import veiled_call, veiled_part

FORMAT = 1


class FaultUnusable(Exception):
    """The message is no fault that this version can repeat; the text says why."""


# --- writing


def snapshot_of(core: Shard, group_ids: Collection[str]) -> list[bytes]:
    """The parts of a snapshot of some groups of a shard; groups that it does not have are passed over."""
    groups = [core.groups[group_id] for group_id in sorted(group_ids) if group_id in core.groups]
    return [veiled_part(part) for part in parts(groups, nothing_of(core.number))] if groups else []


def keep_config(fault: fault_pb2.Fault, config: GroupConfig) -> None:
    """Notes limits, times and words of the group protocol, by name."""
    for name, value in asdict(config).items():
        if isinstance(value, str):
            fault.words[name] = value
        else:
            fault.config[name] = int(value)


def message_of(event: Event, now: Now, append: int = 0) -> fault_pb2.FaultEvent:
    """An event as it is kept.

    Args:
        event: what happened.
        now: when.
        append: of an `AppendDone`: which of the kept group's appends it is, from 0.
    """
    kept = fault_pb2.FaultEvent(
        boot_ms=now.boot_ms, wall_ms=now.wall_ms, wall_not_trusted=not now.wall_trusted
    )
    match event:
        case Request():
            _fill_in_request(event, kept.request)
        case AppendDone():
            kept.append_done.append = append
            kept.append_done.position.CopyFrom(event.position.to_proto())
        case Unload():
            kept.unload.SetInParent()
            if event.successor is not None:
                kept.unload.successor.CopyFrom(event.successor)
        case TopicsChanged():
            kept.topics_changed.topics.extend(sorted(event.topics))
            kept.topics_changed.deleted.extend(sorted(event.deleted))
            kept.topics_changed.carried_out = event.carried_out
            if event.catalog is not None:
                kept.topics_changed.catalog.CopyFrom(_catalog_message(event.catalog))
        case Attach():
            kept.attach.stream_id, kept.attach.knows_unsure = event.stream_id, event.knows_unsure
            kept.attach.request.CopyFrom(veiled_call(event.request))
            kept.attach.identity = event.identity
        case Detach():
            kept.detach.stream_id = event.stream_id
            kept.detach.request.CopyFrom(event.request)
        case FeaturesEnabled():
            kept.features_enabled.features.extend(sorted(event.features))
        case StreamBroken():
            broken = kept.stream_broken
            broken.stream_id, broken.suspect, broken.ago_ms = event.stream_id, event.suspect, event.ago_ms
        case _:
            _fill_in_small(event, kept)
    return kept


def _fill_in_request(event: Request, kept: fault_pb2.FaultEvent.Request) -> None:
    kept.call_id, kept.host, kept.draw = event.call_id, event.host, event.draw
    kept.message.Pack(veiled_call(event.message))
    kept.identity = event.identity
    if event.is_operator is not None:
        kept.is_operator = event.is_operator
    if event.place is not None:
        kept.stream_id, kept.connection, kept.knows_unsure = event.place


def _catalog_message(catalog: Catalog) -> metadata_pb2.TopicCatalog:
    message = metadata_pb2.TopicCatalog(deletions_since=catalog.deletions_since)
    message.version.CopyFrom(catalog.place.to_proto())
    for name, partitions in catalog.partitions.items():
        topic = message.topics.add(
            name=name, partitions=partitions, incarnation=catalog.incarnations.get(name, 0)
        )
        removed, weights = catalog.removed.get(name, ()), catalog.weights.get(name, {})
        if removed or weights:
            for number in range(partitions):
                some_name = "" if number in removed else _SOME_NAME
                topic.names.partitions.add(name=some_name, weight=weights.get(number, 0))
        if zones := catalog.zones.get(name):
            topic.zones.CopyFrom(zones_message(zones))
    for name, offset in catalog.deletions.items():
        message.deletions.add(name=name, offset=offset)
    return message


def _catalog_of(message: metadata_pb2.TopicCatalog) -> Catalog:
    return Catalog(
        message.version.offset,
        {topic.name: topic.partitions for topic in message.topics},
        {removed.name: removed.offset for removed in message.deletions},
        {topic.name: topic.incarnation for topic in message.topics if topic.incarnation},
        message.deletions_since,
        message.version.epoch,
        removed_by_topic(message.topics),
        weights_by_topic(message.topics),
        zones_by_topic(message.topics),
    )


def _fill_in_work(event: Assigned | Resolved, kept: fault_pb2.FaultEvent) -> None:
    if isinstance(event, Assigned):
        kept.assigned.group_id, kept.assigned.number = event.group_id, event.number
        kept.assigned.failed = event.changes is None
        for member_id, change in (event.changes or {}).items():
            kept.assigned.changes.add(
                member_id=member_id, gets=by_topic(change.gets), loses=by_topic(change.loses)
            )
    else:
        kept.resolved.group_id, kept.resolved.number = event.group_id, event.number
        kept.resolved.failed = event.topics is None
        for expression, topics in (event.topics or {}).items():
            kept.resolved.expressions.add(expression=expression, topics=sorted(topics))


def _work_of(kept: fault_pb2.FaultEvent) -> Assigned | Resolved:
    if kept.WhichOneof("kind") == "assigned":
        assigned = kept.assigned
        changes = {
            one.member_id: Change(frozenset(named_in(one.gets)), frozenset(named_in(one.loses)))
            for one in assigned.changes
        }
        return Assigned(assigned.group_id, assigned.number, None if assigned.failed else changes)
    resolved = kept.resolved
    topics = {one.expression: frozenset(one.topics) for one in resolved.expressions}
    return Resolved(resolved.group_id, resolved.number, None if resolved.failed else topics)


def _fill_in_small(
    event: Cancelled | Tick | Suspend | Resume | Beat | Assigned | Resolved, kept: fault_pb2.FaultEvent
) -> None:
    match event:
        case Cancelled():
            kept.cancelled = event.call_id
        case Beat():
            kept.beat.stream_id, kept.beat.number = event.stream_id, event.number
            kept.beat.acknowledged = event.acknowledged
        case Tick():
            kept.tick = True
        case Suspend():
            kept.suspend = True
        case Resume():
            kept.resume = True
        case Assigned() | Resolved():
            _fill_in_work(event, kept)


class Journal:
    """What happens to a few groups of a shard from its load on, so that a failure can be repeated.

    Begins before `Shard.loaded`. Beyond its limit it keeps nothing any more.

    Args:
        core: the shard, fully replayed and not yet served.
        group_ids: the groups.
        max_bytes: limit of what is kept.

    Attributes:
        snapshot_parts: the groups as they were at the beginning.
        complete: whether all is there.
    """

    def __init__(self, core: Shard, group_ids: Collection[str], max_bytes: int) -> None:
        self.snapshot_parts = snapshot_of(core, group_ids)
        self._group_ids = group_ids
        self._left_bytes = max_bytes - sum(map(len, self.snapshot_parts))
        self._events: list[fault_pb2.FaultEvent] = []
        self._appends: dict[int, int] = {}
        self._calls: set[int] = set()
        self._streams: set[int] = set()
        self._checked()

    @property
    def complete(self) -> bool:
        """Whether all is there that happened to the groups since the beginning."""
        return self._left_bytes >= 0

    def loaded(self, epoch: int, now: Now) -> None:
        """The shard begins to serve."""
        self._keep(fault_pb2.FaultEvent(boot_ms=now.boot_ms, wall_ms=now.wall_ms, loaded=epoch))

    def note(self, event: Event, now: Now) -> None:
        """An event is about to be played."""
        if self.complete and self._concerns(event):
            append = self._appends.get(event.append_id, 0) if isinstance(event, AppendDone) else 0
            self._keep(message_of(event, now, append))

    def appended(self, appends: Sequence[Append]) -> None:
        """The shard wants records stored."""
        for append in appends:
            if group_of(append.records[0]) in self._group_ids:
                self._appends[append.append_id] = len(self._appends)

    def events(self, last: Event | None, now: Now) -> list[fault_pb2.FaultEvent]:
        """All events up to the one that failed, `last`; None: the load itself failed."""
        if last is not None and not self._concerns(last):
            # Time passed with it, or it was about other groups too.
            return [*self._events, message_of(last if _is_wide(last) else Tick(), now)]
        return self._events

    def _concerns(self, event: Event) -> bool:
        match event:
            case Request():
                named = groups_of(event.message)
                concerned = len(named) == 1 and named[0] in self._group_ids
                if concerned:
                    self._calls.add(event.call_id)
                    if event.place is not None:
                        self._streams.add(event.place.stream_id)
                return concerned
            case Cancelled():
                return event.call_id in self._calls
            case AppendDone():
                return event.append_id in self._appends
            case Attach():
                concerned = event.request.group_id in self._group_ids
                if concerned:
                    self._streams.add(event.stream_id)
                return concerned
            case Detach():
                return event.request.group_id in self._group_ids
            case Beat() | StreamBroken():
                return event.stream_id in self._streams
            case Assigned() | Resolved():
                return event.group_id in self._group_ids
            case Tick():
                return False
            case _:
                return True

    def _keep(self, event: fault_pb2.FaultEvent) -> None:
        self._left_bytes -= event.ByteSize()
        self._events.append(event)
        self._checked()

    def _checked(self) -> None:
        if not self.complete:
            self._events.clear()
            self.snapshot_parts.clear()


def _is_wide(event: Event) -> bool:
    """Whether an event may concern several groups without naming one."""
    match event:
        case Request(message=message):
            return len(groups_of(message)) != 1
        case _:
            return isinstance(event, Beat | StreamBroken)


# --- repeating


def repeat(fault: fault_pb2.Fault) -> None:
    """Plays the events of a fault on a shard of its own.

    Raises:
        FaultUnusable: the message is not understood.
        Exception: whatever an event raises; that it does is the point.
    """
    if fault.format != FORMAT or not fault.events:
        raise FaultUnusable(
            f"it has format {fault.format} and {len(fault.events)} events, not format {FORMAT}"
        )
    known = {field.name for field in fields(GroupConfig)}
    kept: dict[str, Any] = {**fault.config, **fault.words}
    config = {name: value for name, value in kept.items() if name in known}
    core = Shard(fault.shard, GroupConfig(**config))
    if fault.snapshot_parts:
        reader = core.restore()
        for part in fault.snapshot_parts:
            reader.take(part)
    _Repetition(core, fault.shard_epoch, known_of(fault.features)).play(fault.events)


class _Repetition:
    """Plays kept events; appends have other ids here than where they were kept."""

    def __init__(self, core: Shard, epoch: int, features: frozenset[Feature]) -> None:
        self._core = core
        self._epoch = epoch
        self._features = features
        self._appends: list[int] = []

    def play(self, events: Sequence[fault_pb2.FaultEvent]) -> None:
        """Plays them in order."""
        begun = False
        for kept in events:
            now = Now(kept.boot_ms, kept.wall_ms, not kept.wall_not_trusted)
            kind = kept.WhichOneof("kind")
            if kind == "replayed":
                self._core.replay(Position.from_proto(kept.replayed.position), kept.replayed.record)
                continue
            if not begun:
                begun = True
                effects = self._core.loaded(kept.loaded or self._epoch, now, self._features)
                self._appends += [append.append_id for append in effects.appends]
            if kind != "loaded":
                for event in self._events(kept):
                    effects = self._core.handle(event, now)
                    self._appends += [append.append_id for append in effects.appends]

    def _events(self, kept: fault_pb2.FaultEvent) -> Iterator[Event]:
        kind = kept.WhichOneof("kind")
        if kind == "append_done":
            yield Tick()  # what has come due by then may have made the append
            which = kept.append_done.append
            if which < len(self._appends):
                yield AppendDone(self._appends[which], Position.from_proto(kept.append_done.position))
            return
        yield event_of(kept)


_SOME_NAME = "-"
"""In place of names of partitions, which the protocol does not read."""

_REQUESTS = {request.DESCRIPTOR.full_name: request for request in get_args(GroupRequest)}


def _unpacked(message: AnyMessage) -> GroupRequest:
    kind = _REQUESTS.get(message.type_url.rpartition("/")[2])
    if kind is None:
        raise FaultUnusable(f"a call has the type {message.type_url!r}")
    request: GroupRequest = kind.FromString(message.value)
    return request


_WITHOUT_FIELDS: dict[str, Event] = {"tick": Tick(), "suspend": Suspend(), "resume": Resume()}


def event_of(kept: fault_pb2.FaultEvent) -> Event:
    """A kept event as the shard takes it; all but those of a load and of the log.

    Raises:
        FaultUnusable: its kind is not known.
    """
    kind = kept.WhichOneof("kind") or "unknown"
    if kind in _WITHOUT_FIELDS:
        return _WITHOUT_FIELDS[kind]
    match kind:
        case "request":
            request = kept.request
            return Request(
                request.call_id,
                _unpacked(request.message),
                request.host,
                request.draw,
                request.identity,
                request.is_operator if request.HasField("is_operator") else None,
                StreamPlace(request.stream_id, request.connection, request.knows_unsure)
                if request.stream_id
                else None,
            )
        case "cancelled":
            return Cancelled(kept.cancelled)
        case "unload":
            return Unload(kept.unload.successor if kept.unload.HasField("successor") else None)
        case "topics_changed":
            changed = kept.topics_changed
            return TopicsChanged(
                frozenset(changed.topics),
                frozenset(changed.deleted),
                _catalog_of(changed.catalog) if changed.HasField("catalog") else None,
                changed.carried_out,
            )
        case "features_enabled":
            return FeaturesEnabled(known_of(kept.features_enabled.features))
        case "attach":
            attach = kept.attach
            return Attach(attach.stream_id, attach.request, attach.knows_unsure, attach.identity)
        case "detach":
            return Detach(kept.detach.stream_id, kept.detach.request)
        case "beat":
            return Beat(kept.beat.stream_id, kept.beat.number, kept.beat.acknowledged)
        case "stream_broken":
            broken = kept.stream_broken
            return StreamBroken(broken.stream_id, broken.suspect, broken.ago_ms)
        case "assigned" | "resolved":
            return _work_of(kept)
        case _:
            raise FaultUnusable(f"an event has the kind {kind}")

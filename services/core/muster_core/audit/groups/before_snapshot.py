"""G12, G18, I3, I4, I10 and O2: what a trimmed log says before its oldest snapshot, against that snapshot."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1.group_settings_pb2 import GroupSettings

from muster_core.audit.invariants import Findings
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import AWAY, Told
from muster_core.incremental.rollout import Hold
from muster_core.log.record_run import COMMIT, RecordRun
from muster_core.position import Position
from muster_core.state.group import Group
from muster_core.state.group_settings import is_any_set
from muster_core.state.members.member import Member
from muster_core.state.offsets.offset_store import CommittedValues
from muster_core.state.published import TopicPartition, partitions_of


class Problem(NamedTuple):
    """What a snapshot says otherwise than the records before it: the promise that is broken, and how."""

    invariant: str
    text: str


@dataclass(slots=True)
class _Said:
    """What records said of one group last; None, and what is not in a table: they did not say it.

    Attributes:
        gone: nothing was said of it since it was removed.
        offsets: what was committed; None: it was removed.
        generation: its last one, if it is a classic group.
        members: those of that generation.
        epoch: of an incremental group.
        target_epoch: of its target.
        told: what its members told last; None: it is gone.
        epochs: to which its members were brought.
        settings: what is set for it.
        hold: what holds its moves back, or did, alone in a tuple.
    """

    gone: bool = False
    offsets: dict[TopicPartition, CommittedValues | None] = field(default_factory=dict)
    generation: int | None = None
    members: dict[str, records_pb2.Member] | None = None
    epoch: int | None = None
    target_epoch: int | None = None
    told: dict[str, Told | None] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    settings: GroupSettings | None = None
    hold: tuple[Hold] | None = None

    def is_of_another_kind(self) -> None:
        """Nothing is known any more but what was committed, and what is set."""
        self.generation = self.members = self.epoch = self.target_epoch = None
        self.told, self.epochs, self.hold = {}, {}, None


class BeforeSnapshot:
    """Follows the entries from the beginning of a trimmed log to the end of its oldest snapshot.

    Nothing is known of what was before them, so they cannot be carried out. What they say last of a group is
    what the snapshot has to say of it.

    Args:
        findings: where the results go.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._groups: dict[str, _Said] = {}
        self._takes: dict[str, Callable[[_Said, Any], None]] = {
            "generation_started": _generation_started,
            "assignment_committed": lambda _, __: None,
            "member_left": _member_left,
            "member_replaced": _member_replaced,
            "group_settings_altered": _settings_altered,
            "offset_tombstone": _offset_tombstone,
            "member_subscribed": lambda said, message: _told(said, message.member),
            "epoch_raised": _epoch_raised,
            "target_assigned": _target_assigned,
            "member_stepped": _stepped,
            "member_went_away": _went_away,
            "instance_moved": _instance_moved,
            "member_removed": _removed,
            "expression_resolved": lambda _, __: None,
            "moves_held": _held,
            "group_converted": _converted,
            "group_reverted": _reverted,
        }

    def add_run(self, run: RecordRun) -> None:
        """Takes the next records."""
        for index, part in run.in_order_by_partition():
            if isinstance(part, list):
                for group_id, _, _, partition, committed in part:
                    self._said(group_id).offsets[partition] = committed
            else:
                self._take(run.kinds[index], part)

    def compare(self, groups: Mapping[str, Group], position: Position) -> None:
        """Compares the oldest snapshot, which reaches to a place, with what was taken; forgets that."""
        for group_id, said in self._groups.items():
            self._findings.checked["G12"] += 1
            for problem in _problems(said, groups.get(group_id)):
                text = f"group {group_id!r}: {problem.text}, by the snapshot otherwise than by the records"
                self._findings.broke(problem.invariant, position, text)
        self._groups = {}

    def _said(self, group_id: str) -> _Said:
        said = self._groups.get(group_id)
        if said is None:
            said = self._groups[group_id] = _Said()
        said.gone = False
        return said

    def _take(self, kind: str, record: records_pb2.Record) -> None:
        if kind == "topics_seen":
            for said in self._groups.values() if record.topics_seen.topics else ():
                said.epochs.clear()  # who had something of them keeps the epoch that it had (INC-19)
            return
        message = getattr(record, kind) if kind else None
        group_id = getattr(message, "group_id", None)
        if group_id is None or kind == COMMIT:  # a commit of nothing
            return
        if kind == "group_tombstone":
            self._groups[group_id] = _Said(gone=True)
        elif kind == "offset_tombstone" and self._is_gone(group_id):
            return
        else:
            self._takes.get(kind, _unknown)(self._said(group_id), message)

    def _is_gone(self, group_id: str) -> bool:
        said = self._groups.get(group_id)
        return said is not None and said.gone


def _problems(said: _Said, group: Group | None) -> Iterator[Problem]:
    """What a snapshot says otherwise of a group."""
    if said.gone or group is None:
        if said.gone != (group is None) and (said.gone or _makes_it(said)):
            yield Problem("G12", "it is there" if group is not None else "it is not there")
        return
    table = group.offsets.table
    differing = [partition for partition, values in said.offsets.items() if table.get(partition) != values]
    if differing:
        yield Problem("O2", f"what was committed in {sorted(differing)[:5]}")
    if said.settings is not None and said.settings != group.settings:
        yield Problem("G12", "what is set for it")
    if group.incremental is None:
        yield from _of_classic(said, group)
    else:
        yield from _of_incremental(said, group.incremental)


def _makes_it(said: _Said) -> bool:
    """Whether records gave the group something that it has until it is removed."""
    committed = any(values is not None for values in said.offsets.values())
    is_set = said.settings is not None and is_any_set(said.settings)
    return committed or is_set or bool(said.members or said.epoch)


def _of_classic(said: _Said, group: Group) -> Iterator[Problem]:
    if said.epoch is not None:
        yield Problem("G12", f"it is an incremental group, in epoch {said.epoch}")
    if said.generation is not None and said.generation != group.generation:
        yield Problem("G12", f"it is in generation {said.generation}, and not {group.generation}")
    if said.members is None:
        return
    if said.members.keys() != group.members.keys():
        differing = sorted(said.members.keys() ^ group.members.keys())
        yield Problem("G12", f"{differing[:5]} are members, or are none")
    for member_id in said.members.keys() & group.members.keys():
        mine, theirs = _as_kept(said.members[member_id]), group.members[member_id].to_record()
        if (mine.identity, mine.secret_hash) != (theirs.identity, theirs.secret_hash):
            yield Problem("G18", f"{member_id} belongs to another identity, or has another secret")
        elif mine != theirs:
            yield Problem("G12", f"what {member_id} told")


def _as_kept(record: records_pb2.Member) -> records_pb2.Member:
    """A member's record as a snapshot has it: without what this version does not know."""
    member = Member(record.member_id)
    member.adopt(record)
    return member.to_record()


def _of_incremental(said: _Said, group: IncrementalGroup) -> Iterator[Problem]:
    if said.generation is not None:
        yield Problem("G12", f"it is a classic group, in generation {said.generation}")
    if said.epoch not in (None, group.epoch) or said.target_epoch not in (None, group.target_epoch):
        text = f"it is in epoch {said.epoch}, its target of epoch {said.target_epoch}"
        yield Problem("I4", f"{text}, and not {group.epoch} and {group.target_epoch}")
    if said.hold is not None and said.hold != (group.hold,):
        yield Problem("I10", "what holds its moves back")
    for member_id, told in said.told.items():
        member = group.members.get(member_id)
        if (told is None) != (member is None):
            yield Problem("G12", f"{member_id} is a member, or is none")
        elif told is not None and member is not None:
            bound = (member.told.identity, member.told.secret_hash)
            if (told.identity, told.secret_hash) != bound:
                yield Problem("G18", f"{member_id} belongs to another identity, or has another secret")
            elif told != member.told:
                yield Problem("G12", f"what {member_id} told")
    for member_id, epoch in said.epochs.items():
        member = group.members.get(member_id)
        if member is not None and member.epoch != epoch:
            yield Problem("I3", f"{member_id} is at epoch {epoch}, and not {member.epoch}")


# --- classic groups


def _generation_started(said: _Said, message: records_pb2.GenerationStarted) -> None:
    said.is_of_another_kind()
    said.generation = message.generation
    said.members = {row.member_id: row for row in message.members}


def _member_left(said: _Said, message: records_pb2.MemberLeft) -> None:
    if said.members is not None:
        said.members.pop(message.member_id, None)


def _member_replaced(said: _Said, message: records_pb2.MemberReplaced) -> None:
    if said.members is not None:
        said.members.pop(message.old_member_id, None)
        said.members[message.member.member_id] = message.member


def _settings_altered(said: _Said, message: records_pb2.GroupSettingsAltered) -> None:
    said.settings = message.settings


def _offset_tombstone(said: _Said, message: records_pb2.OffsetTombstone) -> None:
    said.offsets.update(dict.fromkeys(partitions_of(message.topics)))


def _unknown(said: _Said, _: Any) -> None:
    """A record that is not followed may change what the group is."""
    said.is_of_another_kind()


# --- incremental groups


def _begin(said: _Said) -> None:
    """The group is an incremental one."""
    if said.generation is not None:
        said.is_of_another_kind()


def _told(said: _Said, member: incremental_pb2.IncrementalMember) -> None:
    _begin(said)
    said.told[member.member_id] = Told.of_record(member)
    said.epochs.pop(member.member_id, None)


def _epoch_raised(said: _Said, message: incremental_pb2.EpochRaised) -> None:
    _begin(said)
    said.epoch = message.epoch


def _target_assigned(said: _Said, message: incremental_pb2.TargetAssigned) -> None:
    _begin(said)
    said.target_epoch = message.epoch
    for change in message.changes:
        said.epochs.pop(change.member_id, None)


def _stepped(said: _Said, message: incremental_pb2.MemberStepped) -> None:
    _begin(said)
    said.epochs[message.member_id] = message.epoch


def _went_away(said: _Said, message: incremental_pb2.MemberWentAway) -> None:
    _begin(said)
    said.epochs[message.member_id] = AWAY


def _instance_moved(said: _Said, message: incremental_pb2.InstanceMoved) -> None:
    _forget(said, [message.old_member_id])
    _told(said, message.member)


def _removed(said: _Said, message: incremental_pb2.MemberRemoved) -> None:
    _begin(said)
    said.hold = None  # the last member takes it with it
    _forget(said, [message.member_id])


def _forget(said: _Said, member_ids: Iterable[str]) -> None:
    for member_id in member_ids:
        said.told[member_id] = None
        said.epochs.pop(member_id, None)


def _held(said: _Said, message: incremental_pb2.MovesHeld) -> None:
    _begin(said)
    if message.until_ms:
        said.hold = (Hold(message.member_id, message.began_ms, message.until_ms, message.is_start),)
    else:
        said.hold = None if said.epoch is None else (Hold(freed_epoch=said.epoch + 1),)


def _reverted(said: _Said, message: records_pb2.GroupReverted) -> None:
    said.is_of_another_kind()
    said.generation = message.generation
    said.members = {row.member_id: row for row in message.members}


def _converted(said: _Said, message: incremental_pb2.GroupConverted) -> None:
    said.is_of_another_kind()
    said.epoch = said.target_epoch = message.generation
    said.told = {member.member_id: Told.of_record(member) for member in message.members}

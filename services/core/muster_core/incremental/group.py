"""An incremental group, as the log has it, and drafts of what a decision makes of it."""

from collections.abc import Collection, ItemsView, Iterator, Mapping, MutableMapping, Set, ValuesView
from dataclasses import replace
from enum import StrEnum
from operator import itemgetter
from typing import Any, Generic, TypeVar

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.incremental.candidate import Candidate
from muster_core.incremental.member import Member, Told
from muster_core.incremental.partitions import NONE, TopicPartition, without
from muster_core.incremental.rollout import Hold
from muster_core.incremental.tally import Tally
from muster_core.position import NOWHERE, Position

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_MEMBER_BYTES = 3_000
_PARTITION_BYTES = 500
"""A partition that a member has: in its list, in its target and among the owners."""
_NAME_BYTES = 150
"""A topic that an expression matches, or that a member names."""
_NO_TOPICS = frozenset[str]()


class IncrementalGroupState(StrEnum):
    """What a group is doing; derived, never stored (conformance GS-01 to GS-05)."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class IncrementalGroup:
    """A group of the incremental kind, without its offsets. Only records change it.

    Attributes:
        epoch: counts changes of what the assignment depends on.
        target_epoch: epoch for which the target was computed.
        server_assignor: what computed it; empty: nothing did.
        topics_hash: of the subscribed topics, when the epoch was raised last; empty: there were none, or
            they were not looked at.
        members: by id.
        candidates: the members as an assignor sees them, but for what their expressions match.
        owners: who has a partition, given back or not.
        wanting: whose target has a partition.
        statics: instance id → member id.
        renewed: topics that were deleted while members had something of them, with the record of that: what
            was given before it is of the topic that is gone.
        expressions: what members subscribe to by expressions → the topics that it matches; one that is
            missing is not resolved yet and matches nothing.
        tally: what its members say of themselves, counted.
        held_bytes: about what its members hold in memory.
        converted: the record by which it became incremental with members; nowhere: it had none.
        converted_generation: its generation by then.
        hold: what members' joins have made of the moves that are held back; None: nothing yet.
    """

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.target_epoch = 0
        self.server_assignor = ""
        self.topics_hash = b""
        self.members: MutableMapping[str, Member] = {}
        self.candidates: MutableMapping[str, Candidate] = {}
        self.owners: MutableMapping[TopicPartition, str] = {}
        self.wanting: MutableMapping[TopicPartition, str] = {}
        self.statics: MutableMapping[str, str] = {}
        self.renewed: Mapping[str, Position] = {}
        self.expressions: MutableMapping[str, frozenset[str]] = {}
        self.tally = Tally()
        self._shares_tally = False
        self.held_bytes = 0
        self.converted = NOWHERE
        self.converted_generation = 0
        self.hold: Hold | None = None

    def draft(self) -> "IncrementalGroup":
        """A copy that shares all that is not changed in it."""
        copy = IncrementalGroup(self.epoch)
        copy.target_epoch, copy.server_assignor = self.target_epoch, self.server_assignor
        copy.topics_hash = self.topics_hash
        copy.members = _Overlay(self.members)
        copy.candidates = _Overlay(self.candidates)
        copy.owners = _Overlay(self.owners)
        copy.wanting = _Overlay(self.wanting)
        copy.statics = _Overlay(self.statics)
        copy.renewed, copy.hold = self.renewed, self.hold
        copy.converted, copy.converted_generation = self.converted, self.converted_generation
        copy.expressions = _Overlay(self.expressions)
        copy.tally, copy._shares_tally = self.tally, True
        return copy

    def as_of_now(self) -> "IncrementalGroup":
        """A copy that stays as it is, whose members are shown some at a time."""
        copy = self.draft()
        copy.members, copy.owners, copy.tally = dict(self.members), dict(self.owners), self.tally.copy()
        return copy

    def in_order(self) -> list[Member]:
        """The members, by id."""
        members = _together(self.members)
        return [members[member_id] for member_id in self.tally.ids]

    def candidates_in_order(self) -> dict[str, Candidate]:
        """The members as an assignor sees them, by id, in order."""
        candidates = _together(self.candidates)
        everybody = {member_id: candidates[member_id] for member_id in self.tally.ids}
        if self.tally.expressions:
            for member_id, member in self.members.items():
                topics = self.topics_of(member.told)
                everybody[member_id] = member.candidate._replace(topics=topics)
        return everybody

    @property
    def state(self) -> IncrementalGroupState:
        """What it is doing."""
        if not self.members:
            return IncrementalGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return IncrementalGroupState.ASSIGNING
        if all(self.is_settled(member) for member in self.members.values()):
            return IncrementalGroupState.STABLE
        return IncrementalGroupState.RECONCILING

    def is_settled(self, member: Member) -> bool:
        """Whether nothing is left to do for a member."""
        if member.told.on_session:
            has_all = len(member.held) == len(member.target)
            return not member.is_away and has_all and self.owes_nothing(member)
        return member.epoch == self.target_epoch and not member.waits and not member.pending

    def epoch_of(self, member: Member) -> int:
        """To which epoch a member was brought.

        A stream member that has nothing to give back is at the target's, and no record says so
        (docs/safety.md, INC-19).
        """
        if member.told.on_session and not member.is_away and self.owes_nothing(member):
            return self.target_epoch
        return member.epoch

    def owes_nothing(self, member: Member) -> bool:
        """Whether all that a member has is in its target, and of no topic that was deleted since."""
        return member.is_within_target and not member.stale(self.renewed)

    @property
    def holds_moves(self) -> bool:
        """Whether a member's join holds back what would move from one living member to another."""
        return self.hold is not None and self.hold.is_on

    @property
    def has_stream_members(self) -> bool:
        """Whether somebody is stepped as soon as something changes."""
        return self.tally.on_session > 0

    @property
    def freed(self) -> frozenset[TopicPartition]:
        """Of a draft: partitions that had an owner and have none."""
        return self.owners.gone if isinstance(self.owners, _Overlay) else frozenset()

    def put(self, member: Member) -> None:
        """Puts a member in the place of the one of its id, and notes who has its partitions.

        Raises:
            ValueError: somebody else has one of them.
        """
        member_id, held = member.member_id, member.held
        before = self.members.get(member_id)
        if before is not None:
            self.held_bytes -= _bytes_of(before)
            if held is not before.held:
                _drop(self.owners, before.held.keys() - held.keys())
            if member.told is not before.told:
                self._forget_instance(before)
        if before is None or held is not before.held:
            kept = before.held if before is not None else {}
            self._own(held.keys() - kept.keys() if kept else held.keys(), member_id)
        self.members[member_id], self.candidates[member_id] = member, member.candidate
        self._note(before, member)
        self.held_bytes += _bytes_of(member)
        if instance_id := member.told.group_instance_id:
            self.statics[instance_id] = member_id

    def _own(self, partitions: Set[TopicPartition], member_id: str) -> None:
        """Notes who has partitions, of which there may be a hundred thousand.

        Raises:
            ValueError: somebody else has one of them.
        """
        owners = self.owners
        if taken := among(owners, partitions):
            partition = next(iter(taken))
            raise ValueError(f"{partition} is given to {member_id!r} while {owners[partition]!r} has it")
        owners.update(dict.fromkeys(partitions, member_id))

    def _note(self, before: Member | None, after: Member | None) -> None:
        """Notes what a member says, and what its target has, in the place of what it did."""
        told_before = before.told if before is not None else None
        told = after.told if after is not None else None
        if told is not told_before:
            if self._shares_tally:  # a group may name ten thousand topics, and most heartbeats none
                self.tally, self._shares_tally = self.tally.copy(), False
            self.tally.exchange(told_before, told)
        wanted = before.target if before is not None else NONE
        wants = after.target if after is not None else NONE
        if wants is not wanted:
            if before is not None:
                wanting = self.wanting  # of two changes of a target the one that gives may be first
                given_up = without(wanted, wants)
                _drop(wanting, [one for one in given_up if wanting.get(one) == before.member_id])
            if after is not None:
                self.wanting.update(dict.fromkeys(without(wants, wanted), after.member_id))

    def renew(self, topics: Collection[str], position: Position) -> None:
        """Topics were deleted: what members have of them is not of a later topic of the name (INC-50)."""
        owned = {*topics, *self.renewed}.intersection(map(itemgetter(0), self.owners))
        for member in () if owned.isdisjoint(topics) else tuple(self.members.values()):
            # Whoever owes something now keeps its epoch (INC-19).
            if member.told.on_session and any(topic in topics for topic, _ in member.held):
                self.members[member.member_id] = replace(member, epoch=self.epoch_of(member))
        before = {topic: at for topic, at in self.renewed.items() if topic in owned}
        self.renewed = before | {topic: position for topic in topics if topic in owned}

    def committed(self, member_id: str, seq: int) -> None:
        """Notes the number of a commit that is stored."""
        member = self.members.get(member_id)
        if member is not None and seq > member.commit_seq:
            self.members[member_id] = member.with_commit(seq)

    def remove(self, member_id: str) -> None:
        """Takes a member out; what it had is free.

        Raises:
            KeyError: there is no such member.
        """
        member = self.members.pop(member_id)
        del self.candidates[member_id]
        self._note(member, None)
        self.held_bytes -= _bytes_of(member)
        _drop(self.owners, member.held)
        self._forget_instance(member)

    def _forget_instance(self, member: Member) -> None:
        instance_id = member.told.group_instance_id
        if instance_id and self.statics.get(instance_id) == member.member_id:
            del self.statics[instance_id]

    def topics_of(self, told: Told) -> frozenset[str]:
        """What a member subscribes to, by name and by its expression (conformance TA-08, RC-27)."""
        if not told.topic_regex:
            return told.topics
        return told.topics | self.expressions.get(told.topic_regex, _NO_TOPICS)

    @property
    def wants_alike(self) -> bool:
        """Whether all members subscribe to the same topics, by name or by an expression."""
        if self.expressions:
            return len({self.topics_of(member.told) for member in self.members.values()}) == 1
        return self.names_alike

    @property
    def names_alike(self) -> bool:
        """Whether all members name the same topics."""
        everybody = len(self.members)
        return all(count == everybody for count in self.tally.topics.values())

    def uses(self, expression: str) -> bool:
        """Whether a member subscribes to an expression."""
        return expression in self.tally.expressions

    @property
    def knows_matches(self) -> bool:
        """Whether it is known of each expression that members subscribe to what it matches."""
        return self.expressions.keys() >= self.tally.expressions.keys()

    def resolve(self, expression: str, topics: frozenset[str]) -> None:
        """Notes what an expression matches.

        Raises:
            ValueError: nobody subscribes to it.
        """
        if not self.uses(expression):
            raise ValueError(f"nobody subscribes to {expression!r}")
        self.forget(expression)
        self.expressions[expression] = topics
        self.held_bytes += _NAME_BYTES * len(topics)

    def forget(self, expression: str) -> None:
        """Drops what an expression matches."""
        self.held_bytes -= _NAME_BYTES * len(self.expressions.pop(expression, _NO_TOPICS))

    def static_member(self, instance_id: str) -> Member | None:
        """The member with a group instance id; None: there is none."""
        member_id = self.statics.get(instance_id)
        return None if member_id is None else self.members[member_id]


def code_of_absent(group: IncrementalGroup | None, member_id: str) -> ErrorCode:
    """The answer to a classic call of who is no classic member (docs/safety.md, INC-73)."""
    if group is not None and group.converted != NOWHERE and member_id in group.members:
        return error_code.GROUP_CONVERTED
    return error_code.UNKNOWN_MEMBER_ID


def _bytes_of(member: Member) -> int:
    partitions = max(len(member.held), len(member.target))
    names = len(member.told.topics) + len(member.told.classic_protocols)
    return _MEMBER_BYTES + _PARTITION_BYTES * partitions + _NAME_BYTES * names


def _together(mapping: MutableMapping[_Key, _Value]) -> Mapping[_Key, _Value]:
    """A mapping that is as quick as a dict, for who looks at all of it."""
    return mapping.everything() if isinstance(mapping, _Overlay) else mapping


def among(mapping: Mapping[_Key, _Value], keys: Set[_Key]) -> Set[_Key]:
    """Those of some keys that a mapping has."""
    return mapping.among(keys) if isinstance(mapping, _Overlay) else _those_in(mapping, keys)


def _those_in(mapping: Mapping[_Key, _Value], keys: Set[_Key]) -> set[_Key]:
    """As `&` of the keys says it; that takes three times as long for a hundred thousand of them."""
    return {key for key in keys if key in mapping} if mapping else set()


def _drop(mapping: MutableMapping[_Key, _Value], keys: Collection[_Key]) -> None:
    """Takes keys out of a mapping that has them."""
    if isinstance(mapping, _Overlay):
        mapping.drop(keys)
    else:
        for key in keys:
            del mapping[key]


class _Overlay(MutableMapping[_Key, _Value], Generic[_Key, _Value]):
    """A mapping over another one, which it does not change."""

    def __init__(self, below: Mapping[_Key, _Value]) -> None:
        self._below = below
        self._put: dict[_Key, _Value] = {}
        self._gone: set[_Key] = set()

    @property
    def gone(self) -> frozenset[_Key]:
        """Keys of the other one that are not in this one."""
        return frozenset(self._gone)

    def __getitem__(self, key: _Key) -> _Value:
        if key in self._put:
            return self._put[key]
        if key in self._gone:
            raise KeyError(key)
        return self._below[key]

    def __setitem__(self, key: _Key, value: _Value) -> None:
        self._put[key] = value
        self._gone.discard(key)

    def __delitem__(self, key: _Key) -> None:
        if key not in self:
            raise KeyError(key)
        self._put.pop(key, None)
        if key in self._below:
            self._gone.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self._put or (key not in self._gone and key in self._below)

    def get(self, key: _Key, default: Any = None) -> Any:
        """As of any mapping; the mixin's raises and catches an error for each key that is not there."""
        if key in self._put:
            return self._put[key]
        return default if key in self._gone else self._below.get(key, default)

    def drop(self, keys: Collection[_Key]) -> None:
        """See `_drop`."""
        for key in keys:
            self._put.pop(key, None)
        self._gone |= {key for key in keys if key in self._below}

    def among(self, keys: Set[_Key]) -> Set[_Key]:
        """See `among`: what the mixin does key by key."""
        below = _those_in(self._below, keys) - self._gone
        return below | _those_in(self._put, keys)

    def update(self, other: Mapping[_Key, _Value]) -> None:  # type: ignore[override]  # of its many forms this one
        """Puts all of another mapping."""
        self._put.update(other)
        if self._gone:
            self._gone.difference_update(other)

    def __iter__(self) -> Iterator[_Key]:
        return iter(self.everything())

    def items(self) -> ItemsView[_Key, _Value]:
        """What is in it now; a later change does not change them."""
        return self.everything().items()

    def values(self) -> ValuesView[_Value]:
        """The values that are in it now; a later change does not change them."""
        return self.everything().values()

    def __len__(self) -> int:
        return len(self._below) - len(self._gone) + sum(key not in self._below for key in self._put)

    def everything(self) -> Mapping[_Key, _Value]:
        """Everything in one mapping: a decision looks at each member more than once."""
        if not self._put and not self._gone:
            return self._below
        both = {**self._below, **self._put}
        for key in self._gone:
            del both[key]
        return both

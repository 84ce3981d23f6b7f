"""A group: its members, its generation and the choice of a protocol. Data and rules, no effects."""

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2

from muster_core import error_code
from muster_core.error_code import ErrorCode
from muster_core.incremental.group import IncrementalGroup, code_of_absent
from muster_core.incremental.targets.target import subscribed_topics
from muster_core.position import Position
from muster_core.record_bounds import utf8_bytes
from muster_core.state.group_settings import NO_SETTINGS
from muster_core.state.group_state import PREDECESSORS, GroupState, check_transition
from muster_core.state.history import History
from muster_core.state.holdings import (
    COPIES,
    GROUP_BYTES,
    KEPT_TOKEN_BYTES,
    MEMBER_BYTES,
    OWNED_PARTITION_BYTES,
    Holdings,
)
from muster_core.state.line import Line
from muster_core.state.members.claims import topics_claimed
from muster_core.state.members.member import Member
from muster_core.state.members.member_ids import MemberIds
from muster_core.state.members.member_secret import OPEN, Lock, lock_of
from muster_core.state.members.protocols import Protocols, Supporters
from muster_core.state.offsets.offset_store import OffsetStore
from muster_core.state.offsets.reported_ends import ReportedEnds
from muster_core.state.plan import Plan
from muster_core.state.published import TopicPartition, topics_in
from muster_core.waiting.timing_wheel import Timer

CONSUMER = "consumer"
"""Protocol type of groups whose metadata are published subscriptions."""

_NOBODY = ("", None)
_NO_TOPICS = frozenset[str]()
_NO_OWNED_TOPICS = (None, frozenset[str]())
_NONE_OWNED: tuple[object, dict[str, list[TopicPartition]]] = (None, {})


class Group:
    """One group.

    What the log knows (generation, members of it, assignment, offsets) changes only when a record was
    acknowledged; what is only in memory (parked calls, members in their first join phase, pending ids)
    changes at once.

    Attributes:
        group_id: its id.
        state: its state, as in Kafka.
        state_since_ms: since when, wall clock.
        generation: its present generation; 0: none yet.
        assigned_generation: the generation of its last stored assignment.
        protocol_type: kind of the group; empty: simple.
        protocol_name: protocol of the present generation; empty: none.
        leader: leader of the present generation, or who will be; empty: none.
        members: by id, in the order in which they came.
        static_members: instance id → member id.
        pending_sync: members that got the generation and have not synced.
        to_release: members that were not given all that they keep, and have not joined again, with that as
            `Claims.unmet_by_plan` writes it; empty: it was not written yet.
        new_member_added: whether somebody joined since the initial delay was last armed (KIP-134).
        cause: why the running rebalance, or the present generation, was started.
        unfinished: why a rebalance has to follow what the log says, until the next generation.
        owners: published assignments: partition → (member id, position that gave it).
        renewed_topics: topics that were deleted since the last assignment, or while members had to release
            what they kept of them: nothing of that is of a later topic of these names.
        subscribed_topics: topics of published subscriptions; None: not known.
        offsets: committed offsets.
        ends: where the work of its partitions ends, as far as members reported it.
        history: the last generations.
        incremental: what it is as an incremental group, whose epoch is the generation; None: it is classic.
        reverted: whether it is classic again, and has no assignment since (docs/safety.md, INC-151).
        planned: what its leader has handed in and is on its way to the log; None: nothing.
        settings: what is set for it, whatever kind it is of; replaced, never changed.
        stored: whether a record of it is in the log; without one it is gone with its last member and id.
        line: what waits for a record of it that is on its way to the log, or for its next turn.
        held_bytes: about what it takes in memory, as it was counted last; 0: it is not counted.
    """

    __slots__ = (
        "__weakref__",
        "_assigned_bytes",
        "_counted_size",
        "_holdings",
        "_ids",
        "_own_bytes",
        "_owned",
        "_owned_topics",
        "_parked_joins",
        "_peopled",
        "_size_bytes",
        "_supporters",
        "_topics_of",
        "assigned_generation",
        "cause",
        "ends",
        "generation",
        "group_id",
        "held_bytes",
        "history",
        "incremental",
        "leader",
        "line",
        "members",
        "new_member_added",
        "offsets",
        "owners",
        "pending_sync",
        "planned",
        "protocol_name",
        "protocol_type",
        "renewed_topics",
        "reverted",
        "settings",
        "state",
        "state_since_ms",
        "static_members",
        "stored",
        "subscribed_topics",
        "to_release",
        "unfinished",
    )

    def __init__(self, group_id: str, now_wall_ms: int, history_length: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_since_ms = now_wall_ms
        self.generation = 0
        self.assigned_generation = 0
        self.protocol_type = ""
        self.protocol_name = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_sync: set[str] = set()
        self.to_release: dict[str, bytes] = {}
        self.new_member_added = False
        self.cause: common_pb2.RebalanceCause | None = None
        self.unfinished: common_pb2.RebalanceCause | None = None
        self.owners: dict[TopicPartition, tuple[str, Position]] = {}
        self._owned = _NONE_OWNED
        self._owned_topics: tuple[object, frozenset[str]] = _NO_OWNED_TOPICS
        self.renewed_topics = _NO_TOPICS
        self.subscribed_topics: frozenset[str] | None = _NO_TOPICS
        self.offsets = OffsetStore()
        self.ends = ReportedEnds()
        self.history = History(history_length)
        self.incremental: IncrementalGroup | None = None
        self.reverted = False
        self.planned: Plan | None = None
        self.settings = NO_SETTINGS
        self.stored = True
        self.line = Line()
        self._supporters = Supporters()
        self._topics_of: tuple[str, str] | None = None  # for which type and protocol the topics were read
        self._ids = MemberIds()
        self._own_bytes = GROUP_BYTES + utf8_bytes(group_id)
        self._size_bytes = 0
        self._parked_joins = 0
        self._assigned_bytes = 0
        self._holdings: Holdings | None = None
        self._peopled: dict[str, Group] | None = None
        self._counted_size = (0, 0)
        self.held_bytes = 0

    # --- what it holds

    def list_in(self, peopled: "dict[str, Group] | None") -> None:
        """Lists itself there whenever it is peopled, but never leaves there; None: nowhere any more."""
        self._peopled = peopled
        self._list()

    def _list(self) -> None:
        if self._peopled is not None and self.is_peopled:
            self._peopled[self.group_id] = self

    @property
    def is_peopled(self) -> bool:
        """Whether it owns something, or may claim or report it. Many others may only commit."""
        return bool(self.members or self.owners or self.incremental is not None or self.ends.held_bytes)

    def count_in(self, holdings: Holdings) -> None:
        """Counts what it holds there from now on."""
        self.count_out()
        self._holdings = holdings
        self.weigh()

    def count_out(self) -> None:
        """Counts what it holds nowhere: it is in no shard that serves, or not any more."""
        if self._holdings is not None:
            self._holdings.bytes -= self.held_bytes
            self._resize(self._holdings, (0, 0))
        self._holdings = None
        self.held_bytes = 0

    def weigh(self) -> None:
        """Counts what it holds; as fast with many members and offsets as with few."""
        self._list()
        if self._owned[0] is not self.owners:
            self._owned = _NONE_OWNED  # what members owned by a plan before counts nowhere: megabytes
        if self._owned_topics[0] is not self.owners:
            self._owned_topics = _NO_OWNED_TOPICS
        if self._holdings is None:
            return
        held_bytes = self.weight_bytes
        self._holdings.bytes += held_bytes - self.held_bytes
        self.held_bytes = held_bytes
        self._resize(self._holdings, self.size)

    @property
    def size(self) -> tuple[int, int]:
        """How many members it has, of either kind, and how many committed partitions."""
        incremental = self.incremental
        return len(self.members) + (len(incremental.members) if incremental else 0), len(self.offsets)

    def _resize(self, holdings: Holdings, size: tuple[int, int]) -> None:
        if size != self._counted_size:
            self._counted_size = size
            holdings.resized(self.group_id, *size)

    @property
    def weight_bytes(self) -> int:
        """What it holds now, also where it counts nowhere yet."""
        return (
            self._own_bytes
            + MEMBER_BYTES * len(self.members)
            + COPIES * self._size_bytes
            + self._ids.pending_bytes
            + self._assigned_bytes
            + OWNED_PARTITION_BYTES * len(self.owners)
            + self.offsets.held_bytes
            + self.ends.held_bytes
            + self.history.held_bytes
            + (self.incremental.held_bytes if self.incremental is not None else 0)
        )

    @property
    def assigned_bytes(self) -> int:
        """About what its assignment takes in memory."""
        return self._assigned_bytes + OWNED_PARTITION_BYTES * len(self.owners)

    def owned_of(self, topics: frozenset[str]) -> frozenset[str]:
        """Those of some topics of which members own something, of two hundred thousand partitions perhaps."""
        if self.incremental is not None:
            return topics.intersection(map(itemgetter(0), self.incremental.owners))
        if self._owned_topics[0] is not self.owners:  # `hand_on` changes who owns them alone
            self._owned_topics = self.owners, frozenset(map(itemgetter(0), self.owners))
        return topics & self._owned_topics[1]

    def renew(self, topics: frozenset[str]) -> bool:
        """Topics were deleted; whether members own anything of them, or have yet to release it."""
        owned = self.owned_of(topics)
        if self.incremental is not None:
            return bool(owned)
        if not topics.isdisjoint(self.subscribed_topics or topics):
            owned |= topics & topics_claimed(self.members.values())
        self.renewed_topics |= owned
        return bool(owned)

    # --- states

    def become(self, state: GroupState, wall_ms: int) -> None:
        """Moves to a state.

        Raises:
            IllegalTransition: the table does not have the move.
        """
        if self.state not in PREDECESSORS[state]:  # two moves for each generation of a load
            check_transition(self.group_id, self.state, state)
        self.state = state
        self.state_since_ms = wall_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may start (conformance ST-10)."""
        return self.state in (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)

    @property
    def is_vacant(self) -> bool:
        """Whether it has no members, of either kind."""
        return self.state is GroupState.EMPTY and (self.incremental is None or not self.incremental.members)

    @property
    def is_simple(self) -> bool:
        """Whether it only ever held offsets."""
        return self.protocol_type == "" and self.incremental is None

    @property
    def has_members(self) -> bool:
        """Whether it has members, of either kind."""
        return bool(self.members) or (self.incremental is not None and bool(self.incremental.members))

    def owner_of(self, partition: TopicPartition) -> str:
        """Who has a partition by the log; empty: nobody, or that is not known."""
        if self.incremental is not None:
            return self.incremental.owners.get(partition, "")
        return self.owners.get(partition, _NOBODY)[0]

    def holder_of(self, instance_id: str) -> str:
        """The member that has a static id; empty: none."""
        statics = {} if self.incremental is None else self.incremental.statics
        return statics.get(instance_id) or self.static_members.get(instance_id, "")

    # --- members

    def add(self, member: Member) -> None:
        """Takes a member in. The first one gives the group its kind and leads it (conformance JG-35).

        Raises:
            ValueError: its instance id is taken (conformance SM-36).
        """
        self.add_unweighed(member)
        self.weigh()

    def add_unweighed(self, member: Member) -> None:
        """As `add`; `weigh` follows the last of many.

        Raises:
            ValueError: as `add`.
        """
        member_id, instance_id = member.member_id, member.group_instance_id
        if instance_id:
            if instance_id in self.static_members:
                raise ValueError(f"instance {instance_id!r} is taken in group {self.group_id!r}")
            self.static_members[instance_id] = member_id
        else:
            self._ids.take(member_id)
        self.members[member_id] = member
        self._supporters.add(member.terms.protocols)
        self._topics_of = None
        self._size_bytes += member.size_bytes
        self._assigned_bytes += _assigned_bytes(member)
        if not self.leader:
            self.leader = member_id

    def member_of(self, member_id: str, group_instance_id: str) -> Member | None:
        """The member that a caller is, by its id or, where it gives none, by its instance id."""
        return self.members.get(member_id or self.static_members.get(group_instance_id, ""))

    def remove(self, member_id: str) -> Member | None:
        """Takes a member out; any other one leads if it did (conformance JG-37)."""
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._supporters.remove(member.terms.protocols)
        self._topics_of = None
        self._size_bytes -= member.size_bytes
        self._assigned_bytes -= _assigned_bytes(member)
        self._ids.forget(member_id)
        if self.static_members.get(member.group_instance_id) == member_id:
            del self.static_members[member.group_instance_id]
        self.pending_sync.discard(member_id)
        self.to_release.pop(member_id, None)
        self.unpark_join(member)
        if self.leader == member_id:
            self.leader = next(iter(self.members), "")
        self.weigh()
        return member

    def replace(self, old_member_id: str, new_member_id: str) -> Member:
        """Gives a static member a new id; leadership and place follow (conformance SM-38).

        Raises:
            KeyError: there is no such member (conformance SM-37).
        """
        member = self.members[old_member_id]
        was_leader = self.leader == old_member_id
        self.members = {
            (new_member_id if key == old_member_id else key): value for key, value in self.members.items()
        }
        self._size_bytes += utf8_bytes(new_member_id) - utf8_bytes(old_member_id)
        member.member_id = new_member_id
        self.static_members[member.group_instance_id] = new_member_id
        self.to_release.pop(old_member_id, None)  # the process that kept something is fenced
        if old_member_id in self.pending_sync:
            self.pending_sync.remove(old_member_id)
            self.pending_sync.add(new_member_id)
        if was_leader:
            self.leader = new_member_id
        self.weigh()
        return member

    def set_protocols(self, member: Member, change: Callable[[], None]) -> None:
        """Runs a change of a member's protocols and keeps the supporters right (ST-16)."""
        before = member.terms.protocols
        self._size_bytes -= member.size_bytes
        change()
        self._size_bytes += member.size_bytes
        if member.terms.protocols != before:
            self._topics_of = None
        if member.terms.protocols.names != before.names:
            self._supporters.remove(before)
            self._supporters.add(member.terms.protocols)
        self.weigh()

    def assign(
        self, member: Member, assignment: bytes, kept_tokens: Sequence[records_pb2.KeptToken] = ()
    ) -> None:
        """Gives a member its assignment, with the tokens that it keeps; `weigh` follows the last of them."""
        self._assigned_bytes += COPIES * (len(assignment) - len(member.assignment))
        self._assigned_bytes += KEPT_TOKEN_BYTES * (len(kept_tokens) - len(member.kept_tokens))
        member.assignment, member.kept_tokens = assignment, kept_tokens

    def park_join(self, member: Member, call_id: int) -> None:
        """Notes that the member waits for the end of the join phase."""
        if member.join_call is None:
            self._parked_joins += 1
        member.join_call = call_id

    def unpark_join(self, member: Member) -> int | None:
        """Notes that it does not any more; returns its call."""
        call_id, member.join_call = member.join_call, None
        if call_id is not None:
            self._parked_joins -= 1
        return call_id

    @property
    def parked_joins(self) -> int:
        """Number of members that wait for the end of the join phase."""
        return self._parked_joins

    @property
    def all_joined(self) -> bool:
        """Whether everybody is back, those with a pending id included (conformance PM-03)."""
        return self._parked_joins == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asks the others to wait (conformance RT-04)."""
        return max((member.terms.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def size_bytes(self) -> int:
        """About what its members take in the record of a generation."""
        return self._size_bytes

    # --- ids

    @property
    def pending_members(self) -> dict[str, Timer]:
        """Ids given out and not yet used, with their timers (KIP-394)."""
        return self._ids.pending

    def give_out(self, member_id: str, timer: Timer, identity: str = "", lock: Lock = OPEN) -> None:
        """Notes an id that a new dynamic member was given and has not used yet; see `MemberIds.give_out`."""
        self._ids.give_out(member_id, timer, identity, lock)
        self.weigh()

    def take_back(self, member_id: str) -> Timer | None:
        """Forgets such an id, which nobody will use; returns its timer, None: it was not given out."""
        if (timer := self._ids.use(member_id)) is not None:
            self._ids.forget(member_id)
            self.weigh()
        return timer

    def use(self, member_id: str) -> Timer | None:
        """Makes such an id a member's, whom `add` follows; returns its timer, None: it was not given out."""
        return self._ids.use(member_id)

    def identity_of(self, member_id: str) -> str:
        """Whom a member belongs to, or an id that was not used yet; empty: nobody, or there is none."""
        member = self.members.get(member_id)
        if member is None and self.incremental is not None and member_id in self.incremental.members:
            return self.incremental.members[member_id].told.identity
        return self._ids.identity_of(member_id) if member is None else member.identity

    def lock_of(self, member_id: str) -> Lock:
        """What the secret of a caller with this id is compared with, be it a member's or not used yet."""
        member = self.members.get(member_id)
        if member is None and self.incremental is not None and member_id in self.incremental.members:
            return lock_of(self.incremental.members[member_id].told.secret_hash)
        return self._ids.lock_of(member_id) if member is None else member.lock

    def id_made_for(self, join: str) -> str:
        """The id of the dynamic member that this join made, also one not used yet; empty: none."""
        return self._ids.made_for(join)

    # --- faults

    def identity_fault(self, member_id: str, group_instance_id: str) -> ErrorCode | None:
        """What is wrong with who the caller says it is (conformance SM-26 to SM-30); None: nothing."""
        if group_instance_id:
            mapped = self.static_members.get(group_instance_id)
            if mapped is None:
                return error_code.UNKNOWN_MEMBER_ID
            if mapped != member_id:
                return error_code.FENCED_INSTANCE_ID
        return None if member_id in self.members else error_code.UNKNOWN_MEMBER_ID

    def fault_of(self, member_id: str, group_instance_id: str, generation: int) -> ErrorCode | None:
        """What is wrong with the caller's identity or generation (conformance SG-06, HB-09); None: nothing.

        Who is about to go is told to try again: a Heartbeat or an Attach does not wait until that is known.
        """
        fault = self.identity_fault(member_id, group_instance_id) if group_instance_id else None
        if fault is not None and self.members:
            return fault
        member = self.members.get(member_id)
        if member is None:
            return code_of_absent(self.incremental, member_id)
        if member.going:
            return error_code.COORDINATOR_NOT_AVAILABLE
        if generation != self.generation:
            return error_code.ILLEGAL_GENERATION
        return None

    # --- protocols

    def accepts_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member of this kind with these protocols may join (conformance JG-42, JG-43).

        Nobody may without a protocol, also where a join phase has lost all its members: there would be none
        to choose for its generation.
        """
        if not protocol_type or not protocols:
            return False
        if self.state is GroupState.EMPTY:
            return True
        fits = not self._supporters or not self._supporters.by_all.isdisjoint(protocols.names)
        return fits and protocol_type == self.protocol_type

    @property
    def common_protocols(self) -> frozenset[str]:
        """What every member supports."""
        return self._supporters.by_all

    def hand_on(self, member_id: str, to_member_id: str, since: Position) -> None:
        """What a member owns is another one's since that position.

        What it owns is looked for once for a plan, which may give two hundred thousand partitions.
        """
        of, owned = self._owned
        if of is not self.owners:
            owned = {}
            for partition, (owner, _) in self.owners.items():
                owned.setdefault(owner, []).append(partition)
            self._owned = self.owners, owned
        partitions = owned.pop(member_id, None)
        if partitions:
            owned[to_member_id] = partitions
            self.owners.update(zip(partitions, repeat((to_member_id, since))))

    # --- published subscriptions

    def recompute_subscribed_topics(self) -> None:
        """Reads the topics from the members' metadata; unknown if any is foreign (LD-17 to LD-19)."""
        name = self.protocol_name
        if self._topics_of == (self.protocol_type, name):
            return  # nobody came, went or said anything else since
        self.subscribed_topics = None
        if self.protocol_type == CONSUMER:
            self.subscribed_topics = topics_in(one.metadata_for(name) for one in self.members.values())
        self._topics_of = self.protocol_type, name

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member wants the topic; with an unknown subscription yes (conformance ST-13)."""
        if self.incremental is not None:
            return topic in subscribed_topics(self.incremental)
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed_topics


def _assigned_bytes(member: Member) -> int:
    """About what the assignment of a member takes in memory, without what its partitions are kept in."""
    return COPIES * len(member.assignment) + KEPT_TOKEN_BYTES * len(member.kept_tokens)

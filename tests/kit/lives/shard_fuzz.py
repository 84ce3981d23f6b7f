"""Random lives of a shard: what it serves is what its log says, and its log breaks no promise.

Beside the calls of `kit.lives.core_fuzz` there are two groups, topics that are deleted and created again,
streams that are not sure, features that are enabled late, groups in quarantine and owners after each other.
After each step the live state is compared with a replay of what is acknowledged; at each change of the owner
a replay is compared with one that began with a snapshot; at the end the whole log is checked as `muster
verify` does.
"""

import random
from collections.abc import Callable
from typing import Any

from kit.lives.played import Differs, played
from kit.lives.virtual_shard import VirtualShard
from kit.logs.core_audit import broken_promises
from kit.logs.snapshots import pictures, through_snapshot
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import (
    Attach,
    Beat,
    Detach,
    FeaturesEnabled,
    GroupRequest,
    StreamBroken,
    TopicsChanged,
    Unload,
)
from muster_core.features import ALL_FEATURES, NO_FEATURES, Feature
from muster_core.protocol.room import Room
from muster_core.record_bounds import utf8_bytes
from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.holdings import (
    COPIES,
    END_BYTES,
    GROUP_BYTES,
    KEPT_TOKEN_BYTES,
    MEMBER_BYTES,
    OFFSET_BYTES,
    OWNED_PARTITION_BYTES,
    PENDING_MEMBER_BYTES,
)
from muster_core.state.members.claims import topics_claimed
from muster_core.state.offsets.offset_store import weight_of
from muster_core.state.quarantine import Quarantine
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2

CONFIG = GroupConfig(
    min_session_timeout_ms=50,
    initial_rebalance_delay_ms=50,
    max_size=4,
    max_pending_members=4,
    max_new_groups_per_shard=3,
    max_groups_per_shard=5,
    offsets_retention_ms=4_000,
    retention_check_interval_ms=900,
    append_timeout_ms=700,
    history_length=4,
    history_moves=2,
)
LENGTH = 200
REUSED_ID = "M4"
"""Not looked at: a member id made from a `request_id` may come back."""

_KEPT_IDS = 6
_SECRETS = {"g": b"", "h": b"a member's secret"}
_STREAMS = (1, 2, 3)


def life(seed: int, length: int = LENGTH) -> "ShardLife":
    """Plays the life of a seed to its end.

    Raises:
        Differs: see there.
        Exception: whatever the core raises.
    """
    return played(ShardLife(random.Random(seed)), length)


class ShardLife:
    """A shard and its callers, who remember the member ids that they were given.

    Args:
        source: of all draws.

    Attributes:
        steps: what happened, for people.
        generations: how many generations the log has.
    """

    def __init__(self, source: random.Random) -> None:
        self.steps: list[str] = []
        self._draw = source
        features = self._draw.choice(
            [ALL_FEATURES, ALL_FEATURES, NO_FEATURES, frozenset({Feature.UNSURE_BEATS})]
        )
        self._sizes: dict[str, tuple[int, int]] = {}
        self.cluster = VirtualShard(CONFIG, features=features, room=Room(resized=self._resized))
        self._features = features
        self._held: frozenset[str] = frozenset()
        self._ids: dict[str, list[str]] = {"g": [], "h": []}
        self._groups: dict[int, str] = {}
        self._overclaimed: set[str] = set()
        self._rejoined: set[str] = set()
        self._catalog = Catalog(5, {"t": 2, "u": 2}, {})
        self._heard = 5
        self._beats = dict.fromkeys(_STREAMS, 0)
        self._hear(frozenset())
        self._replay, self._seen = Shard(0, CONFIG), 0
        self._said: dict[str, dict[str, Any]] = {}
        self._actions: list[tuple[int, Callable[[str], None]]] = [
            (30, self._join),
            (20, self._sync),
            (4, self._heartbeat),
            (4, self._leave),
            (10, self._commit),
            (2, self._delete),
            (3, self._ask),
            (3, self._cancel),
            (8, self._time_passes),
            (8, self._log),
            (4, self._stream),
            (2, self._lease),
            (2, self._topic),
            (1, self._another_owner),
        ]

    @property
    def generations(self) -> int:
        return self.cluster.kinds().count("generation_started")

    def step(self) -> None:
        """Lets something happen."""
        weights = [weight for weight, _ in self._actions]
        (_, act) = self._draw.choices(self._actions, weights)[0]
        group_id = self._draw.choice("gggh")
        self.steps.append(f"{act.__name__.strip('_')} {group_id}")
        act(group_id)
        self._take_answers()

    # --- calls

    def _join(self, group_id: str) -> None:
        pick = self._draw.choice
        member_id = self._member_id(group_id)
        static = self._instance_of(group_id, member_id) if member_id else pick(["", "", "i", "j"])
        names = pick(["x y"] * 7 + ["x", "y", ""]).split()
        metadata = pick(_METADATA)
        if metadata in _CLAIMING and "t" not in self._owned_topics(group_id):
            self._overclaimed.add(group_id)
        request = coordinator_pb2.JoinGroupRequest(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=static,
            session_timeout_ms=pick([50, 1_000, 1_000]),
            rebalance_timeout_ms=pick([0, 10, 500, 500]),
            disconnect_grace_ms=pick([0, 30, 30, 2_000]),
            protocol_type=pick(["consumer"] * 12 + ["other", ""]),
            protocols=[coordinator_pb2.GroupProtocol(name=name, metadata=metadata) for name in names],
            member_seq=pick([0, 0, 1, 2, 3]),
            request_id=pick(["", f"r{self._draw.randrange(10**9)}"]),
            client_id=pick(["", "c", "come back within 9.9.9 s"]),
            member_secret=_SECRETS[group_id],
        )
        self._call(request, group_id)

    def _sync(self, group_id: str) -> None:
        group = self._group(group_id)
        leads = group is not None and group.leader and self._draw.random() < 0.5
        member_id = group.leader if group is not None and leads else self._member_id(group_id)
        members = list(group.members) if group is not None else self._ids[group_id]
        plan = [
            coordinator_pb2.SyncGroupRequest.Assignment(
                member_id=one, assignment=self._draw.choice(_ASSIGNMENTS)
            )
            for one in members
        ]
        request = coordinator_pb2.SyncGroupRequest(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=self._instance_of(group_id, member_id),
            generation=self._generation(group_id),
            member_secret=_SECRETS[group_id],
            assignments=plan,
        )
        self._call(request, group_id)

    def _heartbeat(self, group_id: str) -> None:
        member_id = self._member_id(group_id)
        request = coordinator_pb2.HeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=self._instance_of(group_id, member_id),
            generation=self._generation(group_id),
            member_secret=_SECRETS[group_id],
        )
        self._call(request, group_id)

    def _leave(self, group_id: str) -> None:
        request = coordinator_pb2.LeaveGroupRequest(group_id=group_id)
        for _ in range(self._draw.choice([1, 1, 2, 3])):
            member_id = self._member_id(group_id)
            static = self._instance_of(group_id, member_id)
            request.members.add(
                member_id=member_id,
                group_instance_id=static,
                reason="bye...",
                member_secret=_SECRETS[group_id],
            )
        self._call(request, group_id)

    def _commit(self, group_id: str) -> None:
        """Mostly one; or some of a member in several topics, while others are in line."""
        group = self._group(group_id)
        if group is None or not group.members or self._draw.random() < 0.8:
            member_id = self._member_id(group_id) if self._draw.random() < 0.8 else ""
            self._commit_of(member_id, group_id, self._draw.choice([1, 1, 2]))
            return
        member_id = self._draw.choice(sorted(group.members))
        for _ in range(4):
            self._commit_of(member_id, group_id, 3)
            self._draw.choice([self._join, self._sync, self._leave])(group_id)

    def _commit_of(self, member_id: str, group_id: str, topics: int) -> None:
        pick = self._draw.choice
        request = coordinator_pb2.OffsetCommitRequest(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=self._instance_of(group_id, member_id) if member_id else "",
            generation=self._generation(group_id) if member_id else -1,
            member_seq=pick([0, 1, 2, 3, 4, 5]) if member_id else 0,
            member_secret=_SECRETS[group_id],
            retention_ms=pick([0, 0, 0, 500]),
        )
        for name in self._draw.sample(["t", "u", "w"], topics):
            topic = request.topics.add(name=name)
            for number in self._draw.sample(range(3), pick([1, 1, 2])):
                text = pick(["", "", "m", "a longer one"])
                offset = self._draw.randrange(100)
                topic.partitions.add(partition=number, offset=offset, leader_epoch=-1, metadata=text)
        if self._draw.random() < 0.4:
            ends = request.ends.add(name=pick(["t", "u"]))
            for number in range(3):
                ends.partitions.add(partition=number, end=self._draw.randrange(100))
        self._call(request, group_id)

    def _delete(self, group_id: str) -> None:
        if self._draw.random() < 0.5:
            ids = self._draw.choice([["g"], ["h"], ["g", "h", "nobody"]])
            self._call(coordinator_pb2.DeleteGroupsRequest(group_ids=ids), group_id)
        else:
            names = self._draw.sample("tuw", self._draw.choice([1, 1, 3]))
            topics = [common_pb2.TopicPartitions(topic=name, partitions=[0, 1, 2]) for name in names]
            self._call(coordinator_pb2.OffsetDeleteRequest(group_id=group_id, topics=topics), group_id)

    def _ask(self, group_id: str) -> None:
        limit = self._draw.choice([0, 1, 2])
        fetch = coordinator_pb2.OffsetFetchRequest()
        fetch.groups.add(group_id=group_id, limit=limit, after_topic=self._draw.choice(["", "t"]))
        fetch.groups.add(group_id="nobody")
        for request in (
            coordinator_pb2.DescribeGroupsRequest(group_ids=["g", "h", "nobody"]),
            coordinator_pb2.ListGroupsRequest(limit=limit, page_token="g" if limit else ""),
            coordinator_pb2.GroupHistoryRequest(group_id=group_id, limit=limit),
            fetch,
        ):
            self._call(request, group_id)

    def _cancel(self, _: str) -> None:
        parked = [call for call in self._groups if self.cluster.is_parked(call)]
        if parked:
            call_id = self._draw.choice(parked)
            del self._groups[call_id]
            self.cluster.cancel(call_id)

    # --- the world

    def _time_passes(self, _: str) -> None:
        self.cluster.advance(self._draw.choice([1, 10, 50, 60, 500, 1_000, 3_000]))

    def _log(self, _: str) -> None:
        """The log becomes slow or quick, or takes one append."""
        cluster, what = self.cluster, self._draw.randrange(8)
        if what == 0:
            cluster.auto_ack = False
        elif what in (1, 2):
            self._drain()
        elif cluster.waiting:
            cluster.acknowledge()

    def _drain(self) -> None:
        self.cluster.auto_ack = True
        while self.cluster.waiting:
            self.cluster.acknowledge()

    def _stream(self, group_id: str) -> None:
        stream, what = self._draw.choice(_STREAMS), self._draw.randrange(8)
        member_id = self._member_id(group_id)
        if what < 4:
            attach = session_pb2.Attach(
                group_id=group_id,
                member_id=member_id,
                group_instance_id=self._instance_of(group_id, member_id),
                generation=self._generation(group_id),
                member_secret=_SECRETS[group_id],
            )
            self.cluster.feed(Attach(stream, attach, self._draw.choice([True, False])))
        elif what < 6:
            self._beats[stream] += 1
            number = self._beats[stream]
            self.cluster.feed(Beat(stream, number, max(0, number - self._draw.choice([1, 1, 2]))))
        elif what < 7:
            self.cluster.feed(Detach(stream, session_pb2.Detach(group_id=group_id, member_id=member_id)))
        else:
            self.cluster.feed(StreamBroken(stream, self._draw.choice([True, False])))

    def _lease(self, _: str) -> None:
        what = self._draw.randrange(4)
        if what == 0:
            self.cluster.suspend()
        elif what < 3:
            self.cluster.resume()
        else:
            self.cluster.wall_trusted = self._draw.random() < 0.7

    def _topic(self, _: str) -> None:
        """A topic is deleted, made again or resized, or loses a partition, which is not always heard of.

        Or the features are enabled.
        """
        if self._draw.randrange(8) == 0:
            self._features = ALL_FEATURES
            self.cluster.feed(FeaturesEnabled(ALL_FEATURES))
            return
        topic, before = self._draw.choice("tu"), self._catalog
        offset, partitions = before.offset + 1, dict(before.partitions)
        deletions, removed = dict(before.deletions), dict(before.removed)
        chance = self._draw.random()
        if topic in partitions and chance < 0.5:
            del partitions[topic]
            removed.pop(topic, None)
            deletions[topic] = offset
        elif topic in partitions and chance < 0.7 and Feature.PARTITION_NAMES in self._features:
            gone = self._draw.randrange(partitions[topic])
            removed[topic] = removed.get(topic, frozenset()) | {gone}
        else:
            partitions[topic] = self._draw.choice([1, 2, 3])
        self._catalog = Catalog(offset, partitions, deletions, removed=removed)
        if self._draw.random() < 0.8:
            self._hear(frozenset({topic}))

    def _hear(self, topics: frozenset[str]) -> None:
        self.cluster.feed(TopicsChanged(topics, catalog=self._catalog, carried_out=self._heard))
        self._heard = self._catalog.offset

    def _another_owner(self, _: str) -> None:
        """Unloads; some appends that were on their way landed all the same; loads."""
        cluster = self.cluster
        cluster.auto_ack = False
        cluster.feed(Unload())
        cluster.land(self._draw.choice([0, 0, 1, 2]))
        self._take_answers()
        self._check_snapshot()
        self._held = frozenset("h") if self._draw.random() < 0.2 else frozenset()
        self._sizes.clear()
        self.cluster = VirtualShard(
            CONFIG, cluster.log, self._features, Quarantine(self._held), room=Room(resized=self._resized)
        )
        self._begin_replay()
        self.cluster.now_ms = max(cluster.now_ms, self.cluster.now_ms)
        self._groups.clear()
        self._beats = dict.fromkeys(_STREAMS, 0)
        self._hear(frozenset())

    def finish(self) -> None:
        """Stores what is on its way and checks the whole log."""
        self._drain()
        self.check()
        broken = [one for one in broken_promises(self.cluster) if one.invariant != REUSED_ID]
        if broken:
            raise Differs(f"{broken[0].invariant} at {broken[0].position.stream_id}: {broken[0].detail}")

    # --- checks

    def check(self) -> None:
        """Compares the live state with a replay of what is acknowledged.

        Raises:
            Differs: they are not the same.
        """
        replayed, log = self._replay, self.cluster.log
        for position, record in log[self._seen :]:
            replayed.replay(position, record)
        if self._seen < len(log):
            self._seen, self._said = len(log), known_of(replayed, self._held)
        if replayed.catalog_place != self.cluster.shard.catalog_place:
            raise Differs("another place of the catalog")
        live, said = known_of(self.cluster.shard, self._held), self._said
        if live.keys() != said.keys():
            raise Differs(f"served are the groups {sorted(live)}, the log says {sorted(said)}")
        for group_id, facts in live.items():
            for name, fact in facts.items():
                # What a deletion took is known before the log has noted it, and so is what members say in
                # joins that no generation has yet: where that is untrue the log may never know of it.
                early = name == "renewed_topics" and said[group_id][name] <= fact
                early = early and (self.cluster.waiting or group_id in self._overclaimed)
                early = early or (name == "renewed_topics" and self._claims_otherwise(group_id, fact))
                if fact != said[group_id][name] and not early:
                    raise Differs(f"{group_id} {name}: served {fact!r}, in the log {said[group_id][name]!r}")
        for group in self.cluster.shard.groups.values():
            _check_group(group)
        self._check_bytes()
        self._check_sizes()
        self._check_who_is_found()

    def _claims_otherwise(self, group_id: str, renewed: frozenset[str]) -> bool:
        """Whether members claim other topics by now than when the log heard of them last.

        What of these is renewed may differ until the next generation.
        """
        said: frozenset[str] = self._said[group_id]["renewed_topics"]
        shards = self.cluster.shard, self._replay
        live, logged = (topics_claimed(shard.groups[group_id].members.values()) for shard in shards)
        if said != renewed and said ^ renewed <= live ^ logged:
            self._rejoined.add(group_id)
        elif said == renewed:
            self._rejoined.discard(group_id)
        return group_id in self._rejoined

    def _check_who_is_found(self) -> None:
        """A change of topics finds the groups that have offsets in them, or may own some, and no other."""
        groups = self.cluster.shard._context.groups
        named = {(name, group_id) for group_id, one in groups.items() for name, _ in one.offsets.table}
        found = {(name, one) for name in {name for name, _ in named} for one in groups.by_name.of([name])}
        if found != named or len(groups.by_name) != len(named):
            raise Differs(f"groups are found by {found}, and have {named}")
        peopled = [one.group_id for one in groups.values() if one.is_peopled]
        if sorted(one.group_id for one in groups.peopled()) != sorted(peopled):
            raise Differs(f"{peopled} may own something")

    def _resized(self, group_id: str, members: int, partitions: int) -> None:
        self._sizes[group_id] = members, partitions

    def _check_sizes(self) -> None:
        """Members and partitions are told of each group that is there, and of the others that they went."""
        context = self.cluster.shard._context
        there = {one.group_id: one.size for one in (*context.groups.values(), *context.held.values())}
        told = {group_id: size for group_id, size in self._sizes.items() if size != (0, 0)}
        if told != {group_id: size for group_id, size in there.items() if size != (0, 0)}:
            raise Differs(f"told {told}, and there are {there}")

    def _check_bytes(self) -> None:
        context = self.cluster.shard._context
        groups = [*context.groups.values(), *context.held.values()]
        on_their_way = sum(append.bytes for append in context._appends.values())
        for append in context._appends.values():
            more = append.bytes - sum(record.ByteSize() for record in append.records)
            if more < 0 or (more and (append.holds is None or append.holds.planned is None)):
                raise Differs(f"{more} bytes more than its records count for what is on its way")
        more = self.cluster.shard.held_bytes - sum(map(_weight, groups)) - on_their_way
        if more < 0 or (more and not any(group.line.in_turns for group in groups)):  # a plan is gone through
            raise Differs("what the groups hold is counted wrong")
        sizes: dict[str, tuple[int, int, int, int]] = {}
        for append in context._appends.values():
            commits = [r.offset_committed for r in append.records if r.HasField("offset_committed")]
            if commits:
                before = sizes.get(commits[0].group_id, (0, 0, 0, 0))
                whole = append.before is None  # else it is a part, and others follow
                number = sum(len(commit.offsets) for commit in commits)
                size = sum(OFFSET_BYTES * len(commit.offsets) + commit.ByteSize() for commit in commits)
                sizes[commits[0].group_id] = (
                    before[0] + whole,
                    before[1] + number,
                    before[2] + size,
                    before[3] + len(commits),
                )
        bounds = self.cluster.shard._commits._bounds
        counted = {name: (one.commits, one.offsets, one.bytes) for name, one in bounds._open.items()}
        if counted.keys() != sizes.keys() or not all(
            most[:2] == size[:2] and size[2] <= most[2] <= size[2] + 100 * (size[1] + size[3])
            for most, size in zip(counted.values(), map(sizes.__getitem__, counted), strict=True)
        ):
            raise Differs(f"commits on their way are counted as {counted}, and are {sizes}")

    def _check_snapshot(self) -> None:
        records = self.cluster.log
        cut = self._draw.randrange(1, len(records) + 1)
        begun = through_snapshot(self._replayed(cut), records[cut - 1][0], CONFIG)
        for position, record in records[cut:]:
            begun.replay(position, record)
        if pictures(begun) != pictures(self._replayed(len(records))):
            raise Differs(f"a load from a snapshot after {cut} of {len(records)} records is another state")

    def _begin_replay(self) -> None:
        """From the first record of the log, and one record after the other from then on."""
        self._replay, self._seen = Shard(0, CONFIG, Quarantine(self._held)), 0

    def _replayed(self, upto: int) -> Shard:
        shard = Shard(0, CONFIG)
        for position, record in self.cluster.log[:upto]:
            shard.replay(position, record)
        return shard

    # --- who

    def _call(self, request: GroupRequest, group_id: str) -> None:
        self._groups[self.cluster.send(request)] = group_id

    def _take_answers(self) -> None:
        for call_id, answer in self.cluster.answers.items():
            group_id = self._groups.pop(call_id, "")
            if group_id and isinstance(answer, coordinator_pb2.JoinGroupResponse) and answer.member_id:
                known = self._ids[group_id]
                self._ids[group_id] = [*dict.fromkeys([*known, answer.member_id])][-_KEPT_IDS:]
        self.cluster.answers.clear()

    def _owned_topics(self, group_id: str) -> set[str]:
        group = self._group(group_id)
        return set() if group is None else {topic for topic, _ in group.owners}

    def _group(self, group_id: str) -> Group | None:
        return self.cluster.shard.groups.get(group_id)

    def _member_id(self, group_id: str) -> str:
        ids = self._ids[group_id]
        return self._draw.choice(ids) if ids and self._draw.random() < 0.85 else ""

    def _instance_of(self, group_id: str, member_id: str) -> str:
        group = self._group(group_id)
        member = None if group is None else group.members.get(member_id)
        if member is not None and self._draw.random() < 0.95:
            return member.group_instance_id
        return self._draw.choice(["", "", "i", "j"])

    def _generation(self, group_id: str) -> int:
        group = self._group(group_id)
        late = self._draw.randrange(8) == 0
        return (1 if group is None else group.generation) - late


def known_of(shard: Shard, held: frozenset[str] = frozenset()) -> dict[str, dict[str, Any]]:
    """What a log can know of the groups of a shard, but for those in quarantine."""
    return {
        group_id: {
            "generation": group.generation,
            "assigned_generation": group.assigned_generation,
            "protocol_name": group.protocol_name,
            "owners": dict(group.owners),
            "offsets": dict(group.offsets.table),
            "subscribed_topics": group.subscribed_topics,
            "renewed_topics": group.renewed_topics,
            "history": [entry.to_proto() for entry in group.history],
            "members": {
                member_id: (
                    member.group_instance_id,
                    member.token,
                    # one without an assignment loses them in memory at once, by its log with the next one
                    list(member.kept_tokens) if group.assigned_generation == group.generation else [],
                    member.commit_seq,
                )
                for member_id, member in group.members.items()
                if member.recorded
            },
        }
        for group_id, group in shard.groups.items()
        if group.stored and group_id not in held
    }


def _check_group(group: Group) -> None:
    members = group.members
    if group.parked_joins != sum(member.join_call is not None for member in members.values()):
        raise Differs(f"{group.group_id}: parked joins are counted wrong")
    if group.size_bytes != sum(member.size_bytes for member in members.values()):
        raise Differs(f"{group.group_id}: its bytes are counted wrong")
    static = {member.group_instance_id: name for name, member in members.items() if member.is_static}
    if static != group.static_members:
        raise Differs(f"{group.group_id}: static ids {group.static_members} of members {static}")
    if members and group.leader not in members:
        raise Differs(f"{group.group_id}: leader {group.leader!r} is no member")
    if group.state is GroupState.EMPTY and members and not group.line.in_flight:
        raise Differs(f"{group.group_id}: Empty with {len(members)} members")
    if not group.pending_sync <= members.keys():
        raise Differs(f"{group.group_id}: waits for the sync of nobody")


def _weight(group: Group) -> int:
    """What a group holds, counted from the beginning."""
    members = sum(
        MEMBER_BYTES
        + COPIES * (member.size_bytes + len(member.assignment))
        + KEPT_TOKEN_BYTES * len(member.kept_tokens)
        for member in group.members.values()
    )
    pending = sum(PENDING_MEMBER_BYTES + COPIES * utf8_bytes(name) for name in group.pending_members)
    offsets = sum(weight_of(partition, found.metadata) for partition, found in group.offsets)
    history = sum(entry.held_bytes for entry in group.history)
    for before, entry in zip([None, *group.history], group.history, strict=False):
        counted = entry.members, entry.held_bytes
        entry.follow(before)
        if (entry.members, entry.held_bytes) != counted:
            raise Differs(f"{group.group_id}: what a generation of its history takes is counted wrong")
    owned = OWNED_PARTITION_BYTES * len(group.owners)
    owned += sum(END_BYTES + utf8_bytes(topic) for (topic, _), _ in group.ends)
    if group.offsets.held_bytes != offsets:
        raise Differs(f"{group.group_id}: the bytes of its offsets are counted wrong")
    return GROUP_BYTES + utf8_bytes(group.group_id) + members + pending + offsets + history + owned


def _subscription(topics: str, *owned: int, keeps: bool = True) -> bytes:
    partitions = [common_pb2.TopicPartitions(topic="t", partitions=owned)] if owned else []
    return common_pb2.Subscription(
        version=1, topics=list(topics), keeps_owned=keeps, owned_partitions=partitions
    ).SerializeToString()


def _assignment(**topics: list[int]) -> bytes:
    partitions = [common_pb2.TopicPartitions(topic=name, partitions=some) for name, some in topics.items()]
    return common_pb2.Assignment(version=1, partitions=partitions).SerializeToString()


_METADATA = (
    b"",
    b"a",
    b"\xff\xff",
    _subscription("t", 0, 1),
    _subscription("t", 0, 1),
    _subscription("tu", 0, 1),
    _subscription("u", keeps=False),
)
_CLAIMING = frozenset({_subscription("t", 0, 1), _subscription("tu", 0, 1)})
_ASSIGNMENTS = (
    b"q",
    b"\xff",
    _assignment(),
    _assignment(t=[0]),
    _assignment(t=[1], u=[0]),
    _assignment(u=[0, 1]),
    _assignment(t=[0, 1]),
)

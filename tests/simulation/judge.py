"""Judges a run that came to rest: logs, states and what workers saw must agree."""

from collections import Counter, defaultdict

from muster import TopicPartition
from muster_core.audit.log_checker import LogChecker
from muster_core.config import GroupConfig
from muster_core.incremental.group import IncrementalGroup, IncrementalGroupState
from muster_core.log.replay import Entry
from muster_core.log.snapshot import Covered, parts
from muster_core.position import Position
from muster_core.shard import Shard
from muster_core.state.group_state import GroupState
from simulation.cluster import GROUPS, Cluster
from simulation.ledger import Ledger, Place, log_key
from simulation.nemesis import MEMBERS
from simulation.observer import Observer
from simulation.redis_node import RedisNode
from simulation.redis_store import Id, Stream
from simulation.servers import GROUP_MAX_SIZE, SHARDS, CoordinatorRole
from simulation.violations import Violations
from simulation.worker import AUTO, PARTITIONS, TOPIC, Change, Commit, Fetch, Worker


class Judge:
    """Looks at everything once, at the end.

    Args:
        cluster: at rest: no fault is left, no commit is on its way.
        ledger: what the nodes ever held.
        observer: what was said.
        violations: takes what is wrong.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, observer: Observer, violations: Violations) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._observer = observer
        self._violations = violations

    def judge(self) -> None:
        """Makes all checks."""
        for shard in range(SHARDS):
            self._same_on_all_nodes(shard)
            for node in self._cluster.nodes:
                self._check_log(node, shard)
            self._check_state(shard)
        self._check_commits()
        self._check_fetches()
        self._check_assigned()
        self._check_sizes()

    # --- logs

    def _stream(self, node: RedisNode, shard: int) -> Stream:
        stream = node.store.keys.get(log_key(shard))
        return stream if isinstance(stream, Stream) else Stream()

    def _same_on_all_nodes(self, shard: int) -> None:
        first = self._stream(self._cluster.nodes[0], shard)
        held = {node.name: self._held(node, shard) for node in self._cluster.nodes}
        self._violations.expect(
            "V4",
            len({entries for entries, _ in held.values()}) == 1,
            f"after all faults the nodes hold different logs of shard {shard}: "
            f"{ {node.name: self._stream(node, shard).ids[-2:] for node in self._cluster.nodes} }",
        )
        self._violations.expect(
            "V4",
            len({promise for _, promise in held.values()}) == 1,
            f"after all faults the nodes hold different promises for shard {shard}: "
            f"{ {name: promise for name, (_, promise) in held.items()} }",
        )
        for id_, hash_ in self._ledger.chain(log_key(shard)).items():
            place = (log_key(shard), id_, hash_)
            if first.ids and id_ < first.ids[0]:
                continue
            self._violations.expect(
                "L5",
                self._ledger.holders(place) * 2 > len(self._cluster.nodes),
                f"the acknowledged entry {id_} of shard {shard} is on {self._ledger.holders(place)} nodes",
            )

    def _held(self, node: RedisNode, shard: int) -> tuple[tuple[tuple[Id, bytes], ...], bytes]:
        """Places and hashes of a log at a node, and its promise."""
        promise = node.store.keys.get(log_key(shard).replace(b":log", b":promise"), {})
        assert isinstance(promise, dict)
        entries = tuple((id_, fields[5]) for id_, fields in self._stream(node, shard).entries.items())
        return entries, promise.get(b"epoch", b"") + b"/" + promise.get(b"nonce", b"").hex().encode()

    def _entries(self, node: RedisNode, shard: int) -> list[Entry]:
        return [
            Entry(Position(*id_), fields[1], fields[3], fields[5])
            for id_, fields in self._stream(node, shard).entries.items()
        ]

    def _check_log(self, node: RedisNode, shard: int) -> None:
        checker = LogChecker(shard)
        for entry in self._entries(node, shard):
            checker.add(entry)
        self._violations.checked.update(checker.findings.checked)
        clocks_were_set = any(process.clock_was_set for process in self._cluster.started)
        for violation in checker.findings.violations:
            if violation.invariant == "M3" and clocks_were_set:
                # Stamps do not measure silence then, nor does the time at which a node got a record: one that
                # shows the member may have waited for the log. The observer knows what was heard when.
                continue
            self._violations.expect(
                violation.invariant,
                False,
                f"{node.name}, shard {shard}, {violation.position.stream_id}: {violation.detail}",
            )

    # --- states

    def _owner(self, shard: int) -> Shard | None:
        best: tuple[int, Shard] | None = None
        for role in self._cluster.roles.values():
            if isinstance(role, CoordinatorRole):
                owned = role.coordinator.shards.get(shard)
                if owned is not None and owned.serving and owned.core is not None:
                    best = max(best or (0, owned.core), (owned.epoch, owned.core), key=lambda row: row[0])
        return None if best is None else best[1]

    def _check_state(self, shard: int) -> None:
        """What the owner has in memory is what its records give: all of them, also those trimmed since."""
        live = self._owner(shard)
        self._violations.expect("V2", live is not None, f"nobody serves shard {shard} after all faults")
        if live is None:
            return
        again = Shard(shard, GroupConfig())
        for id_, record in self._ledger.history(log_key(shard)):
            again.replay(Position(*id_), record)
        for group_id in sorted({*live.groups, *again.groups}):
            has, gives = live.groups.get(group_id), again.groups.get(group_id)
            covered = Covered(shard, Position(1, 1), bytes(32))
            same = (
                has is not None
                and gives is not None
                and b"".join(parts([has], covered)) == b"".join(parts([gives], covered))
            )
            empty = gives is None and has is not None and not has.generation and not len(has.offsets)
            self._violations.expect(
                "G12", same or empty, f"the records of {group_id} give another state than its owner has"
            )
        for group in live.groups.values():
            if group.incremental is not None:
                self._check_settled(group.group_id, group.incremental)
            if group.state is not GroupState.STABLE:
                continue
            waiting = [member.member_id for member in group.members.values() if member.is_waiting]
            self._violations.expect(
                "G8",
                group.assigned_generation == group.generation and not waiting and not group.pending_sync,
                f"{group.group_id} is Stable with assignment {group.assigned_generation} of generation "
                f"{group.generation}; {waiting} wait",
            )

    def _check_settled(self, group_id: str, group: IncrementalGroup) -> None:
        """An incremental group that is whole waits for nobody: its members have what they should have."""
        self._violations.expect(
            "G8",
            group.state in (IncrementalGroupState.STABLE, IncrementalGroupState.EMPTY),
            f"{group_id} came to rest in {group.state}, epoch {group.epoch}, target {group.target_epoch}",
        )

    # --- what workers saw

    def _place(self, commit_id: str) -> Place | None:
        """Where a commit stands in the log as it is now."""
        for place in self._ledger.commits.get(commit_id, ()):
            if self._ledger.on_chain(place):
                return place
        return None

    def _check_commits(self) -> None:
        self._check_order()
        for commit in self._cluster.history.commits.values():
            if commit.outcome == "ok":
                self._violations.expect(
                    "L5",
                    self._place(commit.id),
                    f"commit {commit.id} was acknowledged and is not in the log",
                )

    def _check_order(self) -> None:
        """Whether each commit is stored once, or again by its member in its next seat, before any other one.

        A member that keeps its partitions into another generation, or its group's other kind, and has not
        heard of its last commit there makes that once more.
        """
        last: dict[tuple[str, TopicPartition], str] = {}
        seats: dict[str, tuple[str, int]] = {}
        for place in sorted({place for places in self._ledger.commits.values() for place in places}):
            if not self._ledger.on_chain(place):
                continue
            record = self._ledger.entries[place].record.offset_committed
            seat = record.member_id, record.generation
            for offset in record.offsets:
                commit, partition = offset.metadata, TopicPartition(offset.topic, offset.partition)
                before = seats.setdefault(commit, seat)
                is_next = before[0] == seat[0] and before[1] < seat[1]
                self._violations.expect(
                    "O4",
                    before is seat or (is_next and last.get((record.group_id, partition)) == commit),
                    f"commit {commit} of {before} stands in the log again at {place[1]}, by {seat}",
                )
                seats[commit], last[record.group_id, partition] = seat, commit

    def _check_fetches(self) -> None:
        """A fetch finds the last commit that was acknowledged before it began, or a later one.

        Of a topic that was deleted it finds none that was acknowledged before the deletion was asked for,
        once the deletion is answered; and every one that was begun when the deletion had been answered.
        """
        acknowledged: dict[tuple[str, TopicPartition], list[tuple[Commit, Id]]] = defaultdict(list)
        for commit in self._cluster.history.commits.values():
            place = self._place(commit.id)
            if commit.outcome == "ok" and place is not None:
                acknowledged[commit.group_id, commit.partition].append((commit, place[1]))
        for fetch in self._cluster.history.fetches:
            deletions = self._deletions(fetch.partition.topic)
            before = [
                id_
                for commit, id_ in acknowledged[fetch.group_id, fetch.partition]
                if commit.ended_s < fetch.began_s and not _may_take(deletions, commit, fetch)
            ]
            what = f"a fetch of {fetch.group_id}/{fetch.partition} at {fetch.began_s:.3f}"
            if not fetch.id:
                self._violations.expect(
                    "O5", not before, f"{what} found nothing after {max(before, default=0)}"
                )
                continue
            place = self._place(fetch.id)
            self._violations.expect(
                "O1",
                place is not None and place[1] >= max(before, default=(0, 0)),
                f"{what} found {fetch.id} at {place and place[1]}, but {max(before, default=0)} was "
                "acknowledged before",
            )
            if deletions:
                self._check_deleted(deletions, fetch, what)

    def _deletions(self, topic: str) -> list[Change]:
        return [
            change
            for change in self._cluster.history.changes
            if change.topic == topic and change.kind == "delete"
        ]

    def _check_deleted(self, deletions: list[Change], fetch: Fetch, what: str) -> None:
        found = self._cluster.history.commits[fetch.id]
        for deletion in deletions:
            if deletion.done and deletion.ended_s < fetch.began_s:
                self._violations.expect(
                    "T1",
                    found.outcome != "ok" or found.ended_s >= deletion.began_s,
                    f"{what} found {fetch.id}, which was acknowledged at {found.ended_s:.3f}, before the "
                    f"topic was deleted from {deletion.began_s:.3f} to {deletion.ended_s:.3f}",
                )

    def _check_assigned(self) -> None:
        owners: dict[tuple[str, int, TopicPartition], str] = {}
        tokens: dict[tuple[str, TopicPartition], dict[str, str]] = defaultdict(dict)
        last: dict[tuple[str, str], int] = {}
        for seen in self._cluster.history.assigned:
            member = (seen.group_id, seen.member_id)
            self._violations.expect(
                "M7",
                seen.generation >= last.get(member, 0),
                f"{member} was told generation {seen.generation} after {last.get(member)}",
            )
            last[member] = seen.generation
            for partition, token in zip(seen.partitions, seen.tokens, strict=True):
                holder = tokens[seen.group_id, partition].setdefault(token, seen.member_id)
                self._violations.expect(
                    "G13",
                    holder == seen.member_id,
                    f"{holder} and {seen.member_id} hold {seen.group_id}/{partition} by one token, {token}",
                )
                if seen.incremental:
                    continue  # members of one epoch have what they had before, until they give it back
                owner = owners.setdefault((seen.group_id, seen.generation, partition), seen.member_id)
                same_seat = self._replaced(seen.group_id, owner, seen.member_id)
                self._violations.expect(
                    "G9",
                    owner == seen.member_id or same_seat,
                    f"{seen.group_id}/{partition} belongs to {owner} and {seen.member_id} in generation "
                    f"{seen.generation}",
                )
        for held in tokens.values():
            for commit_token in held:
                self._violations.expect("G13", commit_token, "an owned partition has no token")

    def _replaced(self, group_id: str, before: str, after: str) -> bool:
        """Whether one static member took another's seat over."""
        return any(
            seen.record.member_replaced.group_id == group_id
            and seen.record.member_replaced.member.member_id == after
            for seen in self._ledger.entries.values()
            if seen.record.HasField("member_replaced")
        )

    def _check_sizes(self) -> None:
        for place, started in self._ledger.began:
            self._violations.expect(
                "G11",
                len(started.members) <= GROUP_MAX_SIZE,
                f"generation {started.generation} of {started.group_id} has {len(started.members)} members",
            )
            for member in started.members:
                self._violations.expect(
                    "M5",
                    member.group_instance_id
                    or (started.group_id, member.member_id) in self._observer.asked_to_join,
                    f"{member.member_id} is in generation {started.generation} of {started.group_id} at "
                    f"{place[1]} and never asked to join under this id",
                )

        for place, entry in self._ledger.entries.items():
            joined = entry.record.member_subscribed
            if entry.record.HasField("member_subscribed") and joined.joined:
                self._violations.expect(
                    "M5",
                    (joined.group_id, joined.member.member_id) in self._observer.asked_to_join,
                    f"{joined.member.member_id} joined {joined.group_id} at {place[1]} and never asked to",
                )

    # --- liveness

    def unsettled(self) -> list[str]:
        """Groups that do not have all their members in a stable generation, with what is missing."""
        found = []
        for group_id in GROUPS:
            workers = [worker for worker in self._cluster.workers if worker.group_id == group_id]
            settled = [worker for worker in workers if worker.settled]
            if fault := self._wrong_kind(group_id, workers):
                found.append(fault)
            if any(worker.incremental for worker in workers):
                found += self._unshared(group_id, workers, settled)
                continue
            generations = {worker.member.generation for worker in settled if worker.member is not None}
            if len(settled) < max(MEMBERS, len(workers)) or len(generations) != 1:
                found.append(
                    f"{group_id}: {len(settled)} of {len(workers)} members, in {sorted(generations)}"
                )
        return found

    @staticmethod
    def _wrong_kind(group_id: str, workers: list[Worker]) -> str:
        """What kind of group it should be by now; empty: it is that."""
        kinds = {worker.incremental for worker in workers}
        if len(kinds) > 1:
            return f"{group_id}: its members take part in groups of both kinds"
        can_be_either = all(worker.settings.get("protocol") == AUTO for worker in workers)
        on_streams = all(worker.settings.get("session") for worker in workers)
        if can_be_either and on_streams and kinds == {False}:
            return f"{group_id}: it is classic still, though its members can be incremental"
        return ""

    @staticmethod
    def _unshared(group_id: str, workers: list[Worker], settled: list[Worker]) -> list[str]:
        """What an incremental group lacks: a member, or an owner of a partition that all of them work on."""
        owned = [p for worker in settled if worker.member is not None for p in worker.member.partitions]
        owners = Counter(partition.number for partition in owned if partition.topic == TOPIC)
        found = []
        if len(settled) < max(MEMBERS, len(workers)):
            found.append(f"{group_id}: {len(settled)} of {len(workers)} members")
        if owners != Counter(range(PARTITIONS)):
            found.append(f"{group_id}: its partitions have owners as in {dict(owners)}")
        return found


def _may_take(deletions: list[Change], commit: Commit, fetch: Fetch) -> bool:
    """Whether a deletion that was asked for before the fetch ended may take the commit."""
    return any(
        deletion.began_s < fetch.ended_s and (not deletion.done or deletion.ended_s > commit.began_s)
        for deletion in deletions
    )

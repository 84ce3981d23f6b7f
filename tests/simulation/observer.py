"""Looks at every message of a server when it is built, and at what a server is sent, and judges it."""

import traceback
from collections import defaultdict, deque
from typing import Any

from muster_core.sharding import shard_of
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2, incremental_pb2, session_pb2
from simulation.ledger import Ledger, Place, log_key
from simulation.processes import Process
from simulation.servers import INCREMENTAL_PATIENCE_MS, LEASE_MS, MARGIN_MS, SHARDS
from simulation.violations import Violations

_NONE = common_pb2.ERROR_CODE_NONE
_BECAME = {
    common_pb2.ERROR_CODE_GROUP_CONVERTED: "incremental",
    common_pb2.ERROR_CODE_GROUP_CLASSIC: "classic",
}
"""What a member is told its group has become."""

_ATTACHED = (_NONE, common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS)
_SILENCE = (
    common_pb2.REBALANCE_CAUSE_KIND_SESSION_EXPIRED,
    common_pb2.REBALANCE_CAUSE_KIND_DISCONNECTED,
)
_SKEW = 1.25
_OF_MEMBERS = (
    coordinator_pb2.JoinGroupResponse,
    coordinator_pb2.SyncGroupResponse,
    coordinator_pb2.HeartbeatResponse,
    coordinator_pb2.LeaveGroupResponse,
    incremental_pb2.ConsumerGroupHeartbeatResponse,
)

Member = tuple[str, str]
"""Group and member id."""


class CallNotes:
    """What is remembered of an open call of a server."""

    def __init__(self) -> None:
        self.request: Any = None
        self.calls: dict[int, Any] = {}
        self.shards: dict[int, int] = {}
        self.attached: dict[Member, None] = {}


class Observer:
    """Judges the messages of a run.

    Args:
        ledger: what the nodes hold.
        violations: takes what is wrong.

    Attributes:
        deadlines: of each coordinator's process, on its own clock, until when it may answer.
        excused: sessions of coordinators that were seen dead by a probe, which may be wrong.
        heard: when a coordinator heard of a member, the last times.
        sessions: processes by the session of their lease.
        patience: shortest time a member may be silent, s.
    """

    def __init__(self, ledger: Ledger, violations: Violations) -> None:
        self._ledger = ledger
        self._violations = violations
        self.coordinators: dict[str, Process] = {}
        self.deadlines: dict[Process, float] = {}
        self.excused: dict[str, float] = {}
        self._back_s: dict[Process, float] = {}
        self._called_dead: set[tuple[Process, str]] = set()
        self.heard: dict[tuple[Process, Member], deque[float]] = defaultdict(lambda: deque(maxlen=50))
        self.sessions: dict[str, Process] = {}
        self.patience: dict[Member, float] = {}
        self.asked_to_join: set[Member] = set()
        self.joined: dict[Process, dict[str, int]] = defaultdict(dict)
        self._named: dict[tuple[Process, int], int] = {}
        self._assigned: dict[tuple[str, int, str], bytes] = {}
        self._sent_renewals: dict[tuple[Process, int], float] = {}
        self._seen_epoch: dict[Process, int] = defaultdict(int)
        self._stale: dict[Process, str] = {}

    def notes(self) -> CallNotes:
        """See `processes.Watch`."""
        return CallNotes()

    # --- leases

    def renewal_sent(self, process: Process, request: metadata_pb2.LeaseRequest) -> None:
        """A coordinator sends a renewal."""
        self.sessions[request.session] = process
        if not request.release:
            self._sent_renewals[process, request.number] = process.boot_s()

    def renewal_answered(self, process: Process, answer: metadata_pb2.LeaseResponse) -> None:
        """It hears how that ended."""
        sent_s = self._sent_renewals.pop((process, answer.number), None)
        if answer.renewed and sent_s is not None:
            until_s = sent_s + (LEASE_MS - MARGIN_MS) / 1000
            if sent_s > self.deadlines.get(process, 0.0):
                self._back_s[process] = process.world.now_s
            self.deadlines[process] = max(until_s, self.deadlines.get(process, 0.0))

    # --- what servers are sent

    def received(self, process: Process, notes: CallNotes, message: Any) -> None:
        """A server takes a message."""
        try:
            self._received(process, notes, message)
        except Exception:
            # Not the server's fault: it would take it for a broken call.
            self._violations.expect("X1", False, f"the observer failed: {traceback.format_exc()}")

    def _received(self, process: Process, notes: CallNotes, message: Any) -> None:
        if isinstance(message, session_pb2.SessionRequest):
            for frame in message.frames:
                kind = frame.WhichOneof("kind")
                if kind == "call":
                    request = getattr(frame.call, frame.call.WhichOneof("request") or "join_group")
                    notes.calls[frame.call.call_id] = request
                    self._heard(process, request)
                elif kind == "attach":
                    member = (frame.attach.group_id, frame.attach.member_id)
                    self.heard[process, member].append(process.world.now_s)
                elif kind == "detach":
                    notes.attached.pop((frame.detach.group_id, frame.detach.member_id), None)
                elif kind == "beat":
                    for member in notes.attached:
                        self.heard[process, member].append(process.world.now_s)
        elif isinstance(message, metadata_pb2.LogRequest):
            for call in message.calls:
                notes.shards[call.call_id] = call.shard
        else:
            notes.request = message
            self._heard(process, message)

    def departed(self, place: Place, record: records_pb2.Record) -> None:
        """A member is put out: was it silent for as long as it may be (M3)?"""
        left = record.member_removed if record.HasField("member_removed") else record.member_left
        process = self.sessions.get(self._ledger.claimants.get((place[0], place[1][0]), ""))
        member = (left.group_id, left.member_id)
        patience_s = self.patience.get(member)
        if left.cause.kind not in _SILENCE or process is None or patience_s is None:
            return
        stamped_s = process.when_s(record.written_at_ms / 1000)
        # Where its clock was set since, only that it was not decided after it was stored is known.
        decided_s = process.world.now_s if stamped_s is None else stamped_s + 0.002
        heard_s = max((at_s for at_s in self.heard[process, member] if at_s <= decided_s), default=0.0)
        claimed_s = self._ledger.claims.get(place[0], {}).get(place[1][0], 0.0)
        silent_s = (decided_s - max(heard_s, claimed_s)) * process.rate
        self._violations.expect(
            "M3",
            silent_s >= patience_s - 0.05,
            f"{process.name} puts {member} out after {silent_s:.3f} s of silence; it may be silent for "
            f"{patience_s:.3f} s",
        )

    def _heard(self, process: Process, request: Any) -> None:
        if not isinstance(
            request,
            coordinator_pb2.JoinGroupRequest
            | coordinator_pb2.SyncGroupRequest
            | coordinator_pb2.HeartbeatRequest
            | incremental_pb2.ConsumerGroupHeartbeatRequest,
        ):
            return
        if not request.member_id:
            return
        member = (request.group_id, request.member_id)
        is_leave = (
            isinstance(request, incremental_pb2.ConsumerGroupHeartbeatRequest) and request.member_epoch < 0
        )
        if is_leave:
            return  # who is away has what is left of its session (conformance SX-12)
        self.heard[process, member].append(process.world.now_s)
        if isinstance(request, incremental_pb2.ConsumerGroupHeartbeatRequest) and not request.member_epoch:
            self.asked_to_join.add(member)
            self._is_patient(member, INCREMENTAL_PATIENCE_MS)
        if isinstance(request, coordinator_pb2.JoinGroupRequest):
            self.asked_to_join.add(member)
            self._is_patient(member, request.session_timeout_ms)
            if request.disconnect_grace_ms:
                self._is_patient(member, request.disconnect_grace_ms)

    def _is_patient(self, member: Member, time_ms: int) -> None:
        self.patience[member] = min(self.patience.get(member, 1e9), time_ms / 1000)

    # --- what servers send

    def sent(self, process: Process, notes: CallNotes, message: Any) -> None:
        """A server builds a message."""
        try:
            self._sent(process, notes, message)
        except Exception:
            self._violations.expect("X1", False, f"the observer failed: {traceback.format_exc()}")

    def _sent(self, process: Process, notes: CallNotes, message: Any) -> None:
        if isinstance(message, session_pb2.SessionResponse):
            for frame in message.frames:
                self._frame(process, notes, frame)
        elif isinstance(message, metadata_pb2.LogResponse):
            self._logged(notes, message)
        elif isinstance(message, discovery_pb2.FindCoordinatorResponse):
            self._found(process, message)
        elif isinstance(message, metadata_pb2.WatchResponse):
            self._watched(process, message)
        elif notes.request is not None:
            self._answered(process, notes.request, message)

    def _frame(self, process: Process, notes: CallNotes, frame: session_pb2.ServerFrame) -> None:
        kind = frame.WhichOneof("kind")
        if kind == "reply":
            request = notes.calls.pop(frame.reply.call_id, None)
            self._violations.expect(
                "M1", request is not None, f"{process.name} answers call {frame.reply.call_id} a second time"
            )
            answer = frame.reply.WhichOneof("response")
            if request is not None and answer not in (None, "refused"):
                self._answered(process, request, getattr(frame.reply, answer))
        elif kind == "attach_result":
            member = (frame.attach_result.group_id, frame.attach_result.member_id)
            if frame.attach_result.error_code in _ATTACHED:
                notes.attached[member] = None
                self._in_time(process, "attach", frame.attach_result.shard_epoch, member[0])
        elif kind == "beat_ack":
            unheard = {(row.group_id, row.member_id) for row in frame.beat_ack.unheard}
            if any(member not in unheard for member in notes.attached):
                self._before_deadline(process, "a beat's acknowledgement")
        elif kind == "member_news":
            news = frame.member_news
            self._in_time(process, "news of an assignment", news.response.shard_epoch, news.group_id)
            self._told(process, news.group_id, news.response)
        elif kind == "fenced":
            notes.attached.pop((frame.fenced.group_id, frame.fenced.member_id), None)
        elif kind == "group_changed":
            changed = frame.group_changed
            notes.attached.pop((changed.group_id, changed.member_id), None)
            self._became(process, changed.group_id, changed)
        elif kind == "coordinator_moved":
            moved = frame.coordinator_moved
            notes.attached.pop((moved.group_id, moved.member_id), None)

    def _logged(self, notes: CallNotes, message: metadata_pb2.LogResponse) -> None:
        for result in message.results:
            shard = notes.shards.pop(result.call_id, None)
            if shard is None or result.outcome != metadata_pb2.LOG_OUTCOME_OK or not result.HasField("end"):
                continue
            position = result.end.position
            self._ledger.acknowledge(
                log_key(shard), (position.epoch, position.offset), result.end.hash, f"shard {shard}"
            )

    def _found(self, process: Process, message: discovery_pb2.FindCoordinatorResponse) -> None:
        for result in message.results:
            if result.error_code == _NONE:
                place = (process, result.coordinator.shard)
                epoch = result.coordinator.shard_epoch
                self._violations.expect(
                    "E6",
                    epoch >= self._named.get(place, 0),
                    f"{process.name} names epoch {epoch} of shard {place[1]} after {self._named.get(place)}",
                )
                self._named[place] = max(epoch, self._named.get(place, 0))

    def _watched(self, instance: Process, message: metadata_pb2.WatchResponse) -> None:
        """Judges each verdict once, when an instance gives it: later it only repeats what it said."""
        for node in message.cluster.coordinators:
            verdict = (instance, node.node_id)
            if node.state != discovery_pb2.COORDINATOR_STATE_DEAD:
                self._called_dead.discard(verdict)
                continue
            if verdict in self._called_dead:
                continue
            self._called_dead.add(verdict)
            process = self.coordinators.get(node.node_id)
            if process is None or not process.alive:
                continue
            excused_s = self.excused.get(node.node_id, -1e9)
            may_answer = self.deadlines.get(process, 0.0) > process.boot_s()
            # A lease that had lapsed is no promise before every instance has seen that it goes on.
            held_s = process.world.now_s - self._back_s.get(process, -1e9)
            self._violations.expect(
                "E7",
                not may_answer or held_s < LEASE_MS / 1000 or process.world.now_s - excused_s < 10,
                f"{node.node_id} is called dead and may answer for "
                f"{self.deadlines.get(process, 0.0) - process.boot_s():.3f} s still",
            )

    # --- answers of coordinators

    def _answered(self, process: Process, request: Any, answer: Any) -> None:
        if isinstance(answer, coordinator_pb2.OffsetFetchResponse):
            for group in answer.groups:
                if group.error_code == _NONE:
                    self._in_time(process, "OffsetFetch", group.shard_epoch, group.group_id)
            return
        if isinstance(answer, coordinator_pb2.OffsetCommitResponse):
            codes = {p.error_code for topic in answer.topics for p in topic.partitions}
            if codes == {_NONE}:
                self._in_time(process, "OffsetCommit", answer.shard_epoch, request.group_id)
                self._committed(process, request)
            return
        if not isinstance(answer, _OF_MEMBERS):
            return
        if answer.error_code != _NONE:
            self._became(process, request.group_id, answer)
            return
        self._in_time(process, type(answer).__name__, answer.shard_epoch, request.group_id)
        if isinstance(answer, incremental_pb2.ConsumerGroupHeartbeatResponse):
            self._told(process, request.group_id, answer)
        elif isinstance(answer, coordinator_pb2.JoinGroupResponse):
            self._joined(process, request, answer)
        elif isinstance(answer, coordinator_pb2.SyncGroupResponse):
            self._synced(process, request, answer)
        elif isinstance(answer, coordinator_pb2.HeartbeatResponse):
            current = self.joined[process].get(request.group_id, 0)
            self._violations.expect(
                "M2",
                request.generation >= current,
                f"{process.name} answers OK to a heartbeat of generation {request.generation} of "
                f"{request.group_id}, which is in {current}",
            )

    def _before_deadline(self, process: Process, what: str) -> None:
        until_s = self.deadlines.get(process, 0.0)
        self._violations.expect(
            "E1",
            process.boot_s() <= until_s + 0.002,
            f"{process.name} sends {what} {process.boot_s() - until_s:.3f} s after its deadline",
        )

    def _in_time(self, process: Process, what: str, epoch: int, group_id: str) -> None:
        self._before_deadline(process, f"OK to {what}")
        claims = self._ledger.claims.get(log_key(shard_of(group_id, SHARDS)), {})
        self._violations.expect(
            "E1",
            epoch in claims,
            f"{process.name} answers OK to {what} in epoch {epoch}, whose Claim no majority ever had",
        )
        later_s = min((at_s for other, at_s in claims.items() if other > epoch), default=None)
        now_s = process.world.now_s
        self._violations.expect(
            "E3",
            later_s is None or now_s - later_s < _SKEW * LEASE_MS / 1000,
            f"{process.name} answers OK to {what} in epoch {epoch}, {now_s - (later_s or 0):.3f} s after the "
            "Claim of a later one",
        )

    def _became(self, process: Process, group_id: str, told: Any) -> None:
        """A member may be told that its group is of the other kind: then the log has that."""
        kind = _BECAME.get(told.error_code)
        if kind is None or isinstance(told, coordinator_pb2.JoinGroupResponse):
            return  # who joins may come to a group that always was of it
        self._violations.expect(
            "E2",
            self._ledger.became(group_id, kind),
            f"{process.name} says that {group_id} became {kind}, which no majority has",
        )

    def _told(
        self, process: Process, group_id: str, answer: incremental_pb2.ConsumerGroupHeartbeatResponse
    ) -> None:
        """What a member of an incremental group is told is in the log: what it has, and what changed it."""
        chain = self._ledger.chain(log_key(shard_of(group_id, SHARDS)))
        places = {(given.token.epoch, given.token.offset) for given in answer.assignment.given}
        if answer.HasField("version"):
            places.add((answer.version.epoch, answer.version.offset))
        unknown = sorted(place for place in places if place not in chain)
        self._violations.expect(
            "E2",
            not unknown,
            f"{process.name} tells {answer.member_id} of {group_id} of {unknown}, which no majority has",
        )

    def _committed(self, process: Process, request: coordinator_pb2.OffsetCommitRequest) -> None:
        for topic in request.topics:
            for partition in topic.partitions:
                places = self._ledger.commits.get(partition.metadata, [])
                self._violations.expect(
                    "E2",
                    self._ledger.stored(places),
                    f"{process.name} answers OK to commit {partition.metadata}, which no majority has",
                )

    def _joined(
        self,
        process: Process,
        request: coordinator_pb2.JoinGroupRequest,
        answer: coordinator_pb2.JoinGroupResponse,
    ) -> None:
        places = self._ledger.generations.get((request.group_id, answer.generation), [])
        self._violations.expect(
            "E2",
            self._ledger.stored(places),
            f"{process.name} tells {answer.member_id} generation {answer.generation} of {request.group_id}, "
            "which no majority has",
        )
        before = self.joined[process].get(request.group_id, 0)
        self.joined[process][request.group_id] = max(before, answer.generation)

    def _synced(
        self,
        process: Process,
        request: coordinator_pb2.SyncGroupRequest,
        answer: coordinator_pb2.SyncGroupResponse,
    ) -> None:
        key = (request.group_id, request.generation)
        stored = self._ledger.stored(self._ledger.assignments.get(key, []))
        self._violations.expect(
            "E2",
            stored,
            f"{process.name} gives {request.member_id} an assignment of {key}, which no majority has",
        )
        given = {
            row.assignment
            for place in stored
            for row in self._ledger.entries[place].record.assignment_committed.members
        }
        self._violations.expect(
            "G3",
            not answer.assignment or answer.assignment in given,
            f"{process.name} gives {request.member_id} an assignment of {key} that is not in its record",
        )
        before = self._assigned.setdefault((*key, request.member_id), answer.assignment)
        self._violations.expect(
            "G4",
            before == answer.assignment,
            f"{process.name} gives {request.member_id} another assignment of {key} than it got before",
        )

    # --- what clients are sent

    def client_received(self, process: Process, message: Any) -> None:
        """A worker takes a message; all of one worker are about one group."""
        if isinstance(message, session_pb2.SessionResponse):
            for frame in message.frames:
                kind = frame.WhichOneof("kind")
                part = getattr(frame, kind) if kind else None
                if kind == "reply":
                    name = frame.reply.WhichOneof("response")
                    part = getattr(frame.reply, name) if name else None
                self._seen(process, part)
        else:
            self._seen(process, message)

    def adopted(self, process: Process) -> None:
        """See `processes.Watch`."""
        stale = self._stale.get(process, "")
        self._violations.expect("E4", not stale, f"{process.name} takes an assignment of {stale}")

    def _seen(self, process: Process, part: Any) -> None:
        epoch = int(getattr(part, "shard_epoch", 0))
        if isinstance(part, coordinator_pb2.OffsetFetchResponse) and part.groups:
            epoch = int(part.groups[0].shard_epoch)
        if not epoch:
            return
        if isinstance(part, coordinator_pb2.SyncGroupResponse) and part.error_code == _NONE:
            stale = epoch < self._seen_epoch[process]
            self._stale[process] = (
                f"epoch {epoch}, though epoch {self._seen_epoch[process]} was seen" if stale else ""
            )
        if isinstance(part, incremental_pb2.ConsumerGroupHeartbeatResponse):
            self._stale[process] = ""  # it goes on in an incremental group, by versions
        self._seen_epoch[process] = max(epoch, self._seen_epoch[process])

"""What a heartbeat does to its group: the answer, and the records that make it true.

Whoever names its join (`member_seq`, `process_id`) and what it has heard (`version`) is judged by these
alone; everybody else as Kafka 4.1 does, by epochs (conformance HQ-01 to HQ-37).
"""

from dataclasses import replace

from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

from muster_core import cause_kind, error_code
from muster_core.incremental import causes
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.decisions.description import in_order
from muster_core.incremental.decisions.reconciliation import Report
from muster_core.incremental.decisions.request import JOIN, Outcome, Refused, Surroundings
from muster_core.incremental.decisions.upkeep import assign_due, remove
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.member import AWAY, Member, Told
from muster_core.incremental.partitions import NONE, Partitions, named_among, named_in
from muster_core.incremental.rollout import held_by_join
from muster_core.incremental.targets.target import (
    When,
    are_alike,
    subscribed_topics,
)
from muster_core.position import Position

EXPRESSIONS_MAX = 100
"""Different expressions that the members of a group may subscribe to."""


def go_on(
    decision: Decision, request: ConsumerGroupHeartbeatRequest, before: Partitions, *, says: bool
) -> Outcome:
    """What becomes of a request whose join is stored and that has waited for a target.

    Args:
        decision: of the group, which may have others' steps already.
        request: the request; its member must be there, under the join that the request belongs to.
        before: what the member worked on when the request came.
        says: whether what it says of its work counts; not where the member made a step since.
    """
    decision.reconcile(request.member_id, _report(request, says=says))
    decision.wake()
    assigned = decision.group.members[request.member_id].assigned
    whole_list = _asks_for_all(request) or assigned != before
    return Outcome(decision.records, request.member_id, whole_list=whole_list)


def _report(request: ConsumerGroupHeartbeatRequest, *, says: bool = True) -> Report:
    """What a request says of its member's work; it may name far more than anybody looks for."""
    version = Position.from_proto(request.version) if request.member_seq else None
    if not (says and request.HasField("owned")):
        return Report(None, version)
    return Report(lambda partitions: named_among(partitions, request.owned.topics), version)


def _asks_for_all(request: ConsumerGroupHeartbeatRequest) -> bool:
    """By Kafka's rules a list is told to who joins or says everything (conformance HQ-27)."""
    is_full = (
        request.HasField("rebalance_timeout_ms")
        and request.HasField("owned")
        and (request.HasField("topics") or request.HasField("topic_regex"))
    )
    return request.member_epoch == JOIN or is_full


def leave(decision: Decision, request: ConsumerGroupHeartbeatRequest, around: Surroundings) -> Outcome:
    """What becomes of a request of a member that leaves, for good or for a while.

    Raises:
        Refused: it is refused.
    """
    group = decision.group
    member = _named_member(group, request)
    if request.member_seq or member.told.is_numbered:
        _check_join(member, request)
    if request.member_epoch == AWAY:
        decision.leave_for_a_while(member.member_id)
        decision.wake()
    else:
        cause = causes.by_member(cause_kind.LEFT, member, around.wall_ms, reason=request.leave_reason)
        remove(decision, [(member, cause)], around.topics, around.assignors, around.when)
    return Outcome(decision.records, request.member_id, request.member_epoch)


def _named_member(group: IncrementalGroup, request: ConsumerGroupHeartbeatRequest) -> Member:
    """The member that makes a request and does not join (conformance MI-06, SX-05, SX-06).

    Raises:
        Refused: there is none, or its static id belongs to another one.
    """
    if request.HasField("group_instance_id"):
        member = group.static_member(request.group_instance_id)
        if member is not None and member.member_id != request.member_id:
            raise Refused(error_code.FENCED_INSTANCE_ID, "another process has the place of the instance id")
    else:
        member = group.members.get(request.member_id)
    if member is None:
        raise Refused(error_code.UNKNOWN_MEMBER_ID, "the group has no such member; join it")
    return member


def _check_join(member: Member, request: ConsumerGroupHeartbeatRequest) -> None:
    """A request belongs to the present join of its member (docs/safety.md, INC-06).

    Raises:
        Refused: it belongs to another one.
    """
    if not member.told.is_join(request.member_seq, request.process_id):
        raise Refused(error_code.FENCED_MEMBER_EPOCH, "the request is of another join of the member")


class Turn:
    """A request that joins or stays, step by step; `decide_together` takes them in order."""

    def __init__(
        self, decision: Decision, request: ConsumerGroupHeartbeatRequest, around: Surroundings
    ) -> None:
        self._decision = decision
        self._request = request
        self._around = around
        self._before: Partitions = NONE
        self._told_before = Told(request.member_id)
        self._is_new = self._joins_anew = self._is_first = False
        self._when = When.NOW
        self._compared = False

    @property
    def _member(self) -> Member:
        return self._decision.group.members[self._request.member_id]

    # --- who it is

    def enter(self) -> None:
        """Finds the member, or takes it in.

        Raises:
            Refused: it is not what it says.
        """
        request, group = self._request, self._decision.group
        if request.member_epoch != JOIN:
            member = _named_member(group, request)
            self._check_present(member)
            self._told_before = member.told
        elif request.HasField("group_instance_id"):
            self._enter_static(group.static_member(request.group_instance_id))
        else:
            self._enter_by_id(group.members.get(request.member_id))
        self._before = self._member.assigned

    def _enter_by_id(self, member: Member | None) -> None:
        if member is None:
            self._take_in()
        elif self._request.member_seq or member.told.is_numbered:
            self._enter_again(member)
        else:
            _check_epoch(member, self._request)
            self._begin_anew(member)

    def _enter_static(self, holder: Member | None) -> None:
        request = self._request
        if holder is None:
            member = self._decision.group.members.get(request.member_id)
            if member is None:
                self._take_in()
            elif request.member_seq or member.told.is_numbered:
                self._enter_again(member)
            else:  # Kafka does not look at its epoch here
                self._begin_anew(member)
        elif holder.member_id == request.member_id and (request.member_seq or holder.told.is_numbered):
            self._enter_again(holder)
        else:
            self._replace(holder)

    def _enter_again(self, member: Member) -> None:
        """A join that names its number and its process (docs/safety.md, INC-07)."""
        request = self._request
        self._told_before = member.told
        if member.told.process_id != request.process_id:
            self._replace(member)
        elif request.member_seq < member.told.member_seq:
            raise Refused(error_code.FENCED_MEMBER_EPOCH, "the process has joined again since")
        elif request.member_seq > member.told.member_seq:
            self._joins_anew = True
            self._decision.subscribe(self._told(member.told), joined=True)
        elif member.is_away:
            raise Refused(error_code.FENCED_MEMBER_EPOCH, "the member has left for a while under this join")

    def _replace(self, holder: Member) -> None:
        """Another process wants the place (SX-02, SX-14): the holder has left for a while, or is suspect."""
        request = self._request
        other = self._decision.group.members.get(request.member_id)
        is_taken = other is not None and other.member_id != holder.member_id
        if other is not None and is_taken and (request.member_seq or other.told.is_numbered):  # else as Kafka
            raise Refused(error_code.INVALID_REQUEST, "another member of the group has this member_id")
        named = Position.from_proto(request.replaces)
        is_free = holder.is_away or (bool(request.member_seq) and self._around.is_suspect(holder.member_id))
        if not is_free or (request.member_seq and named != holder.joined):
            text = "another process has the place of the static id, or of the member id"
            raise Refused(error_code.UNRELEASED_INSTANCE_ID, text, holder.joined)
        self._told_before, self._joins_anew = holder.told, True
        told = replace(
            holder.told,
            member_id=request.member_id,
            member_seq=request.member_seq,
            process_id=request.process_id,
            secret_hash=self._around.secret_hash,
            identity=holder.told.identity or self._around.identity,
            on_session=self._around.on_session,
            classic_session_ms=0,
            can_be_classic=request.can_be_classic,
            session_timeout_ms=self._granted(request.session_timeout_ms, self._around.session_ms),
            disconnect_grace_ms=self._granted(request.disconnect_grace_ms, self._around.grace_ms),
            weight=request.weight or 1,
            client_version=request.client_version,
            classic_protocols=frozenset(request.classic_protocols),
        )
        self._decision.replace(holder.member_id, told)

    def _take_in(self) -> None:
        self._is_new = self._joins_anew = True
        self._is_first = not self._decision.group.members
        self._decision.subscribe(self._told(Told(self._request.member_id)), joined=True)

    def _begin_anew(self, member: Member) -> None:
        """A join without a number, of a member that is known, declares to work on nothing."""
        self._told_before, self._joins_anew = member.told, True
        if member.held:
            self._decision.subscribe(self._told(member.told), joined=True)

    def _check_present(self, member: Member) -> None:
        request = self._request
        if member.told.is_numbered or request.member_seq:
            _check_join(member, request)
            if member.is_away:
                raise Refused(error_code.FENCED_MEMBER_EPOCH, "the member has left for a while")
            if Position.from_proto(request.version) > member.version:
                text = "the log has lost what the member was told; give everything up and join again"
                raise Refused(error_code.FENCED_MEMBER_EPOCH, text)
        else:
            _check_epoch(member, request)

    # --- what it wants

    def _told(self, before: Told) -> Told:
        """What the member says now; what is absent is as before (conformance HQ-32)."""
        around = self._around
        request = self._request if self._joins_anew else in_order(self._request, around.named)
        joins = request.member_epoch == JOIN
        is_same_join = before.is_join(request.member_seq, request.process_id)
        is_same_join = is_same_join and (not joins or request.member_seq == before.member_seq)
        wishes = joins and not (is_same_join and request.member_seq)  # it may live by the answer to that join
        return replace(
            before,
            group_instance_id=request.group_instance_id or before.group_instance_id,
            rack_id=request.rack_id or before.rack_id,
            client_id=request.client_id,
            host=around.host,
            rebalance_timeout_ms=request.rebalance_timeout_ms or before.rebalance_timeout_ms,
            topics=frozenset(request.topics.names) if request.HasField("topics") else before.topics,
            topic_regex=request.topic_regex if request.HasField("topic_regex") else before.topic_regex,
            server_assignor=request.server_assignor or before.server_assignor,
            member_seq=request.member_seq or before.member_seq,
            process_id=request.process_id or before.process_id,
            secret_hash=before.secret_hash or (around.secret_hash if joins else b""),
            identity=before.identity or (around.identity if joins else ""),
            on_session=self._around.on_session or (is_same_join and before.on_session),
            classic_session_ms=0,
            can_be_classic=request.can_be_classic if joins else before.can_be_classic,
            session_timeout_ms=self._granted(request.session_timeout_ms, around.session_ms)
            if wishes
            else before.session_timeout_ms,
            disconnect_grace_ms=self._granted(request.disconnect_grace_ms, around.grace_ms)
            if wishes
            else before.disconnect_grace_ms,
            weight=(request.weight or 1) if wishes else request.weight or before.weight,
            client_version=request.client_version if joins else before.client_version,
            classic_protocols=frozenset(request.classic_protocols) if joins else before.classic_protocols,
        )

    def _granted(self, wish_ms: int, set_ms: int) -> int:
        """A time that counts as long as a numbered join does: what is set for the group, else the wish."""
        return set_ms if set_ms and self._request.member_seq else wish_ms

    def renew(self) -> causes.Cause | None:
        """Notes what it says; returns why the epoch is to be raised, if that is so (GE-02 to GE-18).

        Raises:
            Refused: it names an expression that nobody can subscribe to.
        """
        decision, around = self._decision, self._around
        member = self._member
        told = self._told(member.told)
        self._check_expression(told)
        if told != member.told:
            decision.subscribe(told, joined=False)
        if self._joins_anew and self._request.rollout_hold_ms and around.may_hold:
            self._hold()
        # Kafka leaves a member that drops its expression what that matched, until something else changes.
        gave_up = told.is_numbered and bool(self._told_before.topic_regex) and not told.topic_regex
        changed = told.topics != self._told_before.topics or self._takes_up(told) or gave_up
        changed = changed or told.weight != self._told_before.weight
        is_first = not decision.group.target_epoch
        if not (changed or around.topics_changed or is_first):
            return None
        self._compared = True
        others_changed = (
            around.topics.hash_of(subscribed_topics(decision.group)) != decision.group.topics_hash
        )
        return self._cause(changed=changed) if changed or others_changed or is_first else None

    def _hold(self) -> None:
        """Its join holds moves back (docs/safety.md, INC-170)."""
        request, group = self._request, self._decision.group
        hold = held_by_join(
            group.hold,
            request.member_id,
            request.rollout_hold_ms,
            self._around.wall_ms,
            group.target_epoch,
            is_first=self._is_first,
        )
        if hold is not None:
            self._decision.hold(hold)

    def _check_expression(self, told: Told) -> None:
        """Looks at an expression that is new for the member (conformance HQ-20).

        Raises:
            Refused: nobody can subscribe to it.
        """
        if not told.topic_regex or told.topic_regex == self._told_before.topic_regex:
            return
        expressions = self._around.expressions
        fault = (
            "expressions are not served here"
            if expressions is None
            else expressions.fault_of(told.topic_regex)
        )
        used = self._decision.group.tally.expressions.keys()
        if not fault and len(used - {told.topic_regex}) >= EXPRESSIONS_MAX:
            fault = f"the group has its limit of {EXPRESSIONS_MAX} expressions"
        if fault:
            raise Refused(error_code.INVALID_REGULAR_EXPRESSION, fault)

    def _takes_up(self, told: Told) -> bool:
        """Whether the member comes to an expression that others have and that is resolved (GE-06, RX-06)."""
        expression = told.topic_regex
        return expression != self._told_before.topic_regex and expression in self._decision.began.expressions

    def _cause(self, *, changed: bool) -> causes.Cause:
        at_ms = self._around.wall_ms
        if self._is_new:
            return causes.by_member(cause_kind.JOINED, self._member, at_ms)
        if changed:
            return causes.by_member(cause_kind.METADATA_CHANGED, self._member, at_ms)
        return causes.topics_changed(at_ms)

    # --- what it gets

    def assign(self) -> When:
        """Computes the target if that is out of date; returns when it is computed."""
        decision = self._decision
        group = decision.group
        if group.epoch <= group.target_epoch:
            return When.NOW
        when = self._around.when(group)
        if when is When.NOW:
            alike = are_alike(group if self._compared else decision.began)
            assign_due(decision, self._around.topics, self._around.assignors, alike)
        elif not group.target_epoch:  # there is none to be answered by
            when = When.ASIDE
        elif self._around.on_session:  # it hears news
            when = When.LATER
        return when

    def step(self, when: When) -> None:
        """Brings the member towards its target, unless it has to wait for that."""
        request, self._when = self._request, when
        if when is When.ASIDE:
            return
        self._decision.reconcile(request.member_id, _report(request))

    def outcome(self) -> Outcome:
        """What it came to."""
        request, group = self._request, self._decision.group
        return Outcome(
            self._decision.records,
            request.member_id,
            whole_list=_asks_for_all(request) or self._member.assigned != self._before,
            when=self._when,
            before=self._before,
            group=group,
        )


def _check_epoch(member: Member, request: ConsumerGroupHeartbeatRequest) -> None:
    """Judges a request by its epoch, as Kafka does (conformance MI-07 to MI-13).

    Raises:
        Refused: it is neither the present one, nor the one before with a list that lies within what it has.
    """
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    if epoch > member.epoch or epoch != member.previous_epoch or not _says_within(request, member.assigned):
        raise Refused(error_code.FENCED_MEMBER_EPOCH, f"the member is at epoch {member.epoch}; join again")


def _says_within(request: ConsumerGroupHeartbeatRequest, assigned: Partitions) -> bool:
    """Whether a request says what its member works on, and all of it is among the assigned partitions."""
    owned = request.owned.topics
    if not request.HasField("owned") or sum([len(entry.partitions) for entry in owned]) > len(assigned):
        return False
    return assigned.issuperset(named_in(owned)) and {topic for topic, _ in assigned}.issuperset(
        [entry.topic for entry in owned]
    )

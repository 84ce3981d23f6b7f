"""Which calls of the group protocol a caller may make, and what of them."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple
from weakref import ref

from google.protobuf.message_factory import GetMessageClass
from muster_core import error_code
from muster_core.events import GroupRequest, GroupResponse, group_of
from muster_core.protocol.responses import refusal
from muster_protos.limits import topic_of
from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.coordinator_pb2 import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from muster_protos.muster.v1.group_conversion_pb2 import ConvertGroupRequest
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
)
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.access.calls import Need, need_of
from muster_runtime.rpc.access.verbs import Kind, Verb
from muster_runtime.rpc.identity import current_identity

from muster_coordinator.api.outcomes import outcomes_of
from muster_coordinator.api.refused_topics import (
    AT_ONCE,
    FetchedGroup,
    keep,
    mix,
    put_in,
    refuse_of_commit,
    refuse_of_fetch,
)
from muster_coordinator.api.steps import CUT_S

_SERVICE = coordinator_pb2.DESCRIPTOR.services_by_name["GroupCoordinatorService"]

_NEEDS: dict[type[Any], Need] = {
    GetMessageClass(method.input_type): need_of(_SERVICE.full_name, method.name)
    for method in _SERVICE.methods
}

_OF_CONSEQUENCE = frozenset(
    (
        DeleteGroupsRequest,
        OffsetDeleteRequest,
        LeaveGroupRequest,
        coordinator_pb2.ReleaseGroupRequest,
        AlterGroupSettingsRequest,
        ConvertGroupRequest,
    )
)
"""Calls that end, take or change what others have: an operator answers for them. A member's leave is none."""

_MEMBERS_KNOWN = 16_384


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a call that is not allowed as it is, or that the trail records.

    Attributes:
        request: the part that is answered; None: nothing of it is.
        complete: makes the whole answer of that part's, or of None.
        is_told: whether `complete` records it in the trail, even if its caller leaves before the answer.
    """

    request: GroupRequest | None
    complete: Callable[[GroupResponse | None], GroupResponse]
    is_told: bool = False


class _JudgedMember(NamedTuple):
    """A member of an incremental group whose topics were looked at.

    Attributes:
        version: of the rights.
        names: of its topics, the very object that they were then, which nobody keeps for this.
        hidden: one that its identity must not see; None: it sees all.
    """

    version: int
    names: ref[frozenset[str]]
    hidden: str | None


class Rights:
    """Judges the calls of the group protocol by the rights of who makes them.

    Args:
        access: the rights.

    Attributes:
        subscribed: the topics that a member of an incremental group has named, by its identity, group and id.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self.subscribed: Callable[[str, str, str], frozenset[str]] = lambda _, __, ___: frozenset()
        self._judged_members: dict[tuple[str, str, str], _JudgedMember] = {}
        self._of_several_groups: dict[type[Any], Callable[[str, Need, Any, str], Verdict | None]] = {
            ListGroupsRequest: lambda *_: None,  # everybody may; it shows what the caller may see
            OffsetFetchRequest: self._fetch,
            DescribeGroupsRequest: self._of_several,
            ConsumerGroupDescribeRequest: self._of_several,  # what it shows is looked at part by part
            DeleteGroupsRequest: self._of_several,
        }
        self._of_some_topics: dict[type[Any], Callable[[str, Any, str], Verdict | None]] = {
            OffsetCommitRequest: self._commit,
            OffsetDeleteRequest: self._delete_offsets,
            ConsumerGroupHeartbeatRequest: self._subscribe,
        }

    def judge(self, request: GroupRequest, host: str) -> Verdict | None:
        """Judges a call of the current caller; None: it is answered as it is, and nothing is recorded.

        Args:
            request: the call.
            host: the address that it came from.
        """
        verdict = self._judged(request, host) if self._access.on else None
        if type(request) not in _OF_CONSEQUENCE or (verdict is not None and verdict.request is None):
            return verdict
        if isinstance(request, LeaveGroupRequest) and not self._puts_out(request):
            return verdict
        return self._told(request, verdict, host)

    async def judge_large(self, request: GroupRequest, host: str, share: LoopShare) -> Verdict | None:
        """As `judge`, of a call that has its turn: thousands of topics are told apart some at a time."""
        if not (self._access.on and isinstance(request, OffsetFetchRequest | OffsetCommitRequest)):
            return self.judge(request, host)
        verdicts: list[Verdict | None] = []
        who, need = current_identity().name, _NEEDS[type(request)]
        if isinstance(request, OffsetFetchRequest):
            steps = self._fetch_in_steps(who, need, request, host, verdicts)
        elif (refused := self._refused_group(who, need, request, host)) is not None:
            return refused
        else:
            steps = self._commit_in_steps(who, request, host, verdicts)
        for _ in steps:
            if share.taken_s > CUT_S:
                await share.rest()
        return verdicts[0]

    def may(self, request: GroupRequest) -> bool:
        """Whether the current caller may make a call that names one group; a no is not recorded."""
        if not self._access.on:
            return True
        need = _NEEDS[type(request)]
        return self._access.may(current_identity().name, need.verb, need.kind, group_of(request))

    def _puts_out(self, request: LeaveGroupRequest) -> bool:
        """Whether a call may put members out as an operator does."""
        return not all(leaver.member_id for leaver in request.members) or bool(
            self.is_operator(request.group_id)
        )

    def _told(self, request: GroupRequest, verdict: Verdict | None, host: str) -> Verdict:
        """A call whose outcome the trail records."""
        trail = self._access.trail
        who = current_identity()  # it is answered where others' calls are

        def complete(answer: Any) -> Any:
            whole = answer if verdict is None else verdict.complete(answer)
            what, errors = outcomes_of(request, whole)
            action = type(request).__name__.removesuffix("Request")
            trail.done(action, what, host, errors, who, reason=_reason_of(request))
            return whole

        return Verdict(request if verdict is None else verdict.request, complete, is_told=True)

    def _judged(self, request: GroupRequest, host: str) -> Verdict | None:
        who = current_identity().name
        kind = type(request)
        need = _NEEDS[kind]
        of_several = self._of_several_groups.get(kind)
        if of_several is not None:
            return of_several(who, need, request, host)
        if (refused := self._refused_group(who, need, request, host)) is not None:
            return refused
        of_topics = self._of_some_topics.get(kind)
        return None if of_topics is None else of_topics(who, request, host)

    def _refused_group(self, who: str, need: Need, request: GroupRequest, host: str) -> Verdict | None:
        """What becomes of a call about something that the caller has no right to; None: it has one."""
        if self._access.allows(who, need.verb, need.kind, group_of(request), host):
            return None
        answer = _refused(request, need)
        return Verdict(None, lambda _: answer)

    @property
    def version(self) -> int:
        """Changes when the rights do."""
        return self._access.version

    def may_join(self, group_id: str, host: str) -> bool:
        """Whether the current caller, at this address, may be in a group."""
        return not self._access.on or self._access.allows(
            current_identity().name, Verb.JOIN, Kind.GROUP, group_id, host
        )

    def sees_group(self) -> Callable[[str], bool] | None:
        """Which groups a list shows the current caller; None: all."""
        if not self._access.on:
            return None
        who = current_identity().name
        if self._access.sees(who, Kind.CLUSTER, ""):
            return None
        return lambda group_id: self._access.sees(who, Kind.GROUP, group_id)

    def sees_topic(self) -> Callable[[str], bool] | None:
        """The topics whose offsets the current caller is shown where it names none; None: all."""
        if not self._access.on:
            return None
        who = current_identity().name
        return lambda name: self._access.sees(who, Kind.TOPIC, topic_of(name))

    def sees_member(self, host: str) -> Callable[[ConsumerGroupDescribeResponse.Member], bool] | None:
        """Which members of an incremental group the current caller may see; None: all.

        A group is shown to who may see all its topics, as in Kafka (conformance GS-14).
        """
        if not self._access.on:
            return None
        who, seen = current_identity().name, set[str]()

        def sees(member: ConsumerGroupDescribeResponse.Member) -> bool:
            names = _topics_of(member) - seen
            if not all(self._topic(who, name, host) for name in sorted(names)):
                return False
            seen.update(names)
            return True

        return sees

    def sees(self, who: str, name: str) -> bool:
        """Whether an identity, by name, may see a topic; a no is not recorded."""
        return self._access.sees(who, Kind.TOPIC, name)

    def is_operator(self, group_id: str) -> bool | None:
        """Whether the current caller may put members of others out of a group; None: no file says who may."""
        if not self._access.on:
            return None
        return self._access.may(current_identity().name, Verb.ADMIN, Kind.GROUP, group_id)

    def _topic(self, who: str, name: str, host: str) -> bool:
        return self._access.allows(who, Verb.DESCRIBE, Kind.TOPIC, topic_of(name), host)

    def _topics(self, who: str, names: Sequence[str], host: str) -> list[bool]:
        names = [topic_of(name) for name in names]
        return self._access.allows_each(who, Verb.DESCRIBE, Kind.TOPIC, names, host)

    def _topics_in_steps(
        self, who: str, names: Sequence[str], host: str
    ) -> Generator[None, None, list[bool]]:
        """As `_topics`, for names of topics without what tells one from those before it."""
        seen: list[bool] = []
        for begin in range(0, len(names), AT_ONCE):
            some = names[begin : begin + AT_ONCE]
            seen += self._access.may_each(who, Verb.DESCRIBE, Kind.TOPIC, some)
            yield
        unseen = [name for name, is_seen in zip(names, seen, strict=True) if not is_seen]
        self._access.refuse_each(who, Verb.DESCRIBE, Kind.TOPIC, unseen, host)
        return seen

    def _commit(self, who: str, request: OffsetCommitRequest, host: str) -> Verdict | None:
        verdicts: list[Verdict | None] = []
        for _ in self._commit_in_steps(who, request, host, verdicts):
            pass
        return verdicts[0]

    def _commit_in_steps(
        self, who: str, request: OffsetCommitRequest, host: str, verdicts: list[Verdict | None]
    ) -> Iterator[None]:
        """Judges an OffsetCommit, as `_fetch_in_steps`."""
        names = [topic_of(topic.name) for topic in request.topics]
        allowed = yield from self._topics_in_steps(who, names, host)
        names = [topic_of(topic.name) for topic in request.ends]
        reported = yield from self._topics_in_steps(who, names, host)
        if all(allowed) and all(reported):
            verdicts.append(None)
            return
        refused: Any = refusal(OffsetCommitRequest(), error_code.TOPIC_AUTHORIZATION_FAILED, 0)
        yield from refuse_of_commit(
            refused, [t for t, may in zip(request.topics, allowed, strict=True) if not may]
        )
        part = OffsetCommitRequest()
        part.CopyFrom(request)
        keep(part.ends, reported)  # ends have no outcome: those of other topics are left out
        verdicts.append(Verdict(part, _whole) if all(allowed) else self._of_topics(part, refused, allowed))

    def _subscribe(self, who: str, request: ConsumerGroupHeartbeatRequest, host: str) -> Verdict | None:
        """A member is assigned partitions, so it must be allowed to see their topics, as in Kafka.

        Those that it named before are looked at again when the rights have changed (ACC-04).
        """
        if not request.topics.names and request.member_epoch > 0:
            hidden = self._hidden(who, request.group_id, request.member_id)
        else:
            hidden = self._first_hidden(who, request.topics.names)
        if hidden is None or self._topic(who, hidden, host):
            return None
        text = f"no rule allows the caller to describe topic {hidden!r} (`muster access check` explains)"
        answer = refusal(request, error_code.TOPIC_AUTHORIZATION_FAILED, 0, text)
        return Verdict(None, lambda _: answer)

    def may_stay(self, group_id: str, member_id: str, host: str) -> bool:
        """Whether the current caller, at this address, may be the member that it is, by the rights of now."""
        who = current_identity().name
        if not self.may_join(group_id, host):
            return False
        hidden = self._hidden(who, group_id, member_id)
        return hidden is None or self._topic(who, hidden, host)

    def _hidden(self, who: str, group_id: str, member_id: str) -> str | None:
        """A topic of a member that its identity must not see by the rights of now; None: it sees all.

        They are looked at once for each change of the rights, or of its topics: there may be ten thousand.
        """
        key, version = (who, group_id, member_id), self._access.version
        if not version:
            return None
        names = self.subscribed(who, group_id, member_id)
        judged = self._judged_members.get(key)
        if judged is None or judged.version != version or judged.names() is not names:
            if len(self._judged_members) >= _MEMBERS_KNOWN:
                self._judged_members.clear()
            judged = _JudgedMember(version, ref(names), self._first_hidden(who, names))
            self._judged_members[key] = judged
        return judged.hidden

    def _first_hidden(self, who: str, names: Iterable[str]) -> str | None:
        return next((name for name in names if not self._access.sees(who, Kind.TOPIC, topic_of(name))), None)

    def _delete_offsets(self, who: str, request: OffsetDeleteRequest, host: str) -> Verdict | None:
        allowed = self._topics(who, [topic.topic for topic in request.topics], host)
        if all(allowed):
            return None
        refused = coordinator_pb2.OffsetDeleteResponse()
        for topic in [topic for topic, may in zip(request.topics, allowed, strict=True) if not may]:
            outcomes = refused.topics.add(name=topic.topic).partitions
            for partition in topic.partitions:
                outcomes.add(partition=partition, error_code=error_code.TOPIC_AUTHORIZATION_FAILED)
        return self._of_topics(request, refused, allowed)

    def _of_topics(self, request: Any, refused: Any, allowed: Sequence[bool]) -> Verdict:
        """A call about some topics of a group; what becomes of the others, which is part of the answer."""
        if not any(allowed):
            return Verdict(None, lambda _: refused)
        part = type(request)()
        part.CopyFrom(request)
        keep(part.topics, allowed)

        def complete(answer: Any) -> Any:
            if not answer.topics:  # an error of the whole call
                return answer
            whole = type(answer)()
            whole.CopyFrom(answer)
            mix(whole.topics, answer.topics, refused.topics, allowed)
            return whole

        return Verdict(part, complete)

    def _of_several(
        self,
        who: str,
        need: Need,
        request: DescribeGroupsRequest | ConsumerGroupDescribeRequest | DeleteGroupsRequest,
        host: str,
    ) -> Verdict | None:
        group_ids = list(dict.fromkeys(request.group_ids))
        allowed = self._access.allows_each(who, *need, group_ids, host)
        if all(allowed):
            return None
        kind = type(request)
        refused: Any = _refused(kind(group_ids=group_ids), need)
        if not any(allowed):
            return Verdict(None, lambda _: refused)
        part = kind(group_ids=[group_id for group_id, may in zip(group_ids, allowed, strict=True) if may])

        def complete(answer: Any) -> Any:
            if isinstance(request, DeleteGroupsRequest):
                put_in(answer.results, refused.results, allowed)
            else:
                put_in(answer.groups, refused.groups, allowed)
            return answer

        return Verdict(part, complete)

    def _fetch(self, who: str, need: Need, request: OffsetFetchRequest, host: str) -> Verdict | None:
        verdicts: list[Verdict | None] = []
        for _ in self._fetch_in_steps(who, need, request, host, verdicts):
            pass
        return verdicts[0]

    def _fetch_in_steps(
        self, who: str, need: Need, request: OffsetFetchRequest, host: str, verdicts: list[Verdict | None]
    ) -> Iterator[None]:
        """Judges an OffsetFetch, and yields between its steps; `verdicts` gets what it comes to."""
        group_ids = [group.group_id for group in request.groups]
        may_read = self._access.allows_each(who, *need, group_ids, host)
        read = [group for group, may in zip(request.groups, may_read, strict=True) if may]
        names = [topic_of(topic.topic) for group in read for topic in group.topics]
        sees = iter((yield from self._topics_in_steps(who, names, host)))
        hidden = [group for group, may in zip(request.groups, may_read, strict=True) if not may]
        refused: Any = _refused(OffsetFetchRequest(groups=hidden), need) if hidden else request
        refusals = iter(refused.groups)
        groups: list[FetchedGroup] = []
        part = OffsetFetchRequest()
        for group, may in zip(request.groups, may_read, strict=True):
            if not may:
                groups.append(FetchedGroup(next(refusals), is_asked=False))
                continue
            allowed = list(islice(sees, len(group.topics)))
            if all(allowed):
                groups.append(FetchedGroup(is_asked=True))
                part.groups.append(group)
                continue
            left_out = yield from refuse_of_fetch(group)
            # Of a group of which no topic may be asked for, nothing is: without topics it would be all.
            is_asked = any(allowed)
            groups.append(FetchedGroup(left_out, is_asked, allowed))
            if is_asked:
                part.groups.append(group)
                keep(part.groups[-1].topics, allowed)
            yield
        if all(group.refused is None for group in groups):
            verdicts.append(None)
            return

        def complete(answer: Any) -> Any:
            whole = OffsetFetchResponse() if answer is None else answer
            for place, group in enumerate(groups):
                if group.is_asked:
                    group.complete(whole.groups[place])
                else:
                    whole.groups.insert(place, group.refused or OffsetFetchResponse.Group())
            return whole

        verdicts.append(Verdict(part if part.groups else None, complete))


def _topics_of(member: ConsumerGroupDescribeResponse.Member) -> set[str]:
    """What it names, has, is to give back and should have."""
    names = set(member.topics)
    names.update([one.topic for part in (member.assigned, member.revoking, member.target) for one in part])
    return names


def _whole(answer: GroupResponse | None) -> GroupResponse:
    assert answer is not None
    return answer


def _reason_of(request: GroupRequest) -> str:
    """Why members are put out, as who does it says; empty: that is not said, or none is."""
    leavers = request.members if isinstance(request, LeaveGroupRequest) else ()
    return next((leaver.reason for leaver in leavers if leaver.reason), "")


def _refused(request: GroupRequest, need: Need) -> GroupResponse:
    return refusal(request, error_code.GROUP_AUTHORIZATION_FAILED, 0, need.refusal)

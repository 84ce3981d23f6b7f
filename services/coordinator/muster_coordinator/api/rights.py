"""Which calls of the group protocol a caller may make, and what of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster_core import error_code
from muster_core.events import GroupRequest, GroupResponse
from muster_core.protocol.responses import refusal
from muster_protos.limits import topic_of
from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.coordinator_pb2 import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.access.calls import Need, need_of
from muster_runtime.rpc.access.verbs import Kind, Verb
from muster_runtime.rpc.identity import current_identity

_SERVICE = coordinator_pb2.DESCRIPTOR.services_by_name["GroupCoordinatorService"]

_NEEDS: dict[type[GroupRequest], Need] = {
    getattr(coordinator_pb2, method.input_type.name): need_of(_SERVICE.full_name, method.name)
    for method in _SERVICE.methods
}

_NO_RIGHT = "no rule allows the caller {verb} of this group (`muster access check` explains)"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a call of which not everything is allowed.

    Attributes:
        request: the part that is answered; None: nothing of it is.
        complete: makes the whole answer of that part's, or of None.
    """

    request: GroupRequest | None
    complete: Callable[[GroupResponse | None], GroupResponse]


class Rights:
    """Judges the calls of the group protocol by the rights of who makes them.

    Args:
        access: the rights.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    def judge(self, request: GroupRequest) -> Verdict | None:
        """Whether the caller of now may make a call; None: it may, all of it."""
        if not self._access.on:
            return None
        who = current_identity().name
        need = _NEEDS[type(request)]
        match request:
            case ListGroupsRequest():
                return None  # everybody may; it shows what the caller may see
            case OffsetFetchRequest():
                return self._fetch(who, need, request)
            case DescribeGroupsRequest() | DeleteGroupsRequest():
                return self._of_several(who, need, request)
            case _:
                pass
        if not self._access.allows(who, need.verb, need.kind, request.group_id):
            answer = _refused(request, need)
            return Verdict(None, lambda _: answer)
        if isinstance(request, OffsetCommitRequest):
            return self._commit(who, request)
        if isinstance(request, OffsetDeleteRequest):
            return self._delete_offsets(who, request)
        return None

    @property
    def version(self) -> int:
        """Changes when the rights do."""
        return self._access.version

    def may_join(self, group_id: str) -> bool:
        """Whether the caller of now may be in a group."""
        return not self._access.on or self._access.allows(
            current_identity().name, Verb.JOIN, Kind.GROUP, group_id
        )

    def sees_group(self) -> Callable[[str], bool] | None:
        """Which groups a list shows the caller of now; None: all."""
        if not self._access.on:
            return None
        who = current_identity().name
        if self._access.sees(who, Kind.CLUSTER, ""):
            return None
        return lambda group_id: self._access.sees(who, Kind.GROUP, group_id)

    def sees_topic(self) -> Callable[[str], bool] | None:
        """The topics whose offsets the caller of now is shown where it names none; None: all."""
        if not self._access.on:
            return None
        who = current_identity().name
        return lambda name: self._access.sees(who, Kind.TOPIC, topic_of(name))

    def is_operator(self, group_id: str) -> bool | None:
        """Whether the caller of now may put members of others out of a group; None: no file says who may."""
        if not self._access.on:
            return None
        return self._access.may(current_identity().name, Verb.ADMIN, Kind.GROUP, group_id)

    def _topic(self, who: str, name: str) -> bool:
        return self._access.allows(who, Verb.DESCRIBE, Kind.TOPIC, topic_of(name))

    def _commit(self, who: str, request: OffsetCommitRequest) -> Verdict | None:
        allowed = [self._topic(who, topic.name) for topic in request.topics]
        if all(allowed):
            return None
        refused = refusal(request, error_code.TOPIC_AUTHORIZATION_FAILED, 0)
        return self._of_topics(request, refused, allowed)

    def _delete_offsets(self, who: str, request: OffsetDeleteRequest) -> Verdict | None:
        allowed = [self._topic(who, topic.topic) for topic in request.topics]
        if all(allowed):
            return None
        refused = coordinator_pb2.OffsetDeleteResponse()
        for topic in request.topics:
            outcomes = refused.topics.add(name=topic.topic).partitions
            for partition in topic.partitions:
                outcomes.add(partition=partition, error_code=error_code.TOPIC_AUTHORIZATION_FAILED)
        return self._of_topics(request, refused, allowed)

    def _of_topics(self, request: Any, refused: Any, allowed: Sequence[bool]) -> Verdict:
        """A call about some topics of a group: what becomes of the others is part of the answer."""
        if not any(allowed):
            return Verdict(None, lambda _: refused)
        part = type(request)()
        part.CopyFrom(request)
        _keep(part.topics, allowed)

        def complete(answer: Any) -> Any:
            if not answer.topics:  # an error of the whole call
                return answer
            whole = type(answer)()
            whole.CopyFrom(answer)
            _mix(whole.topics, answer.topics, refused.topics, allowed)
            return whole

        return Verdict(part, complete)

    def _of_several(
        self, who: str, need: Need, request: DescribeGroupsRequest | DeleteGroupsRequest
    ) -> Verdict | None:
        group_ids = list(dict.fromkeys(request.group_ids))
        allowed = [self._access.allows(who, need.verb, need.kind, group_id) for group_id in group_ids]
        if all(allowed):
            return None
        kind = type(request)
        refused: Any = _refused(kind(group_ids=group_ids), need)
        if not any(allowed):
            return Verdict(None, lambda _: refused)
        part = kind(group_ids=[group_id for group_id, may in zip(group_ids, allowed, strict=True) if may])

        def complete(answer: Any) -> Any:
            whole = type(answer)()
            if isinstance(request, DescribeGroupsRequest):
                _mix(whole.groups, answer.groups, refused.groups, allowed)
            else:
                _mix(whole.results, answer.results, refused.results, allowed)
            return whole

        return Verdict(part, complete)

    def _fetch(self, who: str, need: Need, request: OffsetFetchRequest) -> Verdict | None:
        access = self._access
        groups: list[_FetchedGroup] = []
        part = OffsetFetchRequest()
        for group in request.groups:
            if not access.allows(who, need.verb, need.kind, group.group_id):
                refused: Any = _refused(OffsetFetchRequest(groups=[group]), need)
                groups.append(_FetchedGroup(refused.groups[0], is_asked=False))
                continue
            allowed = [self._topic(who, topic.topic) for topic in group.topics]
            if all(allowed):
                groups.append(_FetchedGroup(is_asked=True))
                part.groups.append(group)
                continue
            left_out = OffsetFetchResponse.Group(group_id=group.group_id)
            for topic in group.topics:
                outcomes = left_out.topics.add(name=topic.topic).partitions
                for partition in topic.partitions:
                    outcomes.add(
                        partition=partition,
                        offset=-1,
                        leader_epoch=-1,
                        error_code=error_code.TOPIC_AUTHORIZATION_FAILED,
                    )
            # Of a group of which no topic may be asked for, nothing is: without topics it would be all.
            is_asked = any(allowed)
            groups.append(_FetchedGroup(left_out, is_asked, allowed))
            if is_asked:
                part.groups.append(group)
                _keep(part.groups[-1].topics, allowed)
        if all(group.refused is None for group in groups):
            return None

        def complete(answer: Any) -> Any:
            whole = OffsetFetchResponse()
            answered = iter(answer.groups if answer is not None else ())
            whole.groups.extend(
                group.complete(next(answered) if group.is_asked else None) for group in groups
            )
            return whole

        return Verdict(part if part.groups else None, complete)


@dataclass(frozen=True, slots=True)
class _FetchedGroup:
    """A group of an OffsetFetch.

    Attributes:
        refused: the answer for what of it is refused; None: nothing is.
        is_asked: whether anything of it is asked for.
        allowed: which of its topics are.
    """

    refused: OffsetFetchResponse.Group | None = None
    is_asked: bool = True
    allowed: Sequence[bool] = field(default_factory=tuple)

    def complete(self, answer: OffsetFetchResponse.Group | None) -> OffsetFetchResponse.Group:
        """The answer to what was asked, with what is refused."""
        if answer is None:
            return self.refused or OffsetFetchResponse.Group()
        if self.refused is None or answer.error_code:
            return answer
        whole = OffsetFetchResponse.Group()
        whole.CopyFrom(answer)
        _mix(whole.topics, answer.topics, self.refused.topics, self.allowed)
        return whole


def _keep(topics: Any, allowed: Sequence[bool]) -> None:
    for place in range(len(allowed) - 1, -1, -1):
        if not allowed[place]:
            del topics[place]


def _mix(whole: Any, answered: Any, refused: Sequence[Any], allowed: Sequence[bool]) -> None:
    """Fills a list with answers and refusals, in the order of the request."""
    rest: Iterator[Any] = iter(answered)
    parts = [next(rest) if may else refused[place] for place, may in enumerate(allowed)]
    del whole[:]
    whole.extend(parts)


def _refused(request: GroupRequest, need: Need) -> GroupResponse:
    return refusal(request, error_code.GROUP_AUTHORIZATION_FAILED, 0, _NO_RIGHT.format(verb=need.verb))

"""A connection to a cluster: topics, groups, and what members share."""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, TypeVar

import grpc
from muster_protos.limits import REASON_MAX_CHARACTERS
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2
from muster_protos.muster.v1.group_conversion_pb2 import (
    GROUP_KIND_CLASSIC,
    GROUP_KIND_INCREMENTAL,
    ConvertGroupRequest,
    ConvertGroupResponse,
    GroupKind,
)
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsResponse
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)

from muster._alarms import Alarms
from muster._backoff import Backoff
from muster._blocked.stand_in import StandIn
from muster._clock import boot_ms
from muster._cluster.deadline import Deadline
from muster._cluster.discovery import DiscoveryClient, parse_servers
from muster._cluster.fetching import fetch_committed, fetch_progress
from muster._cluster.group_settings import SettingValue, request_of, values_of
from muster._cluster.lately import AnsweredLately
from muster._cluster.link import GroupLink, address_of
from muster._cluster.quota_calls import ProcessQuotas, quotas_of
from muster._cluster.topic_calls import TopicCalls, no_such_topic
from muster._config import (
    LONGEST_TIMEOUT_MS,
    check_between,
    check_group_id,
    check_name,
    check_partition_list,
    check_texts,
)
from muster._errors import ClusterUnavailable, SettingsError, TopicError, code_name, group_error
from muster._messages import decode_assignment, to_messages
from muster._parking import Parked, decode, mark_of
from muster._reactions import CONNECTION_LOST, Call, Reaction, reaction_to
from muster._session.channels import ChannelPool, Connect
from muster._session.sessions import SessionTransport
from muster._session.tls import TlsFiles
from muster._session.token import TokenFile
from muster._session.transport import (
    ConnectionLost,
    GroupRequest,
    GroupResponse,
    Overloaded,
    UnaryTransport,
)
from muster._text import harmless
from muster._values import Committed, Owner, Progress, TopicPartition

Response = TypeVar("Response", bound=GroupResponse)
_GROUPS_PER_PAGE = 2_000
_KINDS: Mapping[str, GroupKind.ValueType] = {
    "classic": GROUP_KIND_CLASSIC,
    "incremental": GROUP_KIND_INCREMENTAL,
}


class Cluster(TopicCalls):
    """A connection to a cluster. Use it as an async context manager, or call `close`.

    Members of one process share a cluster and its connections: one session stream per coordinator keeps all
    of them alive. It belongs to the event loop in which it is first used.

    Args:
        servers: discovery addresses, `host:port` with commas between or a list. None: the environment
            variable MUSTER_SERVERS, else `localhost:7400`.
        timeout_ms: how long a call of this class tries before it raises `ClusterUnavailable`.
        credentials: TLS credentials, or `TlsFiles`, which may be renewed meanwhile. None: the files that the
            environment variables MUSTER_TLS_CA_FILE, MUSTER_TLS_CERT_FILE and MUSTER_TLS_KEY_FILE name;
            plain text without any of them.
        connect: makes the gRPC channel to an address, e.g. with options or interceptors of your own;
            `credentials` are then not used. The channel must not retry calls.
        token_file: the file of a token that says who this client is, or a `TokenFile`; it may be renewed
            meanwhile. It is sent over TLS only, unless `TokenFile(path, plain_text=True)` or
            MUSTER_TOKEN_PLAIN_TEXT=true allows it without. None: the file that MUSTER_TOKEN_FILE names,
            except with `connect`, which has to show a token by itself.

    Raises:
        SettingsError: an address, a certificate file or the token file cannot be read, or the token would be
            sent over plain text.
        MusterError: this process was forked from one that was connected. Fork before you connect, or spawn.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        timeout_ms: int = 30_000,
        credentials: grpc.ChannelCredentials | TlsFiles | None = None,
        connect: Connect | None = None,
        token_file: str | os.PathLike[str] | TokenFile | None = None,
    ) -> None:
        self.servers: tuple[str, ...] = parse_servers(servers)
        check_between("timeout_ms", timeout_ms, 1, LONGEST_TIMEOUT_MS)
        if not isinstance(credentials, grpc.ChannelCredentials | TlsFiles | None):
            raise SettingsError(
                "credentials",
                f"must be TlsFiles or grpc.ChannelCredentials, not {type(credentials).__name__}",
            )
        if connect is not None and not callable(connect):
            raise SettingsError("connect", f"must be a function that gets an address, not {connect!r}")
        self.alarms: Alarms = Alarms()
        if connect is not None and token_file is not None:
            raise SettingsError("token_file", "is not used with `connect`, which shows a token by itself")
        if credentials is None and connect is None:
            credentials = TlsFiles.from_environment()
        token = TokenFile.of(token_file) if connect is None else None
        self._channels = ChannelPool(credentials, connect=connect, token=token)
        self.stand_in: StandIn = StandIn(self._channels)
        super().__init__(DiscoveryClient(self.servers, self._channels), timeout_ms)
        self._unary = UnaryTransport(self._channels)
        self._sessions = SessionTransport(self._channels, self._unary)
        self._lately = AnsweredLately()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections. Close the members first."""
        try:
            await self._sessions.close()
        finally:
            await self._channels.close()

    def link(self, group_id: str, *, session: bool = False) -> GroupLink:
        """A link to the coordinator of a group: on the shared session stream, or by unary calls."""
        return GroupLink(group_id, self._discovery, self._sessions if session else self._unary, self._lately)

    async def describe(self) -> discovery_pb2.Cluster:
        """Coordinators, owners of shards and nodes of the log, as a discovery server sees them now."""
        answer = await self._discovery.ask(
            "DescribeCluster",
            discovery_pb2.DescribeClusterRequest(),
            discovery_pb2.DescribeClusterResponse,
            timeout_ms=self.timeout_ms,
        )
        return answer.cluster

    async def quotas(self, limit: int = 100) -> list[ProcessQuotas]:
        """The quotas at the discovery servers of this object and at each coordinator, and who uses them.

        Args:
            limit: callers of each process at most; those who were refused last come first. 1 to 1,000.
        """
        check_between("limit", limit, 1, 1_000)
        view = await self.describe()
        live = [c for c in view.coordinators if c.state != discovery_pb2.COORDINATOR_STATE_DEAD]
        addresses = [*self.servers, *(address_of(c.host, c.port) for c in live)]
        return await quotas_of(self._channels, dict.fromkeys(addresses), limit)

    # Groups

    async def list_groups(self, states: Iterable[str] = ()) -> list[coordinator_pb2.ListGroupsResponse.Group]:
        """Groups of all coordinators, by id; with `states` (`Stable`, `Empty`, ...) only those in one."""
        request = coordinator_pb2.ListGroupsRequest(states=check_texts("states", states))
        ends_at_ms = boot_ms() + self.timeout_ms
        backoff = Backoff()
        while True:
            try:
                return await self._list_groups_once(request)
            except (ConnectionLost, Overloaded) as error:
                if boot_ms() >= ends_at_ms:
                    raise ClusterUnavailable(
                        f"not every coordinator could be asked for its groups: {error}"
                    ) from error
            await backoff.pause()

    async def _list_groups_once(
        self, request: coordinator_pb2.ListGroupsRequest
    ) -> list[coordinator_pb2.ListGroupsResponse.Group]:
        view = await self.describe()
        live = [c for c in view.coordinators if c.state != discovery_pb2.COORDINATOR_STATE_DEAD]
        lists = await asyncio.gather(
            *(self._list_groups_of(address_of(c.host, c.port), request) for c in live)
        )
        # A shard may move between two pages: then two coordinators list its groups.
        groups = {group.group_id: group for listed in lists for group in listed}
        return [groups[group_id] for group_id in sorted(groups)]

    async def _list_groups_of(
        self, address: str, request: coordinator_pb2.ListGroupsRequest
    ) -> list[coordinator_pb2.ListGroupsResponse.Group]:
        """All groups of one coordinator, page by page; an older one answers with all of them at once."""
        groups: list[coordinator_pb2.ListGroupsResponse.Group] = []
        page = coordinator_pb2.ListGroupsRequest(states=request.states, limit=_GROUPS_PER_PAGE)
        while True:
            answer = await self._unary.call(
                address, page, coordinator_pb2.ListGroupsResponse, timeout_ms=5_000
            )
            if answer.error_code:
                raise ConnectionLost(code_name(int(answer.error_code)))
            groups += answer.groups
            if not answer.next_page_token:
                return groups
            page.page_token = answer.next_page_token

    async def describe_group(self, group_id: str) -> coordinator_pb2.DescribeGroupsResponse.Group:
        """State, members and assignments of a group; its state is DEAD if there is no such group."""
        request = coordinator_pb2.DescribeGroupsRequest(group_ids=[check_group_id(group_id)])
        return (await self._group_call(group_id, request, coordinator_pb2.DescribeGroupsResponse)).groups[0]

    async def describe_incremental_group(self, group_id: str) -> ConsumerGroupDescribeResponse.Group:
        """What is on its way in a group whose partitions the coordinator assigns.

        Raises:
            GroupError: there is no such group, or it is a classic one.
        """
        request = ConsumerGroupDescribeRequest(group_ids=[check_group_id(group_id)])
        answer = await self._group_call(group_id, request, ConsumerGroupDescribeResponse)
        group = answer.groups[0]
        if group.error_code:
            raise group_error(group_id, int(group.error_code), group.error_message)
        return group

    async def owner_of(self, group_id: str, topic: str, key: str | int) -> Owner | None:
        """Who owns a partition by the last assignment of a group; None: nobody does.

        It may be another one by the time that you act on it: only the token of an ownership fences.

        Args:
            group_id: the group.
            topic: name of the topic.
            key: name of the partition, or its number: `Partition.key`.

        Raises:
            TopicError: there is no such topic or partition.
        """
        found = await self.topics([check_name("topic", topic)])
        if not found:
            raise no_such_topic(topic)
        number = found[0].number_of(key)
        if number is None:
            raise TopicError(topic, f"topic {topic!r} has no partition {key!r}")
        partition = TopicPartition(topic, number)
        group = await self.describe_group(group_id)
        for member in group.members:
            if partition in (decode_assignment(member.assignment) or ()):
                return Owner(
                    partition,
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.host,
                    group.generation,
                )
        return None

    async def group_history(
        self, group_id: str, limit: int = 20
    ) -> list[coordinator_pb2.GroupHistoryResponse.Generation]:
        """The last generations of a group, oldest first: when and why, the members, and what moved.

        Raises:
            GroupError: there is no such group.
        """
        check_between("limit", limit, 0, (1 << 31) - 1)
        request = coordinator_pb2.GroupHistoryRequest(group_id=check_group_id(group_id), limit=limit)
        return list(
            (await self._group_call(group_id, request, coordinator_pb2.GroupHistoryResponse)).generations
        )

    async def delete_group(self, group_id: str) -> None:
        """Removes an empty group with its offsets.

        Raises:
            GroupError: it has members, or does not exist.
        """
        request = coordinator_pb2.DeleteGroupsRequest(group_ids=[check_group_id(group_id)])
        await self._group_call(group_id, request, coordinator_pb2.DeleteGroupsResponse)

    async def release_group(self, group_id: str) -> None:
        """Ends a group's quarantine: its coordinator loads it again and serves it.

        Raises:
            GroupError: it is not in quarantine.
        """
        request = coordinator_pb2.ReleaseGroupRequest(group_id=check_group_id(group_id))
        await self._group_call(group_id, request, coordinator_pb2.ReleaseGroupResponse)

    async def alter_group_settings(
        self, group_id: str, settings: Mapping[str, SettingValue], unset: Iterable[str] = ()
    ) -> dict[str, SettingValue]:
        """Sets what holds for one group, instead of what its coordinators are set to.

        A group that does not exist is made, without members. The right `admin` of the group is needed.

        Args:
            group_id: the group.
            settings: values by name: `assignor`, `assignment_interval_ms`, `session_timeout_ms`,
                `heartbeat_interval_ms`, `disconnect_grace_ms`, `convert`, `hold`. What is missing stays.
            unset: names of those that are not to be set any more.

        Returns:
            All that is set for the group now, by name.

        Raises:
            SettingsError: there is no such setting, or it is of another type.
            GroupError: a value is not possible, there is no group to take settings back from, or the cluster
                has not enabled the feature `group-settings`. Nothing was changed.
        """
        request = request_of(check_group_id(group_id), settings, unset)
        answer = await self._group_call(group_id, request, AlterGroupSettingsResponse)
        return values_of(answer.settings)

    async def convert_group(
        self, group_id: str, kind: Literal["classic", "incremental"], reason: str = ""
    ) -> bool:
        """Makes a group with members one of another kind while they work.

        What is set as `convert` does not keep it from that. The right `admin` of the group is needed.

        Args:
            group_id: the group.
            kind: what it is to be.
            reason: why, at most 255 characters; it is in the group's history.

        Returns:
            Whether it was of the other kind. One that is of this kind stays as it is.

        Raises:
            SettingsError: there is no such kind.
            GroupError: it cannot be of this kind now, for instance because a member cannot, or because it has
                no members; or there is no such group, or the cluster has not enabled the feature
                `incremental-groups`. Nothing was changed.
        """
        if (wanted := _KINDS.get(kind)) is None:
            raise SettingsError("kind", f"must be {' or '.join(_KINDS)}, not {kind!r}")
        request = ConvertGroupRequest(
            group_id=check_group_id(group_id), kind=wanted, reason=harmless(reason)[:REASON_MAX_CHARACTERS]
        )
        answer = await self._group_call(group_id, request, ConvertGroupResponse)
        return answer.was != wanted

    async def remove_member(self, group_id: str, member: str, reason: str = "") -> None:
        """Puts a member out of a group, as an operator; the others share its work. It may join again.

        A dynamic member that has a secret, as those of this library do, or an identity, is put out only by
        who has the right `admin` of the group, so only where there are rules of access.

        Args:
            group_id: the group.
            member: its member id or group instance id, as `describe_group` shows them.
            reason: why, at most 255 characters; it is in the cause of the rebalance.

        Raises:
            GroupError: the group has no such member, or the caller may not put it out.
        """
        check_group_id(group_id)
        (member,) = check_texts("member", [member])
        leaver = coordinator_pb2.LeaveGroupRequest.Member
        short = harmless(reason)[:REASON_MAX_CHARACTERS]
        ways = [leaver(member_id=member, reason=short), leaver(group_instance_id=member, reason=short)]
        request = coordinator_pb2.LeaveGroupRequest(group_id=group_id, members=ways)
        answer = await self._group_call(group_id, request, coordinator_pb2.LeaveGroupResponse)
        codes = [int(outcome.error_code) for outcome in answer.members]
        if common_pb2.ERROR_CODE_NONE not in codes:
            text = f"it has no member {member!r} that may be put out without the right `admin` of the group"
            raise group_error(group_id, codes[0], text)

    async def parked(self, group_id: str) -> list[Parked]:
        """The parked partitions of a group, by topic and number."""
        link = self.link(check_group_id(group_id))
        async with self._deadline(link):
            found = await fetch_committed(
                link, None, marks=True, request_timeout_ms=self.timeout_ms, give_up_after_ms=self.timeout_ms
            )
        return [decode(mark, found[mark]) for mark in sorted(found)]

    async def release_partitions(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Has the work on parked partitions called again, within seconds; nothing happens to others.

        Raises:
            GroupError: there is no such group.
        """
        topics = to_messages(mark_of(p) for p in check_partition_list("partitions", partitions))
        if topics:
            request = coordinator_pb2.OffsetDeleteRequest(group_id=check_group_id(group_id), topics=topics)
            answer = await self._group_call(group_id, request, coordinator_pb2.OffsetDeleteResponse)
            for topic in answer.topics:
                for entry in topic.partitions:
                    if entry.error_code:
                        raise group_error(group_id, int(entry.error_code), f"{topic.name}-{entry.partition}")

    async def committed(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed]:
        """What a group committed, for some partitions or (None) all; those without a commit are missing."""
        link = self.link(check_group_id(group_id))
        async with self._deadline(link):
            return await fetch_committed(
                link,
                None if partitions is None else check_partition_list("partitions", partitions),
                request_timeout_ms=self.timeout_ms,
                give_up_after_ms=self.timeout_ms,
            )

    async def progress(self, group_id: str) -> list[Progress]:
        """How far a group got, by topic and number: what it committed, and what is left if that is known."""
        return await self.progress_of(await self.describe_group(group_id))

    async def progress_of(self, group: coordinator_pb2.DescribeGroupsResponse.Group) -> list[Progress]:
        """Like `progress`, of a group as `describe_group` gave it."""
        assigned = {p for member in group.members for p in decode_assignment(member.assignment) or ()}
        link = self.link(group.group_id)
        async with self._deadline(link):
            return await fetch_progress(link, assigned, timeout_ms=self.timeout_ms)

    async def _group_call(
        self, group_id: str, request: GroupRequest, response_type: type[Response]
    ) -> Response:
        link = self.link(group_id)
        backoff = Backoff()
        async with self._deadline(link):
            while True:
                outcome = await link.call(request, response_type, timeout_ms=self.timeout_ms)
                reaction = reaction_to(Call.FETCH, outcome.code)
                if reaction is Reaction.DONE:
                    return outcome.expect()
                if reaction is Reaction.RAISE:
                    raise group_error(group_id, outcome.code, outcome.message)
                await backoff.pause(connection_broken=outcome.code == CONNECTION_LOST)

    def _deadline(self, link: GroupLink) -> Deadline:
        return Deadline(
            self.timeout_ms / 1_000,
            lambda: self._discovery.unavailable(
                f"{self.timeout_ms / 1_000:g} s", f"group {link.group_id!r}: {link.trouble}"
            ),
        )

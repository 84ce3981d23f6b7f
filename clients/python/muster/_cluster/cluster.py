"""A connection to a cluster: topics, groups, and what members share."""

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import grpc
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2

from muster._alarms import Alarms
from muster._backoff import Backoff
from muster._blocked.stand_in import StandIn
from muster._clock import boot_ms
from muster._cluster.deadline import Deadline
from muster._cluster.discovery import DiscoveryClient, parse_servers
from muster._cluster.fetching import fetch_committed
from muster._cluster.link import GroupLink, address_of
from muster._config import (
    LONGEST_TIMEOUT_MS,
    check_between,
    check_group_id,
    check_name,
    check_partition_list,
    check_partition_names,
    check_partitions,
    check_texts,
)
from muster._errors import ClusterUnavailable, SettingsError, TopicError, code_name, group_error
from muster._messages import decode_assignment, decode_topic, encode_names, encode_zones, to_messages
from muster._parking import Parked, decode, mark_of
from muster._reactions import CONNECTION_LOST, Call, Reaction, reaction_to
from muster._session.channels import ChannelPool, Connect
from muster._session.sessions import SessionTransport
from muster._session.tls import TlsFiles
from muster._session.transport import (
    ConnectionLost,
    GroupRequest,
    GroupResponse,
    Overloaded,
    UnaryTransport,
)
from muster._values import Committed, Owner, Topic, TopicPartition

Response = TypeVar("Response", bound=GroupResponse)
_ChangeRequest: TypeAlias = (
    discovery_pb2.CreateTopicRequest
    | discovery_pb2.AlterTopicRequest
    | discovery_pb2.AlterPartitionsRequest
    | discovery_pb2.DeleteTopicRequest
)
_Change = TypeVar(
    "_Change",
    discovery_pb2.CreateTopicResponse,
    discovery_pb2.AlterTopicResponse,
    discovery_pb2.AlterPartitionsResponse,
    discovery_pb2.DeleteTopicResponse,
)
_GROUPS_PER_PAGE = 2_000
_UNKNOWN = common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION


class Cluster:
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

    Raises:
        SettingsError: an address or a certificate file cannot be read.
        MusterError: this process was forked from one that was connected. Fork before you connect, or spawn.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        timeout_ms: int = 30_000,
        credentials: grpc.ChannelCredentials | TlsFiles | None = None,
        connect: Connect | None = None,
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
        self.timeout_ms = timeout_ms
        self.alarms: Alarms = Alarms()
        if credentials is None and connect is None:
            credentials = TlsFiles.from_environment()
        self._channels = ChannelPool(credentials, connect=connect)
        self.stand_in: StandIn = StandIn(self._channels)
        self._discovery = DiscoveryClient(self.servers, self._channels)
        self._unary = UnaryTransport(self._channels)
        self._sessions = SessionTransport(self._channels, self._unary)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections. Close the members first."""
        await self._sessions.close()
        await self._channels.close()

    def link(self, group_id: str, *, session: bool = False) -> GroupLink:
        """A link to the coordinator of a group: on the shared session stream, or by unary calls."""
        return GroupLink(group_id, self._discovery, self._sessions if session else self._unary)

    async def describe(self) -> discovery_pb2.Cluster:
        """Coordinators, owners of shards and nodes of the log, as a discovery server sees them now."""
        answer = await self._discovery.ask(
            "DescribeCluster",
            discovery_pb2.DescribeClusterRequest(),
            discovery_pb2.DescribeClusterResponse,
            timeout_ms=self.timeout_ms,
        )
        return answer.cluster

    # Topics

    async def topics(self, names: Iterable[str] = ()) -> list[Topic]:
        """Topics by name, or all topics without names. A topic that does not exist is missing."""
        answer = await self._discovery.ask(
            "ListTopics",
            discovery_pb2.ListTopicsRequest(names=check_texts("names", names)),
            discovery_pb2.ListTopicsResponse,
            timeout_ms=self.timeout_ms,
        )
        return [decode_topic(topic) for topic in answer.topics]

    async def ensure_topic(self, name: str, partitions: int | Iterable[str] | None = None) -> Topic:
        """Returns a topic with at least these partitions: creates it, or adds what it lacks.

        Args:
            name: its name.
            partitions: how many partitions it has at least, or names of partitions that it has; nothing is
                written if it has more. None: as the catalog says.

        Raises:
            TopicError: it does not exist and no partitions are given, or it cannot have these.
        """
        check_name("topic", name)
        found = await self.topics([name])
        if partitions is None:
            if not found:
                raise _topic_error(name, _UNKNOWN, "")
            return found[0]
        topic = found[0] if found else await self._created(name, partitions)
        if not isinstance(partitions, int):
            missing = set(check_partition_names(partitions)) - set(topic.names)
            return await self.add_partitions(name, sorted(missing)) if missing else topic
        if topic.names:
            problem = (
                f"topic {name!r} has partitions with names, and {partitions} numbered ones were asked for"
            )
            raise TopicError(name, problem)
        if topic.partitions >= check_partitions(partitions):
            return topic
        request = discovery_pb2.AlterTopicRequest(topic=_new_topic(name, partitions).topic)
        altered = await self._change("AlterTopic", request, discovery_pb2.AlterTopicResponse)
        if altered.error_code and altered.topic.partitions < partitions:  # not raised further by another one
            raise _topic_error(name, int(altered.error_code), altered.error_message)
        return decode_topic(altered.topic)

    async def _created(self, name: str, partitions: int | Iterable[str]) -> Topic:
        """A topic that was created, here or by another one meanwhile."""
        request = _new_topic(name, partitions)
        answer = await self._change("CreateTopic", request, discovery_pb2.CreateTopicResponse)
        if answer.error_code not in (common_pb2.ERROR_CODE_NONE, common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS):
            raise _topic_error(name, int(answer.error_code), answer.error_message)
        return decode_topic(answer.topic)

    async def create_topic(
        self,
        name: str,
        partitions: int | Mapping[str, int] | Iterable[str],
        *,
        zones: Mapping[str, Iterable[int]] | None = None,
    ) -> Topic:
        """Creates a topic.

        Args:
            name: its name.
            partitions: how many partitions it has, or their names, perhaps each with its weight.
            zones: zone → numbers of the partitions that are near it; members whose `rack_id` is that zone are
                preferred for them by `range`.

        Raises:
            TopicError: it exists already, or the name, number or zones are not acceptable.
        """
        request = _new_topic(name, partitions)
        if zones:
            request.topic.zones.CopyFrom(encode_zones(zones))
        answer = await self._change("CreateTopic", request, discovery_pb2.CreateTopicResponse)
        if answer.error_code == common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS:
            count = answer.topic.partitions
            raise TopicError(
                name, f"topic {name!r} exists already, with {count} partitions; use it, or another name"
            )
        if answer.error_code:
            raise _topic_error(name, int(answer.error_code), answer.error_message)
        for part in ("zones", "names"):
            if request.topic.HasField(part) and not answer.topic.HasField(part):
                raise TopicError(name, f"topic {name!r} is stored without its {part}: the servers are of 0.1")
        return decode_topic(answer.topic)

    async def alter_topic(
        self, name: str, partitions: int, *, zones: Mapping[str, Iterable[int]] | None = None
    ) -> Topic:
        """Raises the number of partitions of a topic, or sets their zones. Groups that use it rebalance.

        Args:
            name: its name.
            partitions: how many partitions it is to have; as many as it has leaves them.
            zones: as for `create_topic`; None leaves them as they are, an empty mapping removes them.

        Raises:
            TopicError: there is no such topic, it has more partitions already, or the zones cannot be.
        """
        topic = discovery_pb2.Topic(name=check_name("topic", name), partitions=check_partitions(partitions))
        if zones is not None:
            topic.zones.CopyFrom(encode_zones(zones))
        request = discovery_pb2.AlterTopicRequest(topic=topic)
        answer = await self._change("AlterTopic", request, discovery_pb2.AlterTopicResponse)
        if answer.error_code:
            raise _topic_error(name, int(answer.error_code), answer.error_message)
        if zones and not answer.topic.HasField("zones"):
            raise TopicError(name, f"topic {name!r} is stored without its zones: the servers are of 0.1")
        return decode_topic(answer.topic)

    async def add_partitions(self, topic: str, names: Mapping[str, int] | Iterable[str]) -> Topic:
        """Adds partitions to a topic whose partitions have names. Groups that use it rebalance.

        Args:
            topic: name of the topic.
            names: of the partitions, perhaps each with its weight, from 1 to 1,000,000. One that is there
                keeps its number, and gets the weight if there is one.

        Raises:
            TopicError: there is no such topic, its partitions have no names, or a limit is reached.
        """
        return await self._alter_partitions(topic, put=encode_names(names).partitions)

    async def remove_partitions(self, topic: str, names: Iterable[str]) -> Topic:
        """Removes partitions for good, with what groups committed in them. Groups that use it rebalance.

        When this returns, nothing is committed in them any more. One that is added later under such a name is
        another one.

        Raises:
            TopicError: there is no such topic or partition; none was removed.
        """
        return await self._alter_partitions(topic, remove=check_partition_names(names))

    async def _alter_partitions(
        self,
        topic: str,
        put: Iterable[common_pb2.PartitionNames.Partition] = (),
        remove: Iterable[str] = (),
    ) -> Topic:
        request = discovery_pb2.AlterPartitionsRequest(
            topic=check_name("topic", topic), put=put, remove=remove
        )
        answer = await self._change("AlterPartitions", request, discovery_pb2.AlterPartitionsResponse)
        if answer.error_code == _UNKNOWN and answer.topic.name:
            raise TopicError(topic, answer.error_message)
        if answer.error_code:
            raise _topic_error(topic, int(answer.error_code), answer.error_message)
        return decode_topic(answer.topic)

    async def delete_topic(self, name: str) -> None:
        """Removes a topic.

        Raises:
            TopicError: there is no such topic.
        """
        request = discovery_pb2.DeleteTopicRequest(name=check_name("topic", name))
        answer = await self._change("DeleteTopic", request, discovery_pb2.DeleteTopicResponse)
        if answer.error_code:
            raise _topic_error(name, int(answer.error_code), answer.error_message)

    async def _change(self, method: str, request: _ChangeRequest, response_type: type[_Change]) -> _Change:
        """Repeats a change until its outcome is known; it has an id, by which it is carried out once."""
        request.request_id = uuid.uuid4().hex
        ends_at_ms = boot_ms() + self.timeout_ms
        backoff = Backoff()
        while True:
            trouble, broken = "", False
            try:
                answer = await self._discovery.ask_once(method, request, response_type)
            except ConnectionLost as error:
                trouble, broken = str(error), True
            else:
                if answer.error_code != common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE:
                    return answer
                trouble = answer.error_message or "the log cannot be written"
            if boot_ms() >= ends_at_ms:
                raise self._discovery.unavailable(f"{self.timeout_ms / 1_000:g} s", trouble)
            await backoff.pause(connection_broken=broken)

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
            raise _topic_error(topic, _UNKNOWN, "")
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


def _new_topic(
    name: str, partitions: int | Mapping[str, int] | Iterable[str]
) -> discovery_pb2.CreateTopicRequest:
    topic = discovery_pb2.Topic(name=check_name("topic", name))
    if isinstance(partitions, int):
        topic.partitions = check_partitions(partitions)
    else:
        topic.names.CopyFrom(encode_names(partitions))
        topic.partitions = len(topic.names.partitions)
    return discovery_pb2.CreateTopicRequest(topic=topic)


def _topic_error(name: str, code: int, message: str) -> TopicError:
    if code == _UNKNOWN:
        return TopicError(name, f"there is no topic {name!r}; create it, or look at `muster topics list`")
    return TopicError(name, f"topic {name!r}: {code_name(code)}: {message}".removesuffix(": "))

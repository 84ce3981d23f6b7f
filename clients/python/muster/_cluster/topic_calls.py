"""The calls about topics."""

import uuid
from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar

from muster_protos.muster.v1 import common_pb2, discovery_pb2

from muster._backoff import Backoff
from muster._clock import boot_ms
from muster._cluster.discovery import DiscoveryClient
from muster._config import check_name, check_partition_names, check_partitions, check_texts
from muster._errors import TopicError, code_name
from muster._messages import decode_topic, encode_names, encode_zones
from muster._session.transport import ConnectionLost
from muster._values import Topic

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
_UNKNOWN = common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION


class TopicCalls:
    """What a `Cluster` can do with topics. Every change has an id, and is carried out once.

    Args:
        discovery: whom it asks.
        timeout_ms: how long a call tries before it raises `ClusterUnavailable`.
    """

    def __init__(self, discovery: DiscoveryClient, timeout_ms: int) -> None:
        self._discovery = discovery
        self.timeout_ms = timeout_ms

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
                raise no_such_topic(name)
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
            raise topic_error(name, int(altered.error_code), altered.error_message)
        return decode_topic(altered.topic)

    async def _created(self, name: str, partitions: int | Iterable[str]) -> Topic:
        """A topic that was created, here or by another one meanwhile."""
        request = _new_topic(name, partitions)
        answer = await self._change("CreateTopic", request, discovery_pb2.CreateTopicResponse)
        if answer.error_code not in (common_pb2.ERROR_CODE_NONE, common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS):
            raise topic_error(name, int(answer.error_code), answer.error_message)
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
            raise topic_error(name, int(answer.error_code), answer.error_message)
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
            raise topic_error(name, int(answer.error_code), answer.error_message)
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
            raise topic_error(topic, int(answer.error_code), answer.error_message)
        return decode_topic(answer.topic)

    async def delete_topic(self, name: str) -> None:
        """Removes a topic.

        Raises:
            TopicError: there is no such topic.
        """
        request = discovery_pb2.DeleteTopicRequest(name=check_name("topic", name))
        answer = await self._change("DeleteTopic", request, discovery_pb2.DeleteTopicResponse)
        if answer.error_code:
            raise topic_error(name, int(answer.error_code), answer.error_message)

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


def topic_error(name: str, code: int, message: str) -> TopicError:
    if code == _UNKNOWN:
        return TopicError(name, f"there is no topic {name!r}; create it, or look at `muster topics list`")
    return TopicError(name, f"topic {name!r}: {code_name(code)}: {message}".removesuffix(": "))


def no_such_topic(name: str) -> TopicError:
    """The error about a topic that the catalog does not know."""
    return topic_error(name, _UNKNOWN, "")

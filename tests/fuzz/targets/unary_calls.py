"""Any unary calls to discovery and a coordinator, in any order: answered, or refused as callers know it.

What is refused for its form is refused before anything changes. Afterwards what is served is what the log
says, the log breaks no promise, and nothing was logged as an error.
"""

import asyncio
from typing import Any

from google.protobuf.message_factory import GetMessageClass
from kit.lives.drawn_messages import DrawnMessages
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2
from muster_runtime.rpc.refusals import Refused

from fuzz import local
from fuzz.draw import Draw

LONGEST_BYTES = 4_096
CALLS = 60

_OF_GROUPS = (
    *("JoinGroup", "SyncGroup", "JoinGroup", "SyncGroup", "OffsetCommit", "Heartbeat", "LeaveGroup"),
    *("OffsetFetch", "OffsetDelete", "DescribeGroups", "ListGroups", "DeleteGroups", "GroupHistory"),
    *("ReleaseGroup", "AlterGroupSettings", "ConvertGroup"),
    *("ConsumerGroupHeartbeat", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe"),
)
_OF_TOPICS = (
    *("FindCoordinator", "DescribeCluster", "ListTopics", "CreateTopic", "AlterTopic", "DeleteTopic"),
    *("CreateTopic", "AlterPartitions"),
)
_GROUP_CALLS = coordinator_pb2.DESCRIPTOR.services_by_name["GroupCoordinatorService"]
_TOPIC_CALLS = discovery_pb2.DESCRIPTOR.services_by_name["CoordinatorDiscoveryService"]
_PAUSES_S = (0.001, 0.01, 0.06, 0.5, 3.0)


def play(data: bytes) -> None:
    story = Story(Draw(data))
    local.run(story.play)


class Story:
    """Calls that bytes decide."""

    def __init__(self, source: Draw) -> None:
        self._source = source
        self._messages = DrawnMessages(source)
        self._open: dict[asyncio.Task[Any], Any] = {}

    async def play(self, world: local.World) -> None:
        """Makes the calls, and checks all that is left."""
        source = self._source
        for _ in range(CALLS):
            if source.over:
                break
            what = source.random()
            if what < 0.8:
                self._call(world)
            elif what < 0.95 or not self._open:
                await asyncio.sleep(source.choice(_PAUSES_S))
            else:
                source.choice(list(self._open)).cancel()
            await asyncio.sleep(0.001)
            self._take(world)
        await asyncio.sleep(1.0)
        self._take(world)
        world.check()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _call(self, world: local.World) -> None:
        source = self._source
        of_groups = source.random() < 0.85
        name = source.choice(_OF_GROUPS if of_groups else _OF_TOPICS)
        service = _GROUP_CALLS if of_groups else _TOPIC_CALLS
        request = self._messages.message(GetMessageClass(service.methods_by_name[name].input_type))
        body = request.SerializeToString()
        if source.random() < 0.1:
            body = self._messages.changed(body)
        path = (local.GROUPS if of_groups else local.TOPICS) + name
        self._open[asyncio.get_running_loop().create_task(world.call(path, body))] = request

    def _take(self, world: local.World) -> None:
        for task in [task for task in self._open if task.done()]:
            request = self._open.pop(task)
            if task.cancelled():
                continue
            error = task.exception()
            if isinstance(error, Refused):
                world.check_refusal(error)
            elif error is not None:
                raise error
            else:
                world.check_answer(task.result())
                self._messages.learn(request, task.result())

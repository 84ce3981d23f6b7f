"""A member of an incremental group in plain gRPC calls: one call in a loop.

python examples/raw_incremental_member.py localhost:7400 --group readers --topic sites
"""

import argparse
import time
import uuid

import grpc
from muster_protos.muster.v1 import coordinator_pb2_grpc, discovery_pb2, discovery_pb2_grpc
from muster_protos.muster.v1.common_pb2 import ErrorCode, TopicPartitions
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

parser = argparse.ArgumentParser(description="A member of an incremental group in plain gRPC calls")
parser.add_argument("servers", nargs="?", default="localhost:7400", help="address of a discovery server")
parser.add_argument("--group", default="readers")
parser.add_argument("--topic", default="sites")
parser.add_argument("--beats", type=int, default=5, help="heartbeats before it leaves")
parser.add_argument("--interval", type=float, default=1.0, help="seconds between them")
args = parser.parse_args()
GONE = (ErrorCode.ERROR_CODE_UNKNOWN_MEMBER_ID, ErrorCode.ERROR_CODE_FENCED_MEMBER_EPOCH)
discovery = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(grpc.insecure_channel(args.servers))
topic = discovery_pb2.Topic(name=args.topic, partitions=12)  # there from now on, if it was not
discovery.CreateTopic(discovery_pb2.CreateTopicRequest(topic=topic))
find = discovery_pb2.FindCoordinatorRequest(group_ids=[args.group])
while (found := discovery.FindCoordinator(find).results[0]).error_code:
    time.sleep(0.5)
channel = grpc.insecure_channel(f"{found.coordinator.host}:{found.coordinator.port}")
group = coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)

# Each request names its process and join, so that a late one of another life changes nothing.
name, process = str(uuid.uuid4()), uuid.uuid4().bytes
me = ConsumerGroupHeartbeatRequest(group_id=args.group, member_id=name, process_id=process)
works: set[int] = set()  # partitions that are worked on now
joins, heard_at, life_s = True, time.monotonic(), 0.0
for _ in range(args.beats):
    if joins or time.monotonic() - heard_at > life_s:  # it has heard nothing for too long
        works.clear()  # another may have it by now: the work stops first
        me.ClearField("version")  # nothing counts as heard until there is a whole list
    if joins:
        me.member_epoch, me.member_seq, me.rebalance_timeout_ms = 0, me.member_seq + 1, 60_000
        me.topics.names[:] = [args.topic]
    me.owned.ClearField("topics")
    me.owned.topics.extend([TopicPartitions(topic=args.topic, partitions=sorted(works))] if works else [])
    me.owned.SetInParent()  # all that it works on, so what is missing has stopped
    sent_at, answer = time.monotonic(), group.ConsumerGroupHeartbeat(me, timeout=10)
    joins = answer.error_code in GONE or (joins and answer.error_code != 0)
    if not answer.error_code:
        me.member_epoch, heard_at = answer.member_epoch, sent_at
        life_s = answer.session_timeout_ms / 1_500  # two thirds of its session, by its own clock
    if answer.HasField("assignment"):  # the whole list: what is not in it stops here
        me.version.CopyFrom(answer.version)
        works = {number for given in answer.assignment.given for number in given.partitions}
    print(
        f"{ErrorCode.Name(answer.error_code)}, epoch {me.member_epoch}, {len(works)} partitions", flush=True
    )
    time.sleep(args.interval)
me.member_epoch = -1  # the work has stopped: it leaves, and the others have its share at once
print("left" if not group.ConsumerGroupHeartbeat(me).error_code else "was gone", flush=True)

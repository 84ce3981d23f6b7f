"""A member in plain gRPC calls, without the client library: what any language has to do.

python examples/raw_member.py --servers localhost:7400 --group crawlers --topic sites --beats 5
"""

import argparse
import secrets
import time
import uuid

import grpc
from muster_protos.muster.v1 import common_pb2, coordinator_pb2_grpc, discovery_pb2, discovery_pb2_grpc
from muster_protos.muster.v1.common_pb2 import ErrorCode
from muster_protos.muster.v1.coordinator_pb2 import (
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

parser = argparse.ArgumentParser(description="A member in plain gRPC calls")
parser.add_argument("--servers", default="localhost:7400", help="address of a discovery server")
parser.add_argument("--group", default="crawlers")
parser.add_argument("--topic", default="sites")
parser.add_argument("--beats", type=int, default=5, help="heartbeats before it leaves")
parser.add_argument("--interval", type=float, default=1.0, help="seconds between heartbeats")
args = parser.parse_args()

# 1. Who coordinates the group, and how many partitions has the topic?
discovery = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(grpc.insecure_channel(args.servers))
topic = discovery_pb2.Topic(name=args.topic, partitions=12)
count = discovery.CreateTopic(discovery_pb2.CreateTopicRequest(topic=topic)).topic.partitions
find = discovery_pb2.FindCoordinatorRequest(group_ids=[args.group])
while (found := discovery.FindCoordinator(find).results[0]).error_code:
    print(f"not yet: {found.error_message}")
    time.sleep(0.5)
address = f"{found.coordinator.host}:{found.coordinator.port}"
group = coordinator_pb2_grpc.GroupCoordinatorServiceStub(grpc.insecure_channel(address))

# 2. Join. The first answer only gives an id; the second comes when the join phase ends. The secret proves
#    that later calls are this process's own: ids of members are shown to everybody.
secret = secrets.token_bytes(16)
wants = common_pb2.Subscription(version=1, topics=[args.topic], generation=-1).SerializeToString()
join = JoinGroupRequest(
    group_id=args.group,
    session_timeout_ms=45_000,
    rebalance_timeout_ms=60_000,
    protocol_type="consumer",
    protocols=[GroupProtocol(name="range", metadata=wants)],
    client_id="raw",
    request_id=uuid.uuid4().hex,
    member_seq=1,
    member_secret=secret,
)
joined = group.JoinGroup(join)
while joined.error_code == ErrorCode.ERROR_CODE_MEMBER_ID_REQUIRED:
    join.member_id = joined.member_id
    joined = group.JoinGroup(join)
assert joined.error_code == 0, joined.error_message
print(f"joined as {joined.member_id}, generation {joined.generation}, leader {joined.leader}", flush=True)

# 3. Sync. The leader shares the partitions out (here: in turn), everybody gets an own assignment.
who = {"group_id": args.group, "generation": joined.generation, "member_id": joined.member_id}
sync = SyncGroupRequest(**who, member_secret=secret)
for index, member in enumerate(joined.members if joined.leader == joined.member_id else ()):
    share = common_pb2.TopicPartitions(topic=args.topic, partitions=range(index, count, len(joined.members)))
    data = common_pb2.Assignment(version=1, partitions=[share]).SerializeToString()
    sync.assignments.add(member_id=member.member_id, assignment=data)
synced = group.SyncGroup(sync)
assert synced.error_code == 0, synced.error_message
mine = common_pb2.Assignment.FromString(synced.assignment)
owned = [f"{t.topic}-{number}" for t in mine.partitions for number in t.partitions]
print(f"owns {', '.join(owned) or 'nothing'} with token {synced.token}", flush=True)

# 4. Stay alive. A real member joins again when it is answered REBALANCE_IN_PROGRESS.
beat = HeartbeatRequest(**who, member_secret=secret)
for _ in range(args.beats):
    time.sleep(args.interval)
    print(f"heartbeat: {ErrorCode.Name(group.Heartbeat(beat).error_code)}", flush=True)

# 5. Leave, so that the others take over at once.
leaver = LeaveGroupRequest.Member(member_id=joined.member_id, reason="done", member_secret=secret)
group.LeaveGroup(LeaveGroupRequest(group_id=args.group, members=[leaver]))
print("left", flush=True)

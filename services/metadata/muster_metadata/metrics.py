"""The metrics of metadata."""

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.telemetry import Kind, Metric
from muster_runtime.telemetry.metric import SHORT_SECONDS

from muster_metadata.log.states import Repaired

STEPS = tuple(field.name for field in metadata_pb2.LogCall.DESCRIPTOR.oneofs_by_name["step"].fields)
NODES = tuple(str(index) for index in range(1, 6))
OUTCOMES = {value: name.removeprefix("LOG_OUTCOME_") for name, value in metadata_pb2.LogOutcome.items()}
"""Outcomes of steps as labels."""
REPAIRS = {result: result.name.lower() for result in Repaired}
"""Results of repairs as labels."""

READY = Metric(
    "muster_metadata_ready",
    Kind.GAUGE,
    "1: a majority of the nodes said which cluster this is; 0: not yet, every call is refused.",
    advice="0 for long: the log line `log_not_usable_yet` says what is missing.",
)
LOG_STREAMS = Metric("muster_log_streams", Kind.GAUGE, "Open streams of coordinators to their logs.")
QUORUM_DURATION = Metric(
    "muster_log_quorum_duration",
    Kind.HISTOGRAM,
    "Time that a step on a log took here, until a majority had answered.",
    "seconds",
    labels={"step": STEPS},
    bounds=SHORT_SECONDS,
    advice="The second fastest node of three decides: compare muster_redis_reply_duration_seconds of the "
    "nodes.",
)
QUORUM_OUTCOMES = Metric(
    "muster_log_quorum_outcomes",
    Kind.COUNTER,
    "Steps on logs by their outcome.",
    labels={"step": STEPS, "outcome": tuple(OUTCOMES.values())},
    advice="UNKNOWN: no majority answered in time. REFUSED: out of memory or disk. FENCED: somebody else "
    "claimed the shard. NO_LOG, TRUNCATED, DAMAGED: stop and read docs/failures.md.",
)
REDIS_REPLY = Metric(
    "muster_redis_reply_duration",
    Kind.HISTOGRAM,
    "Time from when a step was sent to a node to its answer; node is its place in MUSTER_METADATA_REDIS_URL.",
    "seconds",
    labels={"node": NODES},
    bounds=SHORT_SECONDS,
    advice="A slow node costs nothing while it is a minority. With `appendfsync always` this is its disk.",
)
REDIS_CONNECTED = Metric(
    "muster_redis_connected",
    Kind.GAUGE,
    "1: steps can be sent to the node.",
    labels={"node": NODES},
    advice="0: bring the node back; it is repaired by itself. Without a majority nothing is stored.",
)
REDIS_REFUSING = Metric(
    "muster_redis_refusing",
    Kind.GAUGE,
    "1: the node answers and refused the last write.",
    labels={"node": NODES},
    advice="Out of memory or disk: make room; it catches up by itself.",
)
REDIS_LOST = Metric(
    "muster_redis_connections_lost",
    Kind.COUNTER,
    "Connections for steps that broke, or were given up because the node did not answer in time.",
    labels={"node": NODES},
    advice="Without a restart: the node hangs (a slow disk, a fork) or the network does.",
)
LOGS_BEHIND = Metric(
    "muster_logs_behind",
    Kind.GAUGE,
    "Logs written through this instance of which the node is known to lack something and is repaired.",
    labels={"node": NODES},
    advice="Falls by itself when the node is well. While it does not, that node is no copy of these logs.",
)
LOG_REPAIRS = Metric(
    "muster_log_repairs",
    Kind.COUNTER,
    "Repairs of one log at one node, by result.",
    labels={"result": tuple(REPAIRS.values())},
    advice="Many that are not done: the node does not keep up, or is not well.",
)

ALL = (
    READY,
    LOG_STREAMS,
    QUORUM_DURATION,
    QUORUM_OUTCOMES,
    REDIS_REPLY,
    REDIS_CONNECTED,
    REDIS_REFUSING,
    REDIS_LOST,
    LOGS_BEHIND,
    LOG_REPAIRS,
)
"""All of them, in the order of the documentation."""

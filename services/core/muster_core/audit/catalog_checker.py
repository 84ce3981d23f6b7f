"""The promises about the catalog: its topics, and the configurations of the log's nodes."""

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import discovery_pb2

from muster_core.audit.invariants import Findings
from muster_core.features import Feature
from muster_core.log.topics.topic_names import alteration_problem, names_problem
from muster_core.log.topics.topic_zones import stored_form, zones_problem
from muster_core.log.topics.topics import MAX_CHANGES, StoredTopic, Topics
from muster_core.position import Position

FIRST_CONFIGURATION = 1
"""Number of the configuration that a cluster is made with."""


class CatalogChecker:
    """Checks the records of the catalog, each against the catalog that those before it make.

    Args:
        findings: takes the results, of invariants C1 to C4.

    Attributes:
        configuration: number of the last configuration of the nodes.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.configuration = FIRST_CONFIGURATION
        self._addresses: dict[int, str] = {}
        self._changes: dict[bytes, Position] = {}

    def begin_with(self, topics: Topics) -> None:
        """Takes over what a snapshot says."""
        for kept in topics.kept:
            record = records_pb2.Record.FromString(kept.record)
            if record.HasField("node_replaced"):
                self.configuration = record.node_replaced.configuration
                self._addresses[record.node_replaced.node] = record.node_replaced.new_address
        self._changes = topics.change_positions()

    def add(self, position: Position, record: records_pb2.Record, topics: Topics) -> None:
        """Takes the next record; `topics` are the catalog before it."""
        if record.HasField("topic_stored"):
            stored = record.topic_stored
            self._check_topic(position, stored, topics.by_name.get(stored.name))
            self._check_change(position, stored.change_id)
        elif record.HasField("partitions_altered"):
            altered = record.partitions_altered
            self._check_alteration(position, altered, topics.by_name.get(altered.topic))
            self._check_change(position, altered.change_id)
        elif record.HasField("topic_tombstone"):
            name = record.topic_tombstone.name
            text = f"topic {name!r} is removed, and there is none"
            self._findings.expect("C1", name in topics.by_name, position, text)
            self._check_change(position, record.topic_tombstone.change_id)
        elif record.HasField("node_replaced"):
            self._check_replacement(position, record.node_replaced)
        elif record.HasField("feature_enabled"):
            self._check_feature(position, record.feature_enabled.name, topics)

    def _check_feature(self, position: Position, name: str, topics: Topics) -> None:
        if name == Feature.CATALOG_SNAPSHOTS:
            return  # repeated with the marker of each snapshot
        self._findings.expect("C4", name not in topics.features, position, f"{name} is enabled already")

    def _check_topic(
        self, position: Position, stored: records_pb2.TopicStored, before: StoredTopic | None
    ) -> None:
        had, zones = (0, b"") if before is None else (before.partitions, before.zones)
        text = f"topic {stored.name!r} gets {stored.partitions} partitions and had {had}"
        grows = stored.partitions > had or (stored.partitions == had and stored_form(stored.zones) != zones)
        self._findings.expect("C1", bool(stored.name) and grows, position, text)
        wanted = discovery_pb2.Topic(partitions=stored.partitions, zones=stored.zones)
        problem = zones_problem(wanted)
        if stored.HasField("names"):
            wanted.names.CopyFrom(stored.names)
            problem = problem or ("it has names already" if before is not None else names_problem(wanted))
        elif before is not None and before.names and stored.partitions != had:
            problem = "it has names, and gets partitions without any"
        text = f"topic {stored.name!r}: {problem}"
        self._findings.expect("C1", not problem, position, text)

    def _check_alteration(
        self, position: Position, altered: records_pb2.PartitionsAltered, before: StoredTopic | None
    ) -> None:
        if before is None or not before.names:
            problem = "it does not exist" if before is None else "its partitions have no names"
        else:
            problem = alteration_problem(before.names, altered)
        self._findings.expect("C1", not problem, position, f"topic {altered.topic!r}: {problem}")

    def _check_change(self, position: Position, change_id: bytes) -> None:
        if not change_id:
            return
        before = self._changes.get(change_id)
        text = "" if before is None else f"the change was carried out at {before.stream_id} before"
        self._findings.expect("C2", before is None, position, text)
        self._changes[change_id] = position
        if len(self._changes) > MAX_CHANGES:
            del self._changes[next(iter(self._changes))]

    def _check_replacement(self, position: Position, replaced: records_pb2.NodeReplaced) -> None:
        follows = replaced.configuration == self.configuration + 1
        text = f"configuration {replaced.configuration} follows configuration {self.configuration}"
        self._findings.expect("C3", follows, position, text)
        known = self._addresses.get(replaced.node, replaced.old_address)
        text = f"node {replaced.node} was at {known}, and {replaced.old_address} is replaced"
        right = replaced.node > 0 and known == replaced.old_address != replaced.new_address
        self._findings.expect("C3", right, position, text)
        self.configuration = max(self.configuration, replaced.configuration)
        self._addresses[replaced.node] = replaced.new_address

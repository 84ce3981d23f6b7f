"""One pass over the catalog's log: every check of a log, its own replay, and the snapshots against that."""

from google.protobuf.message import DecodeError
from muster_protos.muster.log.v1 import records_pb2, snapshot_pb2

from muster_core.audit.anchor import Restore
from muster_core.audit.catalog_checker import CatalogChecker
from muster_core.audit.difference import first_difference
from muster_core.audit.invariants import Findings
from muster_core.audit.log_audit import LogAudit, read_back
from muster_core.audit.nonces import NonceBook
from muster_core.audit.stored_snapshots import Snapshots
from muster_core.log.record_run import FollowRun, RecordRun
from muster_core.log.replay import Entry
from muster_core.log.snapshot import SnapshotReader, parts
from muster_core.log.topics.topics import Topics
from muster_core.position import GENESIS, Position


class CatalogAudit(LogAudit):
    """Checks the catalog's log and plays it back, from a snapshot where it was trimmed.

    Args:
        shard: number of the log.
        cluster: what a Genesis of the cluster must say; None: not known.
        limit: violations kept per invariant; all are counted.
        nonces: remembers nonces; absent: in memory.
        snapshots: those that are stored.
        watch: takes the records that could be decoded.
    """

    def __init__(
        self,
        shard: int,
        *,
        cluster: records_pb2.Genesis | None = None,
        limit: int = 20,
        nonces: NonceBook | None = None,
        snapshots: Snapshots | None = None,
        watch: FollowRun | None = None,
    ) -> None:
        super().__init__(
            shard,
            cluster=cluster,
            limit=limit,
            nonces=nonces,
            replay=False,
            snapshots=snapshots,
            watch=self._play,
        )
        self._watch_records = watch
        self._topics: Topics | None = None
        self._catalog = CatalogChecker(self.findings)

    @property
    def topics(self) -> Topics | None:
        """The catalog that the replay has made so far; None: there is none."""
        return self._topics

    @property
    def restores(self) -> list[Restore]:
        """The restores from backups that the log tells of."""
        found = []
        for kept in self._topics.kept if self._topics is not None else ():
            record = records_pb2.Record.FromString(kept.record)
            if record.HasField("restored"):
                found.append(Restore(kept.position, record.written_at_ms, record.restored.reason))
        return found

    def check_configuration(self, node: int, configuration: int) -> None:
        """Checks which configuration a node says that it is in, which it said before the catalog was read."""
        if self._topics is not None:
            decided = self._catalog.configuration
            text = (
                f"node {node} is in configuration {configuration}; {decided} is the last one that was decided"
            )
            if configuration > decided:
                self.findings.broke("C3", self.checker.end, text)

    def finish(self, acknowledged: Position) -> Findings:
        """Checks what can only be known at the end; see `LogAudit.finish`."""
        findings = super().finish(acknowledged)
        if self._topics is not None:
            findings.expect("G12", True, GENESIS, "")
        return findings

    def _play(self, run: RecordRun) -> None:
        if self._watch_records is not None:
            self._watch_records(run)
        for index, record in run.others.items():
            position = run.position(index)
            if position == GENESIS and record.HasField("genesis"):
                self._topics = Topics(strict=False)
            if self._topics is not None:
                self._catalog.add(position, record, self._topics)
                # Hashes are the checker's business.
                self._topics.apply(Entry(position, run.datas[index], b"", b""))

    def _meet_snapshot(self, position: Position) -> None:
        stored = self._stored[position]()
        if stored is None:
            return
        states: list[snapshot_pb2.CatalogState] = []
        reader = SnapshotReader(self.checker.shard, {}, 0, catalog=states.append)
        problem = read_back(reader, stored.parts, position)
        try:
            topics = Topics.of_states(states, position, b"", strict=False)
        except DecodeError:
            problem = problem or "a record that the snapshot keeps cannot be decoded"
        if problem or reader.covered is None:
            self.findings.expect("G12", False, position, problem)
            return
        self._check_header(reader, position)
        self.snapshots.replayed(position, 0)
        if self._topics is None:
            self._topics = topics
            self._catalog.begin_with(topics)
            return
        differs = first_difference(
            parts((), reader.covered, catalog=topics.to_states()),
            parts((), reader.covered, catalog=self._topics.to_states()),
        )
        text = f"the snapshot holds another catalog than the records make: {differs}"
        self.findings.expect("G12", not differs, position, text)

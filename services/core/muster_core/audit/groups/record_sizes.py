"""G11: how large records are, and how much text commits carry."""

from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.invariants import Findings
from muster_core.config import OFFSET_METADATA_MAX_BYTES
from muster_core.log.record_run import COMMIT, RecordRun
from muster_core.record_bounds import RECORD_MAX_BYTES


def check_sizes(run: RecordRun, findings: Findings) -> None:
    """Looks for what is too large in records of which the longest may be it."""
    limit = OFFSET_METADATA_MAX_BYTES
    for index, data in enumerate(run.datas):
        if len(data) > RECORD_MAX_BYTES:
            text = f"a record of {len(data)} bytes of at most {RECORD_MAX_BYTES}"
            findings.expect("G11", False, run.position(index), text)
        if len(data) <= limit or run.kinds[index] != COMMIT:
            continue
        commit = records_pb2.Record.FromString(data).offset_committed
        for entry in commit.offsets:
            if len(entry.metadata.encode()) > limit:
                text = f"group {commit.group_id!r}: a commit with more than {limit} bytes of metadata"
                findings.expect("G11", False, run.position(index), text)

"""What was kept of a failure, played again by `muster-server replay`; what `muster doctor` says of it."""

import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from google.protobuf import json_format
from kit import forked
from muster_core import fault
from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.events import Request
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import fault_pb2
from muster_protos.muster.v1 import coordinator_pb2
from muster_server.doctor.cluster import judge_faults
from muster_server.doctor.findings import CheckResult


def kept(folder: Path, *events: fault_pb2.FaultEvent, complete: bool = True) -> Path:
    path = folder / "fault.json"
    message = fault_pb2.Fault(
        format=fault.FORMAT,
        group_id="g\x1b[31m",
        error="KeyError('x')",
        complete=complete,
        events=[fault_pb2.FaultEvent(loaded=1), *events],
    )
    fault.keep_config(message, GroupConfig(convert="auto"))
    path.write_text(json_format.MessageToJson(message))
    return path


def replayed(path: Path) -> "subprocess.CompletedProcess[str]":
    return forked.run(["muster-server", "replay", str(path)])


@pytest.mark.slow
def test_an_event_that_fails_again(tmp_path: Path) -> None:
    """A call of a kind that the core has no row for."""
    event = fault.message_of(Request(1, coordinator_pb2.ReleaseGroupRequest(group_id="g")), Now(5, 5))
    again = replayed(kept(tmp_path, event))
    assert again.returncode == 1, again
    assert "Traceback" in again.stderr
    assert "KeyError" in again.stderr
    assert "it failed again" in again.stdout
    assert "\x1b" not in again.stdout


def test_each_setting_is_kept() -> None:
    config = GroupConfig(convert="auto", max_size=7)
    message = fault_pb2.Fault()
    fault.keep_config(message, config)
    assert {**message.config, **message.words} == asdict(config)


@pytest.mark.parametrize("complete", [True, False])
def test_an_event_that_does_not(tmp_path: Path, complete: bool) -> None:
    event = fault.message_of(Request(1, coordinator_pb2.HeartbeatRequest(group_id="g")), Now(5, 5))
    again = replayed(kept(tmp_path, event, complete=complete))
    assert (again.returncode, again.stderr) == (0, "")
    assert ("only a part" in again.stdout) is not complete


@pytest.mark.parametrize("content", ["", "{", '{"format": 9}', '{"format": 1}'])
def test_a_file_that_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "fault.json"
    path.write_text(content)
    assert replayed(path).returncode == 2
    assert replayed(tmp_path / "nothing").returncode == 2


def test_the_doctor_names_group_and_file() -> None:
    answer = peer_pb2.DescribeFaultsResponse(failed_shards=[7])
    answer.faults.add(shard=3, group_id="held", error="KeyError('x')", file="/tmp/a.json", quarantined=True)
    answer.faults.add(shard=3, group_id="once", error="KeyError('y')")
    held, once, failed = judge_faults({"a": answer})
    assert (held.result, once.result, failed.result) == (
        CheckResult.FAILED,
        CheckResult.WARNING,
        CheckResult.FAILED,
    )
    assert "/tmp/a.json" in held.detail
    assert "muster groups release" in held.fix
    assert "not kept" in once.detail
    assert failed.subject == "shard 7 at a"
    (well,) = judge_faults({"a": peer_pb2.DescribeFaultsResponse()})
    assert well.result is CheckResult.OK
    assert not list(judge_faults({}))

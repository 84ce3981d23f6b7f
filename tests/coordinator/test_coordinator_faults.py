"""What is decided about failures, and where they are kept."""

import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf import json_format
from muster_coordinator.failstop.failures import Failure
from muster_coordinator.failstop.fault_folder import FaultFolder, default_folder
from muster_coordinator.failstop.faults import Consequence, Faults
from muster_core import fault
from muster_core.clock import Now
from muster_core.events import Request
from muster_core.state.quarantine import Quarantine
from muster_protos.muster.internal.v1 import fault_pb2
from muster_protos.muster.v1 import coordinator_pb2
from structlog.testing import capture_logs

MAX_BYTES = 20_000


def failure(group_id: str, at_ms: int = 0, metadata_bytes: int = 0) -> Failure:
    kept = fault_pb2.Fault(format=fault.FORMAT, group_id=group_id, failed_at_ms=at_ms, complete=True)
    for call_id in range(3):
        protocol = coordinator_pb2.GroupProtocol(name="range", metadata=bytes(metadata_bytes))
        request = coordinator_pb2.JoinGroupRequest(group_id=group_id, protocols=[protocol])
        kept.events.append(fault.message_of(Request(call_id, request), Now(0, 0)))
    return Failure(group_id, "JoinGroupRequest", "KeyError('x')", kept)


def folder(path: Path, max_files: int = 3) -> FaultFolder:
    return FaultFolder(path, max_files, MAX_BYTES)


def read(path: Path) -> list[fault_pb2.Fault]:
    return [json_format.Parse(file.read_bytes(), fault_pb2.Fault()) for file in sorted(path.iterdir())]


def test_many_groups_that_fail_do_not_load_their_shard_again_for_each() -> None:
    faults = Faults.not_kept()
    verdicts = [faults.judge(0, failure(f"g{number}"), number)[0] for number in range(6)]
    assert verdicts == [Consequence.RELOAD] * 3 + [Consequence.QUARANTINE] * 3
    assert faults.judge(1, failure("other"), 6)[0] is Consequence.RELOAD, "another shard"
    assert faults.judge(0, failure("late"), 120_000)[0] is Consequence.RELOAD, "it has been quiet since"
    assert faults.quarantine(0).groups == {"g3", "g4", "g5"}
    assert faults.suspects(0) == {"g0", "g1", "g2", "late"}


def test_a_shard_that_is_loaded_again_and_again_waits_longer_each_time() -> None:
    faults = Faults.not_kept()
    now_ms, waited = 1_000, list[int]()
    for number in range(9):
        faults.judge(0, failure(f"g{number}"), now_ms, load_ms=2_000)
        waited.append(max(faults.not_before_ms(0) - now_ms, 0))
        now_ms += waited[-1]
    assert waited == [0, 0, 0, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000]
    assert faults.not_before_ms(1) == 0, "another shard"
    faults.judge(0, failure("late"), now_ms + 120_000)
    assert faults.not_before_ms(0) < now_ms + 120_000, "it has been quiet since"


@pytest.mark.parametrize(("load_ms", "longest_ms"), [(0, 1_000), (50, 1_000), (200, 3_800), (2_000, 15_000)])
def test_a_shard_that_is_loaded_quickly_does_not_stay_away_for_long(load_ms: int, longest_ms: int) -> None:
    """Its loads cost little, and its other groups are not served meanwhile."""
    faults = Faults.not_kept()
    now_ms = 1_000
    for number in range(12):
        faults.judge(0, failure(f"g{number}"), now_ms, load_ms)
    assert faults.not_before_ms(0) - now_ms == longest_ms


def test_a_quarantine_is_bounded() -> None:
    faults = Faults.not_kept()
    for number in range(10_004):
        faults.judge(0, failure(f"g{number}"), number)
    quarantined = faults.quarantine(0).groups
    assert len(quarantined) == 10_000
    assert "g10003" in quarantined


def test_failures_with_nobody_to_blame_count_within_a_minute() -> None:
    faults = Faults.not_kept()
    times_ms = [0, 30_000, 61_000, 89_000, 90_500]
    verdicts = [faults.judge(0, failure(""), at_ms)[0] for at_ms in times_ms]
    assert verdicts == [Consequence.RELOAD] * 3 + [Consequence.FAIL] * 2


def test_a_group_that_is_released_begins_anew() -> None:
    faults = Faults.not_kept()
    for _ in range(3):
        faults.judge(0, failure("g"), 0)
    assert faults.quarantine(0) == Quarantine(frozenset({"g"}), frozenset({"g"}))
    assert faults.release(0, "g")
    assert not faults.release(0, "g")
    assert faults.quarantine(0) == Quarantine()
    assert faults.judge(0, failure("g"), 300_000)[0] is Consequence.RELOAD


def test_what_is_known_of_failures_is_bounded_and_goes_with_the_shard() -> None:
    faults = Faults.not_kept()
    for number in range(1_500):
        faults.judge(number % 2, failure(f"g{number}"), number * 60_000)
    assert len(list(faults)) == 1_000
    faults.forget(0)
    assert {one.shard for one in faults} == {1}


def test_files_are_private_few_and_small(tmp_path: Path) -> None:
    path = tmp_path / "new" / "faults"
    files = folder(path)
    for number in range(5):
        assert files.keep(failure(f"g{number}", number * 1_000).kept) == str(max(path.iterdir()))
    assert [one.group_id for one in read(path)] == ["g2", "g3", "g4"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


@pytest.mark.parametrize(("metadata_bytes", "events"), [(100, 3), (10_000, 1), (60_000, 0)])
def test_of_what_is_too_large_a_part_is_kept(tmp_path: Path, metadata_bytes: int, events: int) -> None:
    folder(tmp_path).keep(failure("g", 0, metadata_bytes).kept)
    (kept,) = read(tmp_path)
    assert (len(kept.events), kept.complete) == (events, events == 3)
    assert all(file.stat().st_size <= MAX_BYTES for file in tmp_path.iterdir())


@contextmanager
def disk_full_after(size_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond a size: the write that would ends with EFBIG."""
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_leaves_no_part_of_a_file_and_the_next_failure_is_kept(tmp_path: Path) -> None:
    files = folder(tmp_path)
    for number in range(3):
        assert files.keep(failure(f"g{number}", number * 1_000).kept)
    for number in range(3, 6):
        with disk_full_after(100), capture_logs() as logged:
            assert files.keep(failure(f"g{number}", number * 1_000).kept) == ""
        assert [one["event"] for one in logged] == ["fault_not_kept"]
        assert [one.group_id for one in read(tmp_path)] == ["g1", "g2"], "there was room for one"
    assert files.keep(failure("g6", 6_000).kept)
    assert [one.group_id for one in read(tmp_path)] == ["g1", "g2", "g6"]


def test_what_a_process_that_died_had_not_finished_is_removed(tmp_path: Path) -> None:
    (tmp_path / "fault-20260101T000000-shard-1-00000000.part").write_bytes(b"{")
    assert folder(tmp_path).keep(failure("g").kept)
    assert [one.group_id for one in read(tmp_path)] == ["g"]


def test_a_folder_that_is_none_costs_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        assert folder(tmp_path / name).keep(failure("g").kept) == ""
    assert folder(tmp_path, max_files=0).keep(failure("g").kept) == ""
    assert default_folder().name.startswith("muster-faults-")

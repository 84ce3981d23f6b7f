"""Random lives of a group: a snapshot at any place of their log loses nothing (invariant G12)."""

import pytest
from conformance.test_conformance_properties import CONFIG, SHRINKING_S, GroupLife
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from kit.logs.snapshots import check_every_cut


class SnapshotLife(GroupLife):
    """Random lives whose logs are cut everywhere."""

    def check_replays(self) -> None:
        """Each cut of the log gives the same state by way of a snapshot."""
        check_every_cut(self.cluster.log, CONFIG)
        self.known.clear()


@pytest.mark.slow
def test_a_snapshot_and_the_tail_equal_the_whole_log_at_every_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS", SHRINKING_S)
    run_state_machine_as_test(
        SnapshotLife,
        settings=settings(
            max_examples=30,  # each life is cut at every record: the cost grows with its square
            stateful_step_count=60,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

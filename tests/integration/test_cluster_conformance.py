"""Recorded scripts over real gRPC, against processes: three servers, metadata, discovery, a coordinator."""

from pathlib import Path

import pytest
from conformance import traces, traces_grpc, traces_incremental, traces_incremental_grpc

pytestmark = pytest.mark.cluster


async def test_a_sample_is_answered_as_kafka_does(tmp_path: Path) -> None:
    scripts = traces.load()
    chosen, _ = traces_grpc.sample(scripts, traces_grpc.SAMPLE)
    assert len(chosen) == traces_grpc.SAMPLE
    assert {each.script.kind for each in chosen} == {script.kind for script in scripts}
    played = await traces_grpc.play_on_processes(tmp_path, chosen)
    assert len(played) == 2
    for way, verdicts in played.items():
        for each, verdict in zip(chosen, verdicts, strict=True):
            where = f"{each.script.name}, step {verdict.step}, {way}"
            assert verdict.matches, f"{where}: Kafka {verdict.expected}, Muster {verdict.got}"


async def test_a_sample_of_incremental_groups_is_answered_as_kafka_does(tmp_path: Path) -> None:
    chosen, _ = traces_incremental_grpc.sample(traces_incremental.load(), traces_incremental_grpc.SAMPLE)
    assert len(chosen) == traces_incremental_grpc.SAMPLE
    verdicts = await traces_incremental_grpc.play_on_processes(tmp_path, chosen)
    for script, verdict in zip(chosen, verdicts, strict=True):
        where = f"{script.name}, step {verdict.step}"
        assert verdict.matches, f"{where}: Kafka {verdict.expected}, Muster {verdict.got}"

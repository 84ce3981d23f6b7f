"""`muster features`, against real metadata."""

import json
import re
from pathlib import Path

import pytest
from kit import forked
from kit.metadata.metadata_instances import MetadataCluster, metadata_cluster
from kit.waiting import until
from muster_core.features import ALL_FEATURES, FEATURE_NAMES, Feature
from muster_protos.muster.internal.v1 import metadata_pb2

pytestmark = pytest.mark.cluster

UPGRADE = Path(__file__).parents[2] / "docs" / "upgrade.md"


async def features(cluster: MetadataCluster, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command."""
    addresses = ",".join(instance.address for instance in cluster.instances)
    done = await forked.run_beside(["muster", "features", *arguments, "--metadata", addresses])
    return done.returncode, done.stdout, done.stderr


async def test_lists_and_enables(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, instances=2, features=()) as cluster:
        first, *others = FEATURE_NAMES
        code, output, notes = await features(cluster, "enable", first)
        assert (code, output) == (0, f"{first} is enabled\n")
        assert all(instance.address in notes for instance in cluster.instances)
        assert "Metadata of version 0.1 is never known: make sure that none runs elsewhere" in notes
        assert await features(cluster, "enable", first) == (0, f"{first} is enabled\n", "")
        code, output, _ = await features(cluster, "list", "-o", "json")
        assert code == 0
        told = json.loads(output)
        assert {row["name"]: row["enabled"] for row in told["features"]} == {
            name: name == first for name in FEATURE_NAMES
        }
        assert [server["role"] for server in told["servers"]] == ["metadata", "metadata"]
        code, output, _ = await features(cluster, "list")
        assert code == 0
        assert "can be enabled" in output
        code, output, _ = await features(cluster, "enable", "all")
        assert code == 0
        assert output.splitlines() == [f"{name} is enabled" for name in others]


async def test_names_who_lacks_a_feature(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, features=()) as cluster:
        old = metadata_pb2.Server(role="discovery", name="d-1", version="0.1.0")
        watch = cluster[0].stub.Watch(metadata_pb2.WatchRequest(watcher=old))
        await watch.read()

        async def refused() -> bool:
            code, _, errors = await features(cluster, "enable", FEATURE_NAMES[0])
            return code == 2 and "discovery d-1, version 0.1.0" in errors

        await until(refused, "the old discovery is named")
        watch.cancel()


async def test_an_instance_that_does_not_answer_may_be_older(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, instances=2) as cluster:
        await cluster[1].stop()
        code, _, errors = await features(cluster, "list")
        assert code == 2
        assert f"metadata at {cluster[1].address} does not answer" in errors


@pytest.mark.parametrize("feature", sorted(ALL_FEATURES), ids=str)
def test_every_feature_is_documented(feature: Feature) -> None:
    rows = re.findall(r"\| `([a-z-]+)` \| \d+\.\d+\.\d+ \| (.+) \|", UPGRADE.read_text("utf-8"))
    assert dict(rows)[feature] == feature.about
    assert len(rows) == len(ALL_FEATURES)

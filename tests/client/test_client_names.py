"""What a worker knows of the names of its partitions."""

import asyncio
from collections.abc import Iterable

import muster
import pytest
from client.client_scripted import ScriptedCluster
from client.work_fleet import FAST
from kit.waiting import until, until_equal
from muster import Topic, TopicPartition
from muster._errors import ClusterUnavailable
from muster._work.names import Names
from muster_protos.muster.v1 import common_pb2


class Catalog:
    """Topics that are read, and how often."""

    def __init__(self, *names: str) -> None:
        self.topic: Topic | None = Topic("t", len(names), names=names)
        self.reads = 0
        self.fails = 0

    async def read(self, names: Iterable[str]) -> list[Topic]:
        assert list(names) == ["t"]
        self.reads += 1
        if self.fails:
            self.fails -= 1
            raise ClusterUnavailable("nobody is there")
        return [self.topic] if self.topic is not None else []


async def test_names_are_read_together_once_for_each_assignment() -> None:
    catalog = Catalog("a", "b", "c")
    names = Names(catalog.read)
    assert await asyncio.gather(*(names.of(TopicPartition("t", n)) for n in range(3))) == ["a", "b", "c"]
    assert await names.of(TopicPartition("t", 1)) == "b"
    assert catalog.reads == 1
    catalog.topic = Topic("t", 2, names=("x", "y"))  # it was deleted and created again
    names.assigned()
    assert await names.of(TopicPartition("t", 1)) == "y"


async def test_a_name_that_the_catalog_does_not_have_yet_is_waited_for() -> None:
    catalog = Catalog("a")
    catalog.fails = 1
    names = Names(catalog.read)
    waiting = asyncio.ensure_future(names.of(TopicPartition("t", 1)))
    await until(lambda: catalog.reads > 2)
    assert not waiting.done()
    catalog.topic = Topic("t", 2, names=("a", "b"))
    assert await waiting == "b"


async def test_a_topic_of_numbers_is_not_asked_for() -> None:
    catalog = Catalog()
    names = Names(catalog.read)
    names.note(Topic("t", 4))
    assert await names.of(TopicPartition("t", 3)) is None
    assert catalog.reads == 0


def partition_names(*names: str) -> common_pb2.PartitionNames:
    return common_pb2.PartitionNames(
        partitions=[common_pb2.PartitionNames.Partition(name=name) for name in names]
    )


@pytest.mark.cluster
async def test_work_is_told_names_and_gets_no_removed_partition(cluster: ScriptedCluster) -> None:
    cluster.topics["t"], cluster.names["t"] = 4, partition_names("acme", "", "hooli", "")
    stop = asyncio.Event()
    got: dict[str, tuple[int, str | None]] = {}

    async def work(p: muster.Partition) -> None:
        got[p.key] = (p.number, p.name)
        await asyncio.Event().wait()

    task = asyncio.create_task(
        muster.arun(
            work,
            group="g",
            topic="t",
            partitions=["acme", "initech"],
            servers=cluster.address,
            stop=stop,
            **FAST,
        )
    )
    await until_equal(lambda: got, {"acme": (0, "acme"), "hooli": (2, "hooli"), "initech": (4, "initech")})
    stop.set()
    await task


@pytest.mark.cluster
async def test_names_and_numbers_are_not_mixed(cluster: ScriptedCluster) -> None:
    cluster.topics["n"], cluster.names["n"] = 1, partition_names("acme")
    async with muster.Cluster(cluster.address) as connection:
        with pytest.raises(muster.TopicError, match="has partitions with names, and 3 numbered ones"):
            await connection.ensure_topic("n", 3)
        assert (await connection.ensure_topic("n")).names == ("acme",)
    with pytest.raises(muster.MusterError, match=r"await Cluster\.owner_of"):
        muster.owner_of("n", "acme", group="g", servers=cluster.address)


@pytest.mark.parametrize(
    ("key", "number"),
    [("a", 0), ("c", 2), ("", None), ("x", None), ("2", None), (2, 2), (1, None), (3, None), (-1, None)],
)
def test_a_key_is_a_name_or_a_number(key: str | int, number: int | None) -> None:
    assert Topic("t", 3, names=("a", "", "c")).number_of(key) == number


@pytest.mark.parametrize(
    ("key", "number"), [("2", 2), (2, 2), ("3", None), ("a", None), ("²", None), ("", None), ("-1", None)]
)
def test_a_key_of_a_topic_without_names_is_a_number(key: str | int, number: int | None) -> None:
    assert Topic("t", 3).number_of(key) == number

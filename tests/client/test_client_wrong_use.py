"""Wrong use of the library fails where it is made, with a sentence that names what is wrong."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import muster
import pytest
from muster.assignors import Assignor, MemberSnapshot, TopicSnapshot
from muster.sinks import FencingMiddleware, MemoryTokens, ObjectFence, RedisFence, SqlFence, fence_headers

NOWHERE = "127.0.0.1:1"
Case = tuple[dict[str, Any], str]


@dataclass
class Ownership:
    group: str = "g"
    topic: str = "t"
    number: int = 1
    token: Any = "0000000001-0000000000000001"


def refused(sentence: str, call: Callable[[], object]) -> None:
    with pytest.raises((muster.SettingsError, TypeError, ValueError)) as caught:
        call()
    assert sentence in str(caught.value)
    if isinstance(caught.value, muster.SettingsError):
        assert str(caught.value).startswith(f"{caught.value.field}: ")


def named(case: object) -> str | None:
    return ", ".join(f"{name}={value!r}" for name, value in case.items()) if isinstance(case, dict) else None


async def no_work(_: muster.Partition) -> None:
    raise AssertionError


MEMBER: list[Case] = [
    ({"session_timout_ms": 5_000}, "has no setting 'session_timout_ms'; did you mean 'session_timeout_ms'?"),
    ({"session_timeout": 5_000}, "did you mean 'session_timeout_ms'?"),
    ({"assignor": ["range"]}, "did you mean 'assignors'?"),
    ({"bootstrap": "a:1"}, "has no setting 'bootstrap', only "),
    ({"session_timeout_ms": "5"}, "session_timeout_ms: must be a whole number, not '5'"),
    ({"session_timeout_ms": 4.5}, "session_timeout_ms: must be a whole number, not 4.5"),
    ({"session_timeout_ms": True}, "session_timeout_ms: must be a whole number, not True"),
    ({"session_timeout_ms": None}, "session_timeout_ms: must be a whole number, not None"),
    ({"disconnect_grace_ms": 3_000.0}, "disconnect_grace_ms: must be a whole number, not 3000.0"),
    ({"session": "yes"}, "session: must be True or False, not 'yes'"),
    ({"client_id": None}, "client_id: must be text, not None"),
    ({"rack_id": 5}, "rack_id: must be text, not 5"),
    ({"rollout_hold_ms": 3_600_001}, "rollout_hold_ms: 3600001 is not between 0 and 3600000"),
    ({"weight": 0}, "weight: 0 is not between 1 and 100"),
    ({"weight": 101}, "weight: 101 is not between 1 and 100"),
    ({"group_instance_id": None}, "group_instance_id: must be text, not None"),
    ({"group_instance_id": 0}, "group_instance_id: must be text, not 0"),
    ({"assignors": "range"}, "assignors: must be a list, such as ['range']"),
    ({"protocol": "incremental", "assignors": ["range"]}, "assignors: is used in classic groups alone"),
    ({"protocol": "incremental", "user_data": b"7"}, "user_data: is used in classic groups alone"),
    ({"assignors": {"range"}}, "assignors: must be a list, preferred first, not {'range'}"),
    ({"assignors": [None]}, "assignors: None is neither a name nor an Assignor"),
    ({"assignors": [len]}, "assignors: <built-in function len> is neither a name nor an Assignor"),
    ({"assignors": ["rnage"]}, "assignors: 'rnage' is not one of cooperative-sticky, range, "),
    ({"user_data": "text"}, "user_data: must be bytes"),
]
RUN: list[Case] = [
    *MEMBER,
    ({"work": 42}, "work: must be a function that gets a partition, not 42"),
    ({"work": None}, "work: must be a function that gets a partition, not None"),
    ({"group": ["g"]}, "group_id: must be text, not ['g']"),
    ({"topic": ["a"]}, "topic: must be text, not ['a']"),
    ({"topic": b"a"}, "topic: must be text, not b'a'"),
    ({"partitions": "5"}, "partitions: must be a number or a list of names, not '5'"),
    ({"partitions": True}, "partitions: must be a whole number, not True"),
    ({"partitions": 1.0}, "partitions: must be a number or a list of names, not 1.0"),
    ({"partitions": -1}, "partitions: -1 is not between 1 and"),
    ({"servers": 5}, "servers: must be a list of texts, not 5"),
    ({"servers": [7400]}, "servers: must be a list of texts, and 7400 is none"),
    ({"servers": "http://a:1"}, "servers: 'http://a:1' is not an address"),
    ({"credentials": "ca.pem"}, "credentials: must be TlsFiles or grpc.ChannelCredentials, not str"),
    ({"max_idle": 5}, "muster.run has no setting 'max_idle'; did you mean 'max_idle_ms'?"),
    ({"max_idle_ms": False}, "max_idle_ms: must be a whole number, not False"),
    ({"loop_block_warn_ms": None}, "loop_block_warn_ms: must be a whole number, not None"),
    ({"on_error": "rety"}, 'on_error: must be "retry", "park" or "exit" or a function, not \'rety\''),
    ({"on_return": None}, 'on_return: must be "restart", "done" or "park", not None'),
    ({"version": 2}, "version: must be text, not 2"),
]


@pytest.mark.parametrize(("wrong", "sentence"), RUN, ids=named)
def test_run(wrong: dict[str, Any], sentence: str) -> None:
    given = {"work": no_work, "group": "g", "topic": "t", "partitions": 1, "servers": NOWHERE, **wrong}
    refused(sentence, lambda: muster.run(given.pop("work"), **given))


async def test_arun_wants_an_event_to_stop() -> None:
    wrong: Any = 5
    with pytest.raises(muster.SettingsError, match=r"stop: must be an asyncio\.Event, not 5"):
        await muster.arun(no_work, group="g", topic="t", servers=NOWHERE, stop=wrong)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        *MEMBER,
        ({"cluster": "a:1"}, "cluster: must be a Cluster, not 'a:1'"),
        ({"group_id": None}, "group_id: must be text, not None"),
        ({"topics": 5}, "topics: must be one name or several, not 5"),
        ({"topics": b"t"}, "topics: must be one name or several, not b't'"),
        ({"topics": {"t": 5}}, "topics: must be one name or several, not {'t': 5}"),
        ({"topics": [5]}, "topics: must be text, not 5"),
        ({"topics": []}, "topics: name at least one topic"),
        ({"on_partitions_assigned": 5}, "on_partitions_assigned: must be a function that gets partitions"),
        ({"on_partitions_lost": "f"}, "on_partitions_lost: must be a function that gets partitions, not 'f'"),
    ],
    ids=named,
)
async def test_a_member(wrong: dict[str, Any], sentence: str) -> None:
    async with muster.Cluster(NOWHERE) as cluster:
        given = {"cluster": cluster, "group_id": "g", "topics": "t", **wrong}
        refused(sentence, lambda: muster.Member(given.pop("cluster"), **given))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"t": 5}, "offsets: must be a list of TopicPartition, and 't' is none"),
        ({("t", "0"): 5}, "offsets: must be a whole number, not '0'"),
        ({("t", -1): 5}, "offsets: -1 is not between 0 and"),
        ([5], "offsets must map partitions to positions, not be [5]"),
        ({("t", 0): "5"}, "offset of t-0 must be a whole number, not '5'"),
        ({("t", 0): -1}, "offset of t-0 is -1, it must be 0 or more"),
        ({("t", 0): True}, "offset of t-0 must be a whole number, not True"),
        ({("t", 0): 1.0}, "offset of t-0 must be a whole number, not 1.0"),
        ({("t", 0): None}, "offset of t-0 must be a whole number, not None"),
    ],
    ids=str,
)
async def test_a_commit(wrong: Any, sentence: str) -> None:
    async with muster.Cluster(NOWHERE) as cluster:
        member = muster.Member(cluster, group_id="g", topics="t")
        with pytest.raises((TypeError, ValueError)) as caught:
            await member.commit(wrong)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"timeout_ms": "5"}, "timeout_ms: must be a whole number, not '5'"),
        ({"timeout_ms": -1}, "timeout_ms: -1 is not between 1 and"),
        ({"timeout_ms": True}, "timeout_ms: must be a whole number, not True"),
        ({"timeout_ms": None}, "timeout_ms: must be a whole number, not None"),
        (
            {"credentials": ("cert", "key")},
            "credentials: must be TlsFiles or grpc.ChannelCredentials, not tuple",
        ),
        ({"connect": "a:1"}, "connect: must be a function that gets an address, not 'a:1'"),
    ],
    ids=named,
)
def test_a_cluster(wrong: dict[str, Any], sentence: str) -> None:
    refused(sentence, lambda: muster.Cluster(NOWHERE, **wrong))


@pytest.mark.parametrize(
    ("function", "arguments", "sentence"),
    [
        ("ensure_topic", (5, 1), "topic: must be text, not 5"),
        ("create_topic", ("t", "5"), "partitions: must be a number or a list of names, not '5'"),
        ("alter_topic", ("t", True), "partitions: must be a whole number, not True"),
        ("delete_topic", (None,), "topic: must be text, not None"),
        ("topics", ("sites",), "names: must be a list, such as ['sites']"),
        ("topics", ([5],), "names: must be a list of texts, and 5 is none"),
        ("list_groups", ("Stable",), "states: must be a list, such as ['Stable']"),
        ("describe_group", (None,), "group_id: must be text, not None"),
        ("group_history", ("g", "5"), "limit: must be a whole number, not '5'"),
        ("group_history", ("g", -1), "limit: -1 is not between 0 and"),
        ("committed", ("g", 5), "partitions: must be a list of TopicPartition, not 5"),
        ("committed", ("g", "t-1"), "partitions: must be a list of TopicPartition, not 't-1'"),
        ("committed", ("g", ["t"]), "partitions: must be a list of TopicPartition, and 't' is none"),
        ("committed", ("g", ["t1"]), "partitions: must be a list of TopicPartition, and 't1' is none"),
        ("committed", ("g", [("t", -1)]), "partitions: -1 is not between 0 and"),
        ("committed", ("g", muster.TopicPartition("t", 1)), "partitions: must be a list, such as [TopicPart"),
        ("release_partitions", ("g", ["t"]), "partitions: must be a list of TopicPartition, and 't' is none"),
        ("release_partitions", ("g", muster.TopicPartition("t", 1)), "partitions: must be a list, such as ["),
    ],
)
async def test_calls_of_a_cluster(function: str, arguments: tuple[Any, ...], sentence: str) -> None:
    async with muster.Cluster(NOWHERE, timeout_ms=100) as cluster:
        with pytest.raises(muster.SettingsError) as caught:
            await getattr(cluster, function)(*arguments)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("zones", "sentence"),
    [
        (["a"], "zones: must map zones to numbers of partitions, not be ['a']"),
        ({"a": 0}, "zones: must map names to lists of numbers, not 'a' to 0"),
        ({"a": "01"}, "zones: must map names to lists of numbers, not 'a' to '01'"),
        ({5: [0]}, "zones: must map names to lists of numbers, not 5 to [0]"),
        ({"a": [True]}, "zones: must be a whole number, not True"),
    ],
)
async def test_zones(zones: Any, sentence: str) -> None:
    async with muster.Cluster(NOWHERE, timeout_ms=100) as cluster:
        with pytest.raises(muster.SettingsError) as caught:
            await cluster.create_topic("t", 2, zones=zones)
    assert sentence in str(caught.value)


WRONG: Any = 5
DATABASE = sqlite3.connect(":memory:")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: muster.TlsFiles(ca_file=WRONG), "ca_file: must be the path of a file, not 5"),
        (lambda: muster.TlsFiles(ca_file=""), "ca_file: must be the path of a file, not ''"),
        (lambda: Assignor(WRONG, WRONG), "name of an Assignor must be text, not 5"),
        (lambda: Assignor("mine", WRONG), "assign of 'mine' must be a function, not 5"),
        (lambda: Assignor("mine", cast(Any, len), WRONG), "cooperative of 'mine' must be True or False"),
        (lambda: MemberSnapshot("m", cast(Any, "sites")), "such as ('sites',)"),
        (lambda: TopicSnapshot(cast(Any, "5")), "partitions must be a whole number, not '5'"),
        (lambda: TopicSnapshot(-1), "partitions is -1, it must be 0 or more"),
        (lambda: SqlFence(cast(Any, "mysql")), "dialect: 'mysql' is not one of sqlite, postgresql"),
        (lambda: SqlFence("sqlite", WRONG), "table: 5 is no plain name of a table"),
        (lambda: SqlFence("sqlite").check(WRONG, Ownership()), "connection must be one of a database driver"),
        (lambda: SqlFence("sqlite").check(DATABASE, WRONG), "5 is no owned partition: pass the one that"),
        (lambda: SqlFence("sqlite").check(DATABASE, Ownership(token=5)), "is no owned partition"),
        (lambda: RedisFence(WRONG), "prefix: must be text, not 5"),
        (lambda: RedisFence().call(None, Ownership(), "GET", "a"), "client must be one of redis-py"),
        (lambda: ObjectFence(None, "bucket"), "client must be one of boto3 with `head_object`, not None"),
        (lambda: MemoryTokens(0), "limit: 0 is not between 1 and"),
        (lambda: FencingMiddleware(WRONG), "app must be an ASGI application, not 5"),
        (
            lambda: FencingMiddleware(WRONG.__add__, methods="POST"),
            "methods: must be a list, such as ['POST']",
        ),
        (lambda: fence_headers(WRONG), "5 is no owned partition: pass the one that the work was called with"),
    ],
)
def test_files_assignors_and_sinks(call: Callable[[], object], sentence: str) -> None:
    refused(sentence, call)


class RedisClient:
    def eval(self, *_: object) -> None:
        raise AssertionError


def test_a_command_of_redis_is_one() -> None:
    refused('must be given, such as "SET"', lambda: RedisFence().call(RedisClient(), Ownership()))
    refused(
        "keys: must be a list, such as ['a']",
        lambda: RedisFence().call(RedisClient(), Ownership(), "GET", "a", keys="a"),
    )

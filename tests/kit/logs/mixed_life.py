"""What groups of both kinds live through together, for logs that have every kind of record in them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Literal

import muster
from kit.waiting import until

GROUPS = 3
CHANGING = "changing"
NUMBERED, NAMED, AGAIN = "numbered", "named", "again"
PARTITIONS = 6
_TOPICS = (NUMBERED, NAMED, AGAIN)
_COMMITS = 8


class MixedLife:
    """Incremental groups, each with a member that stays, topics that are made again and partitions that go.

    Args:
        client: the connection to the cluster.
    """

    def __init__(self, client: muster.Cluster) -> None:
        self._client = client
        self._lasting: list[muster.Member] = []
        self._round = 0

    @classmethod
    @asynccontextmanager
    async def begun(cls, client: muster.Cluster) -> AsyncIterator["MixedLife"]:
        """A life whose topics are there, and whose lasting members work until the end of the block."""
        await client.create_topic(NUMBERED, PARTITIONS)
        await client.create_topic(NAMED, {"heavy": 5, "light": 1})
        await client.create_topic(AGAIN, 2)
        life = cls(client)
        try:
            for number in range(GROUPS):
                life._lasting.append(await life._member(number))
            yield life
        finally:
            await asyncio.gather(*(member.close() for member in life._lasting))

    async def one_round(self) -> None:
        """Members come, commit and go; one is static, and comes back; a partition and a topic go."""
        self._round += 1
        for number in range(GROUPS):
            lasting, static = self._lasting[number], f"static-{number}"
            members = [await self._member(number), await self._member(number, static)]
            for member in members:
                await until(partial(_has_work, member), f"group {number} shares its work")
            await _commit([lasting, *members])
            await members.pop().close("away for a while")  # static: it stays in the group
            back = await self._member(number, static)
            await until(partial(_has_work, back), f"{static} is back")
            await _commit([lasting, back, *members])
            for member in (back, *members):
                await member.close("enough")
            if self._round % 2 == 0:
                await self._client.remove_member(f"incremental-{number}", static, "it does not come back")
        await self._change_kinds()
        await self._change_topics()
        for member in self._lasting:
            await until(partial(_sees_topics, member), "the topics are as they were")
        await _commit(self._lasting)

    async def _change_kinds(self) -> None:
        """A group that is set and works is incremental, classic again, and incremental once more."""
        await self._client.alter_group_settings(CHANGING, {"convert": "never", "assignment_interval_ms": 0})
        members = [
            muster.Member(
                self._client,
                group_id=CHANGING,
                topics=(NUMBERED, AGAIN),
                group_instance_id="changing-static" if weight > 1 else "",
                weight=weight,
                rollout_hold_ms=1_000,
                protocol="auto",
            )
            for weight in (1, 3)
        ]
        for member in members:
            await member.start()
        for member in members:
            await until(partial(_has_work, member), f"{CHANGING} shares its work")
        await self._client.alter_group_settings(CHANGING, {"hold": self._round % 2 == 0})
        await _commit(members)
        for kind in ("incremental", "classic", "incremental"):
            await until(partial(self._is_of, kind), f"{CHANGING} becomes {kind}")
            await _commit(members)
        await self._client.alter_group_settings(CHANGING, {}, ["assignment_interval_ms", "hold"])
        for member in members:
            await member.close("enough")
        await self._client.remove_member(CHANGING, "changing-static", "it does not come back")

    async def _is_of(self, kind: Literal["classic", "incremental"]) -> bool:
        """Asks for a kind; whether the group is of it."""
        with suppress(muster.GroupError):  # while it rebalances
            return not await self._client.convert_group(CHANGING, kind)
        return False

    async def _change_topics(self) -> None:
        """Partitions of one topic come and go, with what is committed in one; another topic is made again."""
        name = f"extra-{self._round}"
        added = await self._client.add_partitions(NAMED, [name])
        partition = muster.TopicPartition(NAMED, added.names.index(name))
        await until(lambda: _is_assigned(self._lasting, partition), f"{name} is assigned")
        await _commit(self._lasting)
        await self._client.remove_partitions(NAMED, [name])
        await self._client.delete_topic(AGAIN)
        await self._client.create_topic(AGAIN, 1 + self._round % 3)

    async def _member(self, number: int, instance: str = "") -> muster.Member:
        member = muster.Member(
            self._client,
            group_id=f"incremental-{number}",
            topics=_TOPICS,
            group_instance_id=instance,
            protocol="incremental",
        )
        await member.start()
        return member


async def _commit(members: list[muster.Member]) -> None:
    for position in range(1, _COMMITS):
        for member in members:
            try:
                await member.commit(dict.fromkeys(member.partitions, position))
            except (muster.CommitFailed, muster.CommitRejected):  # it moves just now, or its topic is gone
                continue


async def _has_work(member: muster.Member) -> bool:
    return bool(member.partitions)


async def _is_assigned(members: list[muster.Member], partition: muster.TopicPartition) -> bool:
    return all(partition in member.partitions for member in members)


async def _sees_topics(member: muster.Member) -> bool:
    return {partition.topic for partition in member.partitions} == set(_TOPICS)

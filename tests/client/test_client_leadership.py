"""`lead` and `alead`: who leads, what a loss does to a block, and what becomes of work that ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import muster
import pytest
from client.client_scripted import TOKEN, ScriptedCluster
from kit.waiting import stand_still, until
from muster import TopicPartition
from muster._lead.assignor import LEADER, TOPIC, assign_leader
from muster.assignors import GroupSnapshot, MemberSnapshot, TopicSnapshot
from muster_assignors import check_assignment
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

UNARY: Any = {"session": False, "heartbeat_interval_ms": 30, "session_timeout_ms": 10_000}
LOST = coordinator_pb2.HeartbeatResponse(error_code=common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID)
TOPICS = {TOPIC: TopicSnapshot(1)}
LEADERSHIP = TopicPartition(TOPIC, 0)


def candidate(name: str, *, kept_since: int = -1) -> MemberSnapshot:
    owned = (LEADERSHIP,) if kept_since >= 0 else ()
    return MemberSnapshot(name, (TOPIC,), owned=owned, keeps_owned=bool(owned), generation=kept_since)


def leader_of(*candidates: MemberSnapshot) -> list[str]:
    group = GroupSnapshot({member.member_id: member for member in candidates}, TOPICS)
    assignment = assign_leader(group)
    check_assignment(LEADER, group, assignment)
    return [member for member, partitions in assignment.items() if partitions]


def test_who_leads_goes_on_to_whoever_comes() -> None:
    assert leader_of(candidate("b")) == ["b"]
    assert leader_of(candidate("b", kept_since=3), candidate("a"), candidate("c")) == ["b"]
    assert leader_of(candidate("a", kept_since=2), candidate("b", kept_since=3)) == ["b"]
    assert leader_of(candidate("c"), candidate("a")) == ["a"]


def test_without_its_topic_nobody_leads() -> None:
    assert assign_leader(GroupSnapshot({"a": candidate("a")}, {})) == {}


def test_wrong_use_fails_at_once_with_a_sentence() -> None:
    lead: Any = muster.lead

    async def work(term: muster.Term) -> None: ...

    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: lead(""), "name: must be text that is not empty"),
        (lambda: lead("x" * 251), "name: has 251 bytes, at most 250 are allowed"),
        (lambda: lead("x", name="x"), "name: is given twice"),
        (lambda: lead(work), "name: is missing"),
        (lambda: lead(work, name=7), "name: must be text"),
        (lambda: lead(42, name="x"), "work: must be a function that gets a term, not 42"),
        (lambda: lead(lambda: None, name="x"), "must take one argument, the term"),
        (lambda: lead(work, name="x", drain_timeout_ms=-1), "drain_timeout_ms: -1 is not between"),
        (lambda: lead("x", group_instance_id="a"), "group_instance_id: a candidate has no such setting"),
        (lambda: lead("x", session_timeout_ms=0), "session_timeout_ms: 0 is not between"),
    ]
    for call, sentence in wrong:
        with pytest.raises(muster.SettingsError) as refused:
            call()
        assert sentence in str(refused.value)


async def entered(cluster: ScriptedCluster) -> tuple[muster.Leadership, muster.Term]:
    leadership = muster.lead("x", servers=cluster.address, **UNARY)
    return leadership, await leadership.__aenter__()


@pytest.fixture
def leading(cluster: ScriptedCluster) -> ScriptedCluster:
    """A cluster that gives the leadership to who asks."""
    cluster.topics[TOPIC] = 1
    return cluster


@pytest.mark.cluster
async def test_a_block_is_cancelled_when_the_leadership_is_lost(leading: ScriptedCluster) -> None:
    a = leading.coordinators[0]
    terms: list[muster.Term] = []

    async def block() -> None:
        async with muster.lead("x", servers=leading.address, **UNARY) as term:
            terms.append(term)
            assert (term.name, term.token, term.is_leader) == ("x", TOKEN, True)
            a.script["Heartbeat"].append(LOST)
            await asyncio.Event().wait()

    with pytest.raises(muster.LeadershipLost) as lost:
        await asyncio.wait_for(block(), 30)
    assert lost.value.name == "x"
    (term,) = terms
    assert (term.is_leader, term.lost.is_set()) == (False, True)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing is left to be cancelled


@pytest.mark.cluster
async def test_a_loss_that_the_block_takes_no_notice_of_is_raised_at_its_end(
    leading: ScriptedCluster,
) -> None:
    a = leading.coordinators[0]

    async def block() -> None:
        async with muster.lead("x", servers=leading.address, **UNARY) as term:
            a.script["Heartbeat"].append(LOST)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await term.ending()

    with pytest.raises(muster.LeadershipLost):
        await block()
    await asyncio.sleep(0)


@pytest.mark.cluster
async def test_a_block_that_raises_gives_the_leadership_up_and_raises_that(leading: ScriptedCluster) -> None:
    with pytest.raises(ValueError, match="no report"):
        async with muster.lead("x", servers=leading.address, **UNARY):
            raise ValueError("no report")
    assert len(leading.coordinators[0].requests("LeaveGroup")) == 1


@pytest.mark.cluster
async def test_who_else_cancels_the_block_is_heeded(leading: ScriptedCluster) -> None:
    a = leading.coordinators[0]
    at_work = asyncio.Event()

    async def block() -> None:
        async with muster.lead("x", servers=leading.address, **UNARY) as term:
            at_work.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await term.lost.wait()
                raise

    task = asyncio.create_task(block())
    await at_work.wait()
    task.cancel()
    a.script["Heartbeat"].append(LOST)
    await asyncio.wait((task,))
    assert task.cancelled()


@pytest.mark.cluster
async def test_while_nobody_is_elected_a_candidate_can_be_cancelled(cluster: ScriptedCluster) -> None:
    task = asyncio.create_task(entered(cluster))  # the scripted group owns other partitions
    await cluster.coordinators[0].until("Heartbeat")
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert len(cluster.coordinators[0].requests("LeaveGroup")) == 1


@pytest.mark.cluster
async def test_work_that_lost_the_leadership_is_called_again_once_it_has_ended(
    leading: ScriptedCluster,
) -> None:
    a = leading.coordinators[0]
    running, most, calls, stop = 0, 0, 0, asyncio.Event()
    let_end = asyncio.Event()

    async def work(term: muster.Term) -> None:
        nonlocal running, most, calls
        running, calls = running + 1, calls + 1
        most = max(most, running)
        try:
            await asyncio.Event().wait()
        finally:
            await let_end.wait()
            running -= 1

    task = asyncio.create_task(muster.alead(work, name="x", servers=leading.address, stop=stop, **UNARY))
    await until(lambda: calls == 1)
    a.script["Heartbeat"].append(LOST)
    await a.until("SyncGroup", 2)
    await a.until("Heartbeat", len(a.requests("Heartbeat")) + 3)
    assert calls == 1
    let_end.set()
    await until(lambda: calls == 2)
    stop.set()
    await task
    assert (running, most) == (0, 1)


@pytest.mark.cluster
async def test_work_that_does_not_end_after_a_loss_makes_the_process_stop(leading: ScriptedCluster) -> None:
    a = leading.coordinators[0]
    over = asyncio.Event()

    def work(term: muster.BlockingTerm) -> None:
        a.script["Heartbeat"].append(LOST)
        while not over.is_set():
            stand_still(0.01)

    with pytest.raises(muster.LeadershipLost):
        await muster.alead(work, name="x", servers=leading.address, drain_timeout_ms=50, **UNARY)
    over.set()


@pytest.mark.cluster
async def test_a_function_behind_a_lambda_gets_the_term_itself(leading: ScriptedCluster) -> None:
    seen: list[muster.Term] = []

    async def report(term: muster.Term) -> None:
        seen.append(term)
        assert not term.lost.is_set()

    await muster.alead(lambda term: report(term), name="x", servers=leading.address, **UNARY)
    assert [type(term) for term in seen] == [muster.Term]


@pytest.mark.cluster
async def test_who_is_cancelled_twice_leads_until_the_work_has_ended(leading: ScriptedCluster) -> None:
    a = leading.coordinators[0]
    began, ending, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(_term: muster.Term) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await go.wait()

    task = asyncio.create_task(muster.alead(work, name="x", servers=leading.address, **UNARY))
    await asyncio.wait_for(began.wait(), 60)
    task.cancel()
    await asyncio.wait_for(ending.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    beats = len(a.requests("Heartbeat"))
    await asyncio.wait_for(a.until("Heartbeat", beats + 3), 60)
    assert not a.requests("LeaveGroup")
    go.set()
    await asyncio.wait_for(a.until("LeaveGroup"), 60)

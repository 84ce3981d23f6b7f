"""Keeps, on the other nodes, which runs of a node's server were without an append-only file.

A server whose `appendonly` is switched off while it runs comes back with the file of that moment, in which
nothing says so, and which says that each write was synced. Only others can know better.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping

import structlog

from muster_metadata.nodes import keys
from muster_metadata.nodes.node import Node, Vetted
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.nodes.reply import Status

log = structlog.get_logger()

MAX_RUNS_PER_NODE = 16
"""Of so many runs of each node a doubt is kept: it is needed only until the node voted in a later run."""

_RUN = re.compile(rb"\w{1,64}")
_VALUE = re.compile(rb"[1-9]/\d{1,12}")
_PAUSE_S = 5.0
_RETRY_S = 0.05

Runs = Mapping[str, tuple[int, int]]
"""Run of a server → number of its node, and when it was noted, Unix time."""


class Doubts:
    """Notes such runs on all nodes, and asks for them when a node is back, before its answers count.

    A doubt counts once it is on so many of the other nodes as are a majority. Who asks as many others as are
    a majority together with the node hears of it.

    Args:
        quorum: the nodes.
        on_vetted: called when a node that restarted counts again.
    """

    def __init__(self, quorum: Quorum, on_vetted: Callable[[], None] = lambda: None) -> None:
        self._quorum = quorum
        self._on_vetted = on_vetted
        self._again = asyncio.Event()
        for node in quorum.nodes:
            node.vetted = Vetted()

    def hurry(self) -> None:
        """Asks at once: a node is back."""
        self._again.set()

    async def run(self) -> None:
        """Notes and asks again and again, until it is cancelled."""
        while True:
            self._again.clear()
            try:
                await self.look()
            except Exception:
                log.exception("doubts_failed")
            try:
                async with asyncio.timeout(_RETRY_S if self._unvetted() else _PAUSE_S):
                    await self._again.wait()
            except TimeoutError:
                pass

    async def look(self) -> None:
        """Asks all nodes, notes what is missing at one of them, and vets those that restarted."""
        nodes = self._quorum.nodes
        runs_asked_in = {node: node.steps.run_id for node in nodes if node.steps.connected}
        replies = await asyncio.gather(*(_doubts(node) for node in nodes))
        answers = {node: runs for node, runs in zip(nodes, replies, strict=True) if runs is not None}
        known = _together(answers.values())
        for node in nodes:
            if node.steps.connected and node.steps.run_id and not node.steps.logs_writes:
                known.setdefault(node.steps.run_id, (node.index, int(time.time())))
        kept = _latest(known)
        await asyncio.gather(*(_note(node, kept, answers[node]) for node in answers))
        vetted = False
        for node, run_id in runs_asked_in.items():
            others = len(answers.keys() - {node})
            if others + 1 < self._quorum.majority or node.steps.run_id != run_id:
                continue
            vetted |= node.vetted is None or node.vetted.run_id != run_id
            node.vetted = Vetted(
                run_id, tuple(run for run, (index, _) in kept.items() if index == node.index)
            )
        if vetted:
            self._on_vetted()

    def _unvetted(self) -> bool:
        return any(
            node.steps.connected and node.vetted is not None and node.vetted.run_id != node.steps.run_id
            for node in self._quorum.nodes
        )


async def copy_doubts(quorum: Quorum, node: Node) -> bool:
    """Copies to a node that lost its data what the others know.

    Returns:
        Whether it knows as much as a majority of the others; if not, try again.
    """
    others = [other for other in quorum.nodes if other is not node]
    answers = [runs for runs in await asyncio.gather(*map(_doubts, others)) if runs is not None]
    if len(answers) < quorum.majority:
        return False
    return await _note(node, _latest(_together(answers)), {})


async def _doubts(node: Node) -> Runs | None:
    """What a node knows; None: it does not say."""
    reply = await node.table("doubts", (keys.DOUBTS, keys.NODE), node.identity)
    if reply.status is not Status.OK:
        return None
    flat = reply.values[0]
    found = {}
    for run, value in zip(flat[::2], flat[1::2], strict=True):
        if _RUN.fullmatch(run) and _VALUE.fullmatch(value):
            index, noted = value.split(b"/")
            found[run.decode()] = (int(index), int(noted))
    return found


async def _note(node: Node, kept: Runs, there: Runs) -> bool:
    """Notes at a node what it lacks, and removes what is kept no longer."""
    gone = [run for run in there if run not in kept]
    lacking = {run: value for run, value in kept.items() if run not in there}
    if not gone and not lacking:
        return True
    values = [part for run, (index, noted) in lacking.items() for part in (run, f"{index}/{noted}")]
    return (
        await node.table("doubt", (keys.DOUBTS, keys.NODE), node.identity, len(gone), *gone, *values)
    ).done


def _together(answers: Iterable[Runs]) -> dict[str, tuple[int, int]]:
    """What any of the nodes knows."""
    return {run: value for runs in answers for run, value in runs.items()}


def _latest(known: Runs) -> Runs:
    """The latest runs of each node, as many as are kept."""
    rows = sorted(known.items(), key=lambda row: (row[1][1], row[0]), reverse=True)
    kept: dict[int, int] = {}
    found = {}
    for run, value in rows:
        kept[value[0]] = kept.get(value[0], 0) + 1
        if kept[value[0]] <= MAX_RUNS_PER_NODE:
            found[run] = value
    return found

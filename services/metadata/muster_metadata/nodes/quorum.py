"""The nodes together: asks all, and decides as soon as enough have answered."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

from muster_runtime.clock import boot_ms

from muster_metadata.nodes.node import Answer, Node
from muster_metadata.nodes.reply import NodeReply

Replies = Sequence[NodeReply | None]
"""One for each node, in order; None: not answered yet."""

T = TypeVar("T")


class Quorum:
    """N independent nodes, of which a majority decides.

    Args:
        nodes: 1, 3 or 5 of them.
        step_timeout_ms: how long to wait for a majority before the outcome is unknown.
        now_ms: boot clock; that of the machine if absent.

    Attributes:
        configuration: number of the log's configuration; only answers within one are added up.
    """

    def __init__(
        self, nodes: Sequence[Node], step_timeout_ms: int, now_ms: Callable[[], int] = boot_ms
    ) -> None:
        self.nodes = tuple(nodes)
        self.majority = len(self.nodes) // 2 + 1
        self.step_timeout_ms = step_timeout_ms
        self.configuration = 0
        self._now_ms = now_ms

    def start(self) -> None:
        """Starts to connect to all nodes in the background."""
        for node in self.nodes:
            node.start()

    async def stop(self) -> None:
        """Closes all connections."""
        await asyncio.gather(*(node.stop() for node in self.nodes))

    async def ask(
        self,
        question: Callable[[Node], Answer | None],
        decide: Callable[[Replies, bool], T | None],
        *,
        timeout_ms: int | None = None,
        late: Callable[[Node, NodeReply], None] | None = None,
    ) -> tuple[T | None, list[NodeReply | None]]:
        """Asks all nodes at once and returns as soon as the answers decide.

        An answer that is read after the limit does not count, even if it arrived in time: this process may
        have been stopped, and the node may have lost its data since. Nor does one that is read in another
        configuration than the question was asked in.

        Args:
            question: sends the question to a node; returns None if that node is not to be asked.
            decide: returns what the answers mean, or None while they are too few; the flag says that no more
                will come.
            timeout_ms: how long to wait; the step time-out if absent.
            late: called with each answer that comes after the decision.

        Returns:
            What was decided, None if nothing was, and the answers up to then.
        """
        limit_ms = self.step_timeout_ms if timeout_ms is None else timeout_ms
        # This clock counts the time that the machine sleeps; the loop's timer does not.
        deadline_ms = self._now_ms() + limit_ms
        configuration = self.configuration
        answers = [question(node) for node in self.nodes]
        replies: list[NodeReply | None] = [None] * len(answers)
        decided: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        missing = sum(answer is not None for answer in answers)

        def came(place: int, answer: Answer) -> None:
            nonlocal missing
            if answer.cancelled():
                return
            reply = answer.result()
            if self._now_ms() > deadline_ms or self.configuration != configuration:
                _settle(decided, decide, replies, final=True)
            if decided.done():
                if late is not None:
                    late(self.nodes[place], reply)
                return
            missing -= 1
            replies[place] = reply
            _settle(decided, decide, replies, final=missing == 0)

        for place, answer in enumerate(answers):
            if answer is not None:
                answer.add_done_callback(functools.partial(came, place))
        if not missing:
            return decide(replies, True), replies
        expire = functools.partial(_settle, decided, decide, replies, final=True)
        timer = asyncio.get_running_loop().call_later(limit_ms / 1000, expire)
        try:
            return await decided, replies
        finally:
            timer.cancel()


def _settle(
    decided: "asyncio.Future[T | None]",
    decide: Callable[[Replies, bool], T | None],
    replies: Replies,
    *,
    final: bool,
) -> None:
    """Decides if the answers do. What fails to judge them fails for the caller, who would wait for ever."""
    if decided.done():
        return
    try:
        verdict = decide(replies, final)
    except Exception as error:
        decided.set_exception(error)
        return
    if verdict is not None or final:
        decided.set_result(verdict)

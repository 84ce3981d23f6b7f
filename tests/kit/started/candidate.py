"""A candidate of a leadership, as a process: `python candidate.py SERVERS NAME PROTOCOL SHAPE [ARGUMENT]`.

Each line on standard output is one event: `leads TOKEN`, `ended`, `returned`, or what the sink answered.
"""

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Literal

import muster
from kit.waiting import stand_still, until
from muster.sinks import SqlFence, StaleToken

SERVERS, NAME, PROTOCOL, SHAPE, *ARGUMENTS = sys.argv[1:]
KIND: Literal["classic", "incremental"] = "incremental" if PROTOCOL == "incremental" else "classic"


def say(*words: str) -> None:
    os.write(1, " ".join(words).encode() + b"\n")


async def waits(term: muster.Term) -> None:
    say("leads", term.token)
    try:
        await asyncio.Event().wait()
    finally:
        say("ended")


def blocking(term: muster.BlockingTerm) -> None:
    say("leads", term.token)
    term.wait_ending()
    say("ended")


async def returns(term: muster.Term) -> None:
    say("leads", term.token)
    await until(Path(ARGUMENTS[0]).exists)
    say("ended")


async def raises(term: muster.Term) -> None:
    await returns(term)
    raise ValueError("no report today")


async def writes(term: muster.Term) -> None:
    """Stops itself between the decision to write and the write, then writes with the old token."""
    say("leads", term.token)
    database, told = ARGUMENTS
    fence = SqlFence("sqlite")
    while True:
        await asyncio.sleep(0.02)
        if os.access(told, os.F_OK):
            os.unlink(told)
            say("stops")
            os.kill(os.getpid(), signal.SIGSTOP)
            say("leader" if term.is_leader else "no leader", "by its clock")
        connection = sqlite3.connect(database, timeout=30)
        try:
            with connection:
                fence.check(connection, term)
                connection.execute("UPDATE reports SET writer = ?", (term.token,))
        except StaleToken:
            say("refused")
            raise
        finally:
            connection.close()


async def block() -> None:
    """A block under the leadership that hangs the event loop for longer than its life."""
    try:
        async with muster.lead(
            NAME,
            servers=SERVERS,
            disconnect_grace_ms=600,
            beat_interval_ms=100,
            loop_block_limit_ms=0,
            protocol=KIND,
        ) as term:
            say("leads", term.token)
            stand_still(2)
            say("leader" if term.is_leader else "no leader", "by its clock")
            await asyncio.Event().wait()
    except muster.LeadershipLost:
        say("lost")


if __name__ == "__main__":
    if SHAPE == "block":
        asyncio.run(block())
    else:
        muster.lead(
            globals()[SHAPE],
            name=NAME,
            servers=SERVERS,
            session_timeout_ms=3_000,
            heartbeat_interval_ms=500,
            protocol=KIND,
        )
    say("returned")

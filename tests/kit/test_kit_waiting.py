"""What a test says when it waited in vain, and that it does not wait for ever for a process."""

import asyncio
import sys
from asyncio.subprocess import PIPE

import pytest
from kit.waiting import ended, killed, until, until_equal, what_tasks_wait_for


async def test_the_value_that_came_true_is_given() -> None:
    values = iter([0, 0, 7])
    assert await until(lambda: next(values)) == 7


async def test_a_time_out_names_what_was_waited_for_and_what_there_was() -> None:
    async def owners() -> list[str]:
        return []

    with pytest.raises(AssertionError, match=r"^not within 0 s: somebody owns it; at last \[\]$"):
        await until(owners, "somebody owns it", 0)
    with pytest.raises(AssertionError, match=r"^not within 0 s: the owner: 'b'; at last 'a'$"):
        await until_equal(lambda: "a", "b", "the owner", 0)
    with pytest.raises(AssertionError, match=r"^not within 0 s: the condition$"):
        await until(lambda: False, patience_s=0)


@pytest.mark.parametrize("after", ["", "; sys.stdin.read()"], ids=["ended", "killed"])
async def test_a_process_ends_whose_output_nobody_took(after: str) -> None:
    program = f"import sys; sys.stderr.write('x' * 160_000); print('written', flush=True){after}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"written\n"
    if after:
        await killed(process)
    assert await ended(process) == (-9 if after else 0)


async def test_tasks_are_shown_with_all_that_they_wait_for() -> None:
    async def innermost() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        await innermost()

    task = asyncio.create_task(outer(), name="the one that waits")
    await asyncio.sleep(0)
    shown = what_tasks_wait_for().partition("the one that waits")[2]
    assert shown.index("in outer") < shown.index("in innermost") < shown.index("in wait")
    task.cancel()

"""What a test says when it waited in vain."""

import pytest
from kit.waiting import until, until_equal


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

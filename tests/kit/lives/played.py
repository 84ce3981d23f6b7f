"""How a life is played: one step after the other, each looked at."""

from typing import Protocol, TypeVar


class Differs(AssertionError):
    """What is served is not what the log says; or the log breaks a promise."""


class Life(Protocol):
    """Something that goes on by steps and knows what must hold after each."""

    def step(self) -> None:
        """Something happens."""

    def check(self) -> None:
        """Looks at what holds at any time.

        Raises:
            Differs: it does not hold.
        """

    def finish(self) -> None:
        """Comes to rest, and looks at what holds then.

        Raises:
            Differs: it does not, or does not hold.
        """


L = TypeVar("L", bound=Life)


def played(life: L, length: int) -> L:
    """Plays a life of this many steps to its end, and returns it.

    Raises:
        Differs: see there.
        Exception: whatever it plays with raises.
    """
    for _ in range(length):
        life.step()
        life.check()
    life.finish()
    return life

"""What makes the rows of one table out of the records of one log."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from muster_audit.lake.row import Place, Row

R = TypeVar("R", bound=Row)

Take = Callable[[Place, Any], Iterator[R]]
"""Takes a message of a record; yields the rows that became final by it."""


class Tracker(ABC, Generic[R]):
    """Follows the records of a log.

    Its state is the rows that are not final: they are stored with the others, and `resume` takes them back.

    Attributes:
        row: the table.
        takes: kind of record → what it does to the table.
    """

    row: type[R]

    @property
    @abstractmethod
    def takes(self) -> Mapping[str, Take[R]]:
        """What it does with which kind of record."""

    @abstractmethod
    def resume(self, row: R) -> None:
        """Takes back a row that was not final when the run before ended."""

    @abstractmethod
    def running(self) -> Iterator[R]:
        """The rows that are not final."""

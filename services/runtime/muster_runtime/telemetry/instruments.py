"""What counts: plain numbers, for counting must cost a fraction of a microsecond and never fail.

Instruments are used on the event loop and read there. Gauges have none: they are computed when they are read.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from muster_runtime.telemetry.metric import Metric

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram has seen.

    Attributes:
        counts: per range, the last one above all bounds.
        total: sum of the values.
    """

    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Sample:
    """A number of a metric, as it was read.

    Attributes:
        metric: of what.
        value: a number, or what a histogram has seen.
        labels: values of its labels, in order.
    """

    metric: Metric
    value: float | Distribution
    labels: Labels = ()


class _Cells(dict[Labels, list[float]]):
    """Counts by labels; what the metric does not allow goes to the cell of `other`."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: Labels) -> list[float]:
        allowed = self._metric.allowed(labels)
        return self.setdefault(allowed, [0])


class Counter:
    """Counts.

    Args:
        metric: what.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._cells = _Cells(metric)
        if not metric.labels:
            self._cells[()] = [0]

    def add(self, labels: Labels = (), amount: float = 1) -> None:
        """Counts on.

        Args:
            labels: values of the metric's labels, in order.
            amount: by how much; not negative.
        """
        self._cells[labels][0] += amount

    def samples(self) -> Iterator[Sample]:
        """What was counted so far."""
        for labels, cell in self._cells.items():
            yield Sample(self.metric, cell[0], labels)


class _Row:
    """What a histogram has seen under one combination of labels."""

    __slots__ = ("counts", "total")

    def __init__(self, ranges: int) -> None:
        self.counts = [0] * ranges
        self.total = 0.0


class _Rows(dict[Labels, _Row]):
    """Rows by labels; what the metric does not allow goes to the row of `other`."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: Labels) -> _Row:
        allowed = self._metric.allowed(labels)
        return self.setdefault(allowed, _Row(len(self._metric.bounds) + 1))


class Histogram:
    """Sorts values into ranges.

    Args:
        metric: what.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._bounds = metric.bounds
        self._rows = _Rows(metric)
        if not metric.labels:
            self._rows[()] = _Row(len(metric.bounds) + 1)

    def observe(self, value: float, labels: Labels = ()) -> None:
        """Takes a value.

        Args:
            value: in the metric's unit; below 0, as after a step of the wall clock, it counts as 0.
            labels: values of the metric's labels, in order.
        """
        row = self._rows[labels]
        value = max(value, 0.0)
        row.counts[bisect_left(self._bounds, value)] += 1
        row.total += value

    def samples(self) -> Iterator[Sample]:
        """What was seen so far."""
        for labels, row in self._rows.items():
            yield Sample(self.metric, Distribution(tuple(row.counts), row.total), labels)

"""What a metric is: its name, its labels with all their values, and what people read about it."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Labels = tuple[str, ...]

OTHER = "other"
"""The value of a label that is none of those the metric has."""

SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for what takes from under a millisecond to seconds."""

LONG_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Bounds for what takes from milliseconds to minutes."""


class Kind(enum.Enum):
    """How a metric's numbers behave."""

    COUNTER = "counter"
    """Grows, and begins at 0 when the process starts."""
    GAUGE = "gauge"
    """What is now."""
    HISTOGRAM = "histogram"
    """How often a value came into each of some ranges."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric.

    The number of its series is bounded by construction: each label has a list of values, and whatever is not
    on it is counted as `other`. Ids of members are never values: whoever joins could make any number of
    series. Those of groups are, of as many as the settings say, where a source chooses them (`Sample`).

    Attributes:
        base: its name without unit and `_total`.
        kind: how its numbers behave.
        text: what it says, in one sentence.
        unit: `seconds`, `bytes` or nothing.
        labels: every label with every value that it may have; none: the source bounds them.
        bounds: upper bounds of a histogram's ranges, growing.
        advice: what to do when it is not as it should be; empty: it explains other metrics.
    """

    base: str
    kind: Kind
    text: str
    unit: str = ""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bounds: tuple[float, ...] = ()
    advice: str = ""

    @property
    def name(self) -> str:
        """Its name as Prometheus has it; a histogram's has `_bucket`, `_sum` and `_count` after it."""
        unit = f"_{self.unit}" if self.unit else ""
        return f"{self.base}{unit}{'_total' if self.kind is Kind.COUNTER else ''}"

    def allowed(self, labels: Labels) -> Labels:
        """The values of its labels, in order, with `other` for those that it does not have."""
        return tuple(
            value if value in values else OTHER
            for value, values in zip(labels, self.labels.values(), strict=True)
        )

    def samples(self, counts: Iterable[tuple[Labels, float]]) -> list["Sample"]:
        """What was counted in plain numbers: the sum for each combination of labels that it allows."""
        sums: dict[Labels, float] = {}
        for labels, count in counts:
            allowed = self.allowed(labels)
            sums[allowed] = sums.get(allowed, 0) + count
        return [Sample(self, value, labels) for labels, value in sums.items()]


@dataclass(frozen=True, slots=True)
class Sample:
    """A number of a metric, as it was read.

    Attributes:
        metric: a counter or a gauge.
        value: the number.
        labels: values of its labels, in order.
    """

    metric: Metric
    value: float
    labels: Labels = ()

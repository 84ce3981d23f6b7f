"""The table: each figure beside its bar and beside Kafka's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rebalancing.peer import MODES


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        name: what is measured.
        figure: what it is, in `unit`.
        bar: what it may be at most; None: it has none.
        unit: of both.
        peers: Kafka's figures, by mode.
        note: what else there is to say.
    """

    name: str
    figure: float
    bar: float | None
    unit: str = "ms"
    peers: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the figure is at most its bar; None: it has none."""
        return None if self.bar is None else self.figure <= self.bar

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "figure": self.name,
            "value": self.figure,
            "bar": self.bar,
            "unit": self.unit,
            "met": self.is_met,
            "kafka": dict(self.peers),
            "of_kafka": {mode: self.figure / value for mode, value in self.peers.items() if value},
            "note": self.note,
        }


_VERDICTS = {True: "met", False: "MISSED", None: "-"}


def show(rows: Sequence[Row]) -> None:
    """Prints the table, as Markdown."""
    modes = [mode for mode in MODES.values() if any(mode in row.peers for row in rows)]
    print("| figure | bar | measured | | " + "".join(f"Kafka {mode} | " for mode in modes) + "note |")
    print("|---|---|---|---|" + "---|" * len(modes) + "---|")
    for row in rows:
        bar = "-" if row.bar is None else f"≤ {row.bar:,.4g}"
        cells = [row.name, bar, f"{row.figure:,.4g} {row.unit}", _VERDICTS[row.is_met]]
        for mode in modes:
            peer = row.peers.get(mode)
            if peer is None:
                cells.append("-")
            else:
                ratio = f" (× {row.figure / peer:.3g})" if peer else ""
                cells.append(f"{peer:,.4g}{ratio}")
        print("| " + " | ".join([*cells, row.note]) + " |", flush=True)

"""Reads a process's metrics as Prometheus does."""

import asyncio
import urllib.request

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """What a process served at one time.

    Args:
        text: what it served.
    """

    def __init__(self, text: str) -> None:
        self.families: dict[str, Metric] = {
            family.name: family for family in text_string_to_metric_families(text)
        }
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """Sum of all samples of that name with those labels; 0 if there is none."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    @property
    def names(self) -> set[str]:
        """Every name that a query may use, also of metrics without a number yet."""
        names = {sample.name for sample in self.samples}
        for family in self.families.values():
            if family.type == "counter":
                names.add(f"{family.name}_total")
            elif family.type == "histogram":
                names |= {f"{family.name}_{end}" for end in ("bucket", "sum", "count")}
            else:
                names.add(family.name)
        return names


async def scrape(port: int, host: str = "127.0.0.1") -> Scrape:
    """Reads `/metrics`."""

    def get() -> str:
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
            return text

    return Scrape(await asyncio.to_thread(get))

"""Work that the core does some at a time, cut small: then lives of a few members see what comes between.

The core lets others have their turn after thousands of partitions, or hundreds of members. Groups of lives
have a handful, so they hardly ever come to a second step. `small_cuts` makes the steps as short as the code
lets them be, or a little longer. A new constant of that kind goes into `CUTS`; `tests/kit/test_kit_cuts.py`
holds that each of them is there, is cut wherever it is read, and changes what lives do. Half of the inputs of
`./x fuzz` are cut (`tests/fuzz/cuts.py`), and so are half of the tests that play lives.
"""

import importlib
import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest.mock import patch

CORE = "muster_core"

_LENGTHS = 3
"""From so many lengths a step's is drawn: the shortest one, and the next."""


class Cut(NamedTuple):
    """A constant that says how much is done at a time.

    Attributes:
        name: of the constant.
        modules: where it is read, inside of the core: first the one that sets it, then who has it from there.
        shortest: the lowest value that the code can have.
    """

    name: str
    modules: tuple[str, ...]
    shortest: int = 1

    def __str__(self) -> str:
        """Where it is set, for people."""
        return f"{self.modules[0]}.{self.name}"


_PLAN = "state.plan"
_CLAIMS = "state.members.claims"
_SYNCS = "protocol.membership.syncs"
_OFFSETS = "protocol.offsets.offsets"
_TOPICS = "protocol.topics"

CUTS = (
    Cut("AT_ONCE", (_PLAN, _CLAIMS)),
    Cut("BYTES_AS_TOPIC", (_PLAN, _CLAIMS)),
    Cut("LARGE_COMMITS_FIRST", ("state.line",)),
    Cut("LOOKED_AT", (_OFFSETS,)),
    Cut("PARTITIONS_AS_TOPIC", (_PLAN, _CLAIMS, _SYNCS)),
    Cut("PART_BYTES", ("protocol.offsets.commit_records",)),
    Cut("PORTION", ("protocol.offsets.commit_outcomes",)),
    Cut("PORTION", (_OFFSETS,)),
    Cut("RUN", ("state.offsets.runs", "state.offsets.offset_order")),
    Cut("SMALL", ("state.offsets.offset_store",), 0),
    Cut(
        "STEP_BYTES",
        (f"{_TOPICS}.tombstones", f"{_TOPICS}.removed_partitions", f"{_TOPICS}.topic_deletions", _OFFSETS),
    ),
    Cut("STEP_MEMBERS", ("protocol.generations.rebalance", _SYNCS)),
    Cut("TOMBSTONES_MADE", (_OFFSETS,)),
    Cut("TURN_TOPICS", (_PLAN, _CLAIMS, _SYNCS)),
    Cut("_AS_A_GROUP", (f"{_TOPICS}.removed_partitions",)),
    Cut("_ENTRIES_PER_ITEM", ("log.snapshot",)),
    Cut("_FEW", ("log.encoding",), 0),
    Cut("_FEW_PARTITIONS_BYTES", ("state.published",), 0),
    Cut("_LARGE_BYTES", ("log.encoding",)),
    Cut("_MANY_MEMBERS", ("protocol.generations.rebalance",)),
    Cut("_METADATA_PER_ITEM_BYTES", ("log.snapshot",)),
    Cut("_NAMES_AS_ONE", ("protocol.incremental.targets",)),
    Cut("_READ_TOPICS", (_PLAN,)),
    Cut("_SHORT_BYTES", ("state.published",), 0),
    Cut("_SUMS_MAX", ("protocol.membership.plan_bounds",)),
    Cut("_STEP_GROUPS", (f"{_TOPICS}.removed_partitions",)),
    Cut("_TOGETHER", ("protocol.incremental.deadlines",)),
    Cut("_TOGETHER", ("protocol.incremental.heartbeats",)),
    Cut("_TOMBSTONE_BYTES", (f"{_TOPICS}.tombstones",)),
)


@contextmanager
def small_cuts(seed: int | None, cuts: Iterable[Cut] = CUTS) -> Iterator[None]:
    """Has the core do little at a time.

    Args:
        seed: of how little; None: it does as much as ever.
        cuts: of what.
    """
    with ExitStack() as patched:
        for cut in cuts if seed is not None else ():
            value = cut.shortest + random.Random(f"{seed} {cut}").randrange(_LENGTHS)
            for name in cut.modules:
                module = importlib.import_module(f"{CORE}.{name}")
                patched.enter_context(patch.object(module, cut.name, value))
        yield

"""The analyses of a lake computed again, in plain Python, from the tables of `plain_tables`."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from kit.logs.plain_tables import Table
from muster_audit.lake.insights import Period
from muster_audit.lake.row import day_of

_SILENT = ("session expired", "disconnected", "rebalance timeout", "not rejoined")


def results(tables: dict[str, Table], period: Period) -> dict[str, Table]:
    """Every view that is a result, but for the summary."""
    within = _within(period)
    found = {
        "ownership": list(ownership(tables, period)),
        "rebalances": list(rebalances(within(tables["generations"], "from_ms"))),
        "flapping": list(flapping(within(tables["members"], "from_ms"))),
        "takeovers": list(takeovers(within(tables["coordinators"], "from_ms"))),
    }
    commits = [row for row in within(tables["commits"], "written_at_ms") if row["removed"] is None]
    found["commit_rates"] = list(commit_rates(commits))
    found["stalls"] = list(stalls(commits, tables["assignments"], period))
    return found


def summary(found: dict[str, Table]) -> dict[str, Any]:
    """The results in one row."""
    owned = sum(row["owned_ms"] for row in found["ownership"])
    unowned = sum(row["unowned_ms"] for row in found["ownership"])
    crashes = [row for row in found["takeovers"] if not row["planned"]]
    return {
        "availability": owned / (owned + unowned) if owned + unowned else None,
        "unowned_ms": unowned,
        "rebalances": sum(row["rebalances"] for row in found["rebalances"]),
        "moves": sum(row["moves"] for row in found["rebalances"]),
        "minimum_moves": sum(row["minimum_moves"] for row in found["rebalances"]),
        "flapping": sum(row["unexpected"] > 0 for row in found["flapping"]),
        "commits": sum(row["commits"] for row in found["commit_rates"]),
        "stalls": len(found["stalls"]),
        "crashes": sum(row["takeovers"] for row in crashes),
        "slowest_takeover_ms": max((row["longest_ms"] for row in crashes), default=0),
    }


def tables_of_the_page(found: dict[str, Table]) -> dict[str, Table]:
    """All rows of each table of the page, the worst first."""
    moves = [
        {"group_id": group_id}
        | {name: sum(row[name] for row in rows) for name in ("rebalances", "moves", "minimum_moves")}
        | {"longest_ms": max(row["longest_ms"] or 0 for row in rows)}
        for (group_id,), rows in _grouped(found["rebalances"], "group_id")
    ]
    identity = ("group_id", "group_instance_id", "client_id", "host")
    return {
        "ownership": _worst_first(found["ownership"], "unowned_ms", "group_id"),
        "moves": _worst_first(moves, "rebalances", "group_id"),
        "flapping": _worst_first(found["flapping"], "lives", *identity),
        "stalls": _worst_first(found["stalls"], "stalled_ms", "group_id", "topic", "partition", "from_ms"),
    }


def _worst_first(rows: Table, name: str, *then: str) -> Table:
    return sorted(rows, key=lambda row: (-row[name], *(row[one] for one in then)))


def rebalances_by_day(found: dict[str, Table]) -> Table:
    """By day and cause, of all groups."""
    return [
        {"started_day": day, "cause": cause}
        | {name: sum(row[name] for row in rows) for name in ("rebalances", "moves", "minimum_moves")}
        for (day, cause), rows in _grouped(found["rebalances"], "started_day", "cause")
    ]


def commits_by_day(found: dict[str, Table], named: int) -> Table:
    """By day and group; of group None: by all but so many groups, which have the most of the period."""
    groups = {
        key[0]: sum(row["commits"] for row in rows)
        for key, rows in _grouped(found["commit_rates"], "group_id")
    }
    largest = sorted(groups, key=lambda group_id: (-groups[group_id], group_id))[:named]
    rows = [
        row | {"group_id": row["group_id"] if row["group_id"] in largest else None}
        for row in found["commit_rates"]
    ]
    return [
        {"written_day": day, "group_id": group_id, "commits": sum(row["commits"] for row in some)}
        for (day, group_id), some in _grouped(rows, "written_day", "group_id")
    ]


def _within(period: Period) -> Callable[[Table, str], Table]:
    return lambda rows, name: [row for row in rows if period.from_ms <= row[name] < period.to_ms]


def _grouped(rows: Iterable[dict[str, Any]], *names: str) -> Iterator[tuple[tuple[Any, ...], Table]]:
    found: defaultdict[tuple[Any, ...], Table] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    yield from found.items()


def percentile(values: Sequence[float], share: float) -> float | None:
    """A percentile, interpolated between the two values around it."""
    if not values:
        return None
    ordered, place = sorted(values), share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _overlap(begin: int, end: int, other_begin: int, other_end: int) -> int:
    return max(min(end, other_end) - max(begin, other_begin), 0)


def gaps(tables: dict[str, Table]) -> Iterator[tuple[str, int, int | None, list[tuple[int, int]]]]:
    """Each time in which nobody had a partition: group, begin, end (None: none yet), when it was empty."""
    generations = tables["generations"]
    for row in tables["assignments"]:
        mine = [one for one in generations if one["group_id"] == row["group_id"]]
        empty = [(one["from_ms"], one["to_ms"] or 2**63) for one in mine if one["members"] == 0]
        if row["to_ms"] is not None:
            yield row["group_id"], row["to_ms"], row["settled_ms"], empty


def ownership(tables: dict[str, Table], period: Period) -> Iterator[dict[str, Any]]:
    """With an owner and without, by group."""
    owned: defaultdict[str, int] = defaultdict(int)
    lengths: defaultdict[str, list[int]] = defaultdict(list)
    for row in tables["assignments"]:
        end = period.to_ms if row["to_ms"] is None else row["to_ms"]
        owned[row["group_id"]] += _overlap(row["from_ms"], end, period.from_ms, period.to_ms)
    for group_id, begin, end, empty in gaps(tables):
        begin, end = max(begin, period.from_ms), min(period.to_ms if end is None else end, period.to_ms)
        if end > begin:
            lengths[group_id].append(end - begin - sum(_overlap(begin, end, *one) for one in empty))
    for group_id in owned.keys() | lengths.keys():
        unowned = sum(lengths[group_id])
        if owned[group_id] + unowned:
            yield {
                "group_id": group_id,
                "owned_ms": owned[group_id],
                "unowned_ms": unowned,
                "longest_ms": max(lengths[group_id], default=0),
                "gaps": sum(length > 0 for length in lengths[group_id]),
                "availability": owned[group_id] / (owned[group_id] + unowned),
            }


def rebalances(generations: Table) -> Iterator[dict[str, Any]]:
    """By group, cause and day."""
    rows = [row | {"started_day": day_of(row["from_ms"])} for row in generations]
    for (group_id, cause, day), some in _grouped(rows, "group_id", "cause", "started_day"):
        taken = [
            row["assigned_at_ms"] - row["cause_at_ms"]
            for row in some
            if row["assigned_at_ms"] is not None and row["cause_at_ms"]
        ]
        yield {
            "group_id": group_id,
            "cause": cause,
            "started_day": day,
            "rebalances": len(some),
            "moves": sum(row["moves"] or 0 for row in some),
            "minimum_moves": sum(
                row["moves"] or 0 if row["minimum_moves"] is None else row["minimum_moves"] for row in some
            ),
            "median_ms": percentile(taken, 0.5),
            "longest_ms": max(taken, default=None),
        }


def flapping(members: Table) -> Iterator[dict[str, Any]]:
    """Those that came more than once."""
    rows = [row | ({"client_id": "", "host": ""} if row["group_instance_id"] else {}) for row in members]
    names = ("group_id", "group_instance_id", "client_id", "host")
    for key, some in _grouped(rows, *names):
        if len(some) > 1:
            lives = [row["to_ms"] - row["from_ms"] for row in some if row["to_ms"] is not None]
            yield dict(zip(names, key, strict=True)) | {
                "lives": len(some),
                "unexpected": sum(row["ended_by"] in _SILENT for row in some),
                "median_life_ms": percentile(lives, 0.5),
            }


def takeovers(coordinators: Table) -> Iterator[dict[str, Any]]:
    """By day, planned and not."""
    rows = [
        row | {"claimed_day": day_of(row["from_ms"])} for row in coordinators if row["unowned_ms"] is not None
    ]
    for (day, planned), some in _grouped(rows, "claimed_day", "planned"):
        times = [row["unowned_ms"] for row in some]
        yield {
            "claimed_day": day,
            "planned": planned,
            "takeovers": len(some),
            "median_ms": percentile(times, 0.5),
            "longest_ms": max(times),
        }


def commit_rates(commits: Table) -> Iterator[dict[str, Any]]:
    """By group and day."""
    steps: Table = []
    for _, rows in _grouped(commits, "group_id", "topic", "partition"):
        rows.sort(key=lambda row: row["offset"])
        for before, row in pairwise([None, *rows]):
            assert row is not None
            age = None if before is None else row["written_at_ms"] - before["written_at_ms"]
            advance = 0 if before is None else row["committed_offset"] - before["committed_offset"]
            day = day_of(row["written_at_ms"])
            steps.append(row | {"age_ms": age, "advance": advance, "written_day": day})
    for (group_id, day), rows in _grouped(steps, "group_id", "written_day"):
        ages = [row["age_ms"] for row in rows if row["age_ms"] is not None]
        yield {
            "group_id": group_id,
            "written_day": day,
            "commits": len(rows),
            "partitions": len({(row["topic"], row["partition"]) for row in rows}),
            "advance": sum(max(row["advance"], 0) for row in rows),
            "median_age_ms": percentile(ages, 0.5),
            "p99_age_ms": percentile(ages, 0.99),
            "longest_age_ms": max(ages, default=None),
        }


def stalls(commits: Table, assignments: Table, period: Period) -> Iterator[dict[str, Any]]:
    """Times in which a committed offset did not grow."""
    owned = {
        (row["group_id"], row["topic"], row["partition"])
        for row in assignments
        if row["from_ms"] < period.to_ms and (row["to_ms"] is None or row["to_ms"] >= period.to_ms)
    }
    for key, rows in _grouped(commits, "group_id", "topic", "partition"):
        rows.sort(key=lambda row: row["offset"])
        grown = [rows[0]["written_at_ms"]]
        for before, row in pairwise(rows):
            if row["committed_offset"] > before["committed_offset"]:
                grown.append(row["written_at_ms"])
        for begin, end in zip(grown, [*grown[1:], None], strict=True):
            stalled = (period.to_ms if end is None else end) - begin
            if stalled > period.stall_ms and (end is not None or key in owned):
                yield dict(zip(("group_id", "topic", "partition"), key, strict=True)) | {
                    "from_ms": begin,
                    "to_ms": begin + stalled,
                    "stalled_ms": stalled,
                    "lasts": end is None,
                }

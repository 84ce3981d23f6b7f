"""Runs scenarios one after the other on one cluster, and tells what came of them."""

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.arena import Arena, Broken, NotHit, Size
from chaos.checkers import Violation
from chaos.scenario import CLUSTER_SETTINGS, TRIMMING, Scenario

SCENARIO_SECONDS = 240.0
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a scenario.

    Attributes:
        number: its number.
        what: the fault.
        problems: why it failed; none: it held.
        recovery_ms: the longest that a commit took.
        rebalances: generations that began in the load's groups.
        evidence: what shows that the state was hit.
        seconds: how long the scenario took.
    """

    number: str
    what: str
    problems: tuple[str, ...]
    recovery_ms: float
    rebalances: int
    evidence: str
    seconds: float

    def row(self) -> str:
        """A line of the table."""
        verdict = "FAILED" if self.problems else "held"
        return (
            f"{self.number:>3}  {self.what[:66]:<66} {verdict:<7}{self.recovery_ms / 1000:6.2f} s "
            f"{self.rebalances:>4}   {self.evidence}"
        )


@dataclass(slots=True)
class Result:
    """What came of all of them.

    Attributes:
        verdicts: in order.
        final: what the checks at the end found.
        acknowledged: commits that were acknowledged.
        entries: of the log.
        seconds: how long all took.
    """

    verdicts: list[Verdict]
    final: list[Violation]
    acknowledged: int = 0
    entries: int = 0
    seconds: float = 0

    @property
    def good(self) -> bool:
        """Whether every promise held."""
        return not self.final and not any(verdict.problems for verdict in self.verdicts)

    def totals(self) -> str:
        """One line."""
        held = sum(not verdict.problems for verdict in self.verdicts)
        return (
            f"{held} of {len(self.verdicts)} scenarios held; {self.acknowledged} acknowledged commits and "
            f"{self.entries} log entries checked, {len(self.final)} violations at the end; "
            f"{self.seconds:.0f} s"
        )


async def run(
    scenarios: Sequence[Scenario],
    folder: Path,
    size: Size,
    say: Callable[[str], None],
    *,
    patience: int = 1,
    audited: bool = True,
) -> Result:
    """Runs them on one cluster of their kind; the checks over everything come at its end.

    Args:
        scenarios: in order.
        folder: everything that is written.
        size: of the load.
        say: prints progress.
        patience: how many times as long as its scenario allows a commit may take: more where others use the
            machine, too.
        audited: the audit with Spark judges each log as well (see `Arena`).
    """
    began = time.monotonic()
    result = Result([], [])
    kind = scenarios[0].cluster
    settings = CLUSTER_SETTINGS[kind]
    arena = Arena(folder, size, say, settings=settings, trimmed=kind == TRIMMING, audited=audited)
    async with arena:
        say(f"  {len(arena.load.slots)} members of {len(arena.load.groups)} groups commit; {folder}")
        for scenario in scenarios:
            verdict = await _try(arena, scenario, patience)
            result.verdicts.append(verdict)
            say(verdict.row())
            if verdict.problems:
                _tell(arena, verdict, say)
            try:
                await arena.heal()
            except Exception as error:
                text = f"it did not recover after {scenario.number}, the checks were left out: {error}"
                result.final.append(Violation("V4", time.monotonic_ns(), text))
                break
        else:
            result.final += await arena.final_checks()
            result.acknowledged, result.entries = arena.acknowledged, arena.entries
        for violation in result.final[:_SHOWN]:
            say(f"  {violation.promise}: {violation.detail}")
    result.seconds = time.monotonic() - began
    return result


async def _try(arena: Arena, scenario: Scenario, patience: int) -> Verdict:
    began = time.monotonic()
    problems: list[str] = []
    evidence = ""
    for attempt in range(1, scenario.tries + 1):
        arena.begin()
        try:
            async with asyncio.timeout(SCENARIO_SECONDS):
                evidence = await scenario.run(arena)
        except NotHit as error:
            arena.say(f"     {scenario.number}: not hit in attempt {attempt}: {error}")
            if attempt < scenario.tries:
                await arena.heal()
                continue
            problems.append(f"the state was not hit in {attempt} attempts; the last: {error}")
        except Broken as error:
            problems.append(str(error))
        except Exception:
            problems.append(traceback.format_exc(limit=-3))
        break
    seen = arena.seen()
    within_ms = patience * scenario.within_ms
    if seen.recovery_ms > within_ms:
        problems.append(f"a commit took {seen.recovery_ms:.0f} ms, at most {within_ms} are allowed")
    if seen.rebalances > scenario.rebalances:
        problems.append(f"{seen.rebalances} rebalances of groups that had no reason")
    problems += [f"{violation.promise}: {violation.detail}" for violation in arena.violations]
    return Verdict(
        scenario.number,
        scenario.what,
        tuple(problems),
        seen.recovery_ms,
        seen.rebalances,
        evidence,
        time.monotonic() - began,
    )


def _tell(arena: Arena, verdict: Verdict, say: Callable[[str], None]) -> None:
    for problem in verdict.problems[:_SHOWN]:
        say(f"     ! {problem}")
    first = min((at for at, _ in arena.timeline), default=0)
    for at, text in sorted(arena.timeline):
        say(f"     {(at - first) / 1e9:8.3f} s  {text}")

"""What the user decided about work that fails, hangs or returns."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, cast, get_args

from muster_protos.limits import ID_MAX_BYTES

from muster._config import MemberSettings, check_at_most, check_between, check_keywords, check_unless_zero
from muster._errors import SettingsError
from muster._work.partition import BlockingPartition, Partition

AsyncWork: TypeAlias = Callable[[Partition], Awaitable[object]]
BlockingWork: TypeAlias = Callable[[BlockingPartition], object]
Work: TypeAlias = AsyncWork | BlockingWork
"""An `async def` runs as a task that is cancelled, a plain `def` in a thread that is asked to stop."""

ErrorDecision: TypeAlias = Literal["retry", "park", "exit"]
ReturnDecision: TypeAlias = Literal["restart", "done", "park"]
OnError: TypeAlias = (
    ErrorDecision | Callable[[Partition, BaseException, int], ErrorDecision | Awaitable[ErrorDecision]]
)

DRAIN_TIMEOUT_MS = 25_000
LOOP_BLOCK_WARN_MS = 1_000
LONGEST_MS = 7 * 86_400_000
MOST_ATTEMPTS = 1_000_000


class WorkSettings(MemberSettings, total=False):
    """Settings of `run` as keyword arguments; see `WorkPolicy` and `MemberConfig` for what they mean."""

    on_error: OnError
    retry_attempts: int
    retry_for_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    on_return: ReturnDecision
    max_idle_ms: int
    drain_timeout_ms: int
    loop_block_warn_ms: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPolicy:
    """What happens to a partition whose work fails, hangs or returns. All times in ms.

    Failures count in a row. A row ends when the work commits another position, or has run for
    `retry_for_ms` without a failure. That the cluster could not be reached counts as no failure.

    Attributes:
        on_error: what is done when the work raises. `"retry"`: it is called again after a pause, until one of
            the two limits is reached; then the partition is parked. `"park"`: it is parked at once.
            `"exit"`: everything stops and `run` raises `WorkFailed`. Or a function that decides: it gets the
            partition, the error and how many failures in a row this is, and may be async.
        retry_attempts: how many failures in a row park a partition.
        retry_for_ms: how long after the first failure of a row the work is still called again.
        retry_backoff_ms: pause after the first failure; each further one doubles it. ±20 %.
        retry_backoff_max_ms: the longest pause.
        on_return: what is done when the work returns. `"done"`: the partition stays owned and idle.
            `"restart"`: the work is called again, at once if it has committed another position, else after
            the pauses of failures. `"park"`: the partition is parked.
        max_idle_ms: work that neither commits, nor reads its position, nor calls `alive` for so long is
            stopped, which counts as a failure. 0: never.
        drain_timeout_ms: how long work may take to end when the program stops, before it is left.
        loop_block_warn_ms: how long the event loop is blocked before a line says where. 0: none does.
        version: version of the work, such as the program's. A partition that was parked by another version is
            tried again.
    """

    on_error: OnError = "retry"
    retry_attempts: int = 10
    retry_for_ms: int = 900_000
    retry_backoff_ms: int = 1_000
    retry_backoff_max_ms: int = 60_000
    on_return: ReturnDecision = "done"
    max_idle_ms: int = 0
    drain_timeout_ms: int = DRAIN_TIMEOUT_MS
    loop_block_warn_ms: int = LOOP_BLOCK_WARN_MS
    version: str = ""

    def __post_init__(self) -> None:
        if not callable(self.on_error):
            _one_of("on_error", self.on_error, ErrorDecision, " or a function")
        _one_of("on_return", self.on_return, ReturnDecision)
        check_between("retry_attempts", self.retry_attempts, 1, MOST_ATTEMPTS)
        check_between("retry_for_ms", self.retry_for_ms, 1, LONGEST_MS)
        check_between("retry_backoff_ms", self.retry_backoff_ms, 1, LONGEST_MS)
        check_between("retry_backoff_max_ms", self.retry_backoff_max_ms, self.retry_backoff_ms, LONGEST_MS)
        check_unless_zero("max_idle_ms", self.max_idle_ms, 100, LONGEST_MS)
        check_between("drain_timeout_ms", self.drain_timeout_ms, 0, LONGEST_MS)
        check_unless_zero("loop_block_warn_ms", self.loop_block_warn_ms, 100, LONGEST_MS)
        check_at_most("version", self.version, ID_MAX_BYTES)

    @classmethod
    def split(cls, settings: WorkSettings) -> "tuple[WorkPolicy, MemberSettings]":
        """The policy, and the settings of the member that are left.

        Raises:
            SettingsError: one is outside its limits.
            TypeError: there is no such setting.
        """
        check_keywords("muster.run", settings, WorkSettings.__annotations__)
        rest: dict[str, Any] = dict(settings)
        own = {f.name: rest.pop(f.name) for f in fields(cls) if f.name in rest}
        return cls(**own), cast(MemberSettings, rest)

    async def decide(self, partition: Partition, error: BaseException, attempt: int) -> ErrorDecision:
        """What to do about a failure.

        Raises:
            SettingsError: the user's function returned something else.
        """
        if isinstance(self.on_error, str):
            return self.on_error
        decision = self.on_error(partition, error, attempt)
        if inspect.isawaitable(decision):
            decision = await decision
        _one_of("on_error", decision, ErrorDecision, what="the function must return")
        return decision


def check_work(work: object, gets: str = "partition") -> None:
    """Checks the user's function.

    Args:
        work: the function.
        gets: what it is called with, in a word.

    Raises:
        SettingsError: it cannot be called with that, or what it returns would not run.
    """
    if not callable(work):
        raise SettingsError("work", f"must be a function that gets a {gets}, not {work!r}")
    functions = (work, type(work).__call__)
    if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in functions):
        raise SettingsError(
            "work", f"{work!r} is a generator, whose body would never run; take `yield` out of it"
        )
    try:
        inspect.signature(work).bind(None)
    except TypeError:
        raise SettingsError("work", f"{work!r} must take one argument, the {gets}") from None
    except ValueError:
        return  # one that is written in C and says nothing of its arguments


def _one_of(name: str, value: object, kind: Any, more: str = "", what: str = "must be") -> None:
    names = get_args(kind)
    if not isinstance(value, str) or value not in names:
        listed = ", ".join(f'"{n}"' for n in names[:-1]) + f' or "{names[-1]}"'
        raise SettingsError(name, f"{what} {listed}{more}, not {value!r}")

"""Findings of the doctor."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class CheckResult(StrEnum):
    """How a check ended."""

    OK = "ok"
    """Nothing is wrong."""
    WARNING = "warning"
    """The cluster works, but a guarantee is weaker, or a change is under way."""
    FAILED = "failed"
    """Something is wrong."""
    SKIPPED = "skipped"
    """It could not be examined; the fix says how it could."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one thing.

    Attributes:
        check: name of the check.
        subject: what was examined.
        result: how it ended.
        detail: what was found, a sentence without a full stop.
        fix: what to do; empty if there is nothing to do.
    """

    check: str
    subject: str
    result: CheckResult
    detail: str
    fix: str = ""


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether no check failed."""
    return all(finding.result is not CheckResult.FAILED for finding in findings)

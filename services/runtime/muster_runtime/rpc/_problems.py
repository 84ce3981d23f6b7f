"""What is wrong with a file of rules, by rule and field, for people."""

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_MAX = 20


def problems_of(error: ValidationError, table: str) -> list[str]:
    """What is wrong with a file, a sentence each.

    Args:
        error: what the check of its content found.
        table: what each rule begins with, as `rule` of `[[rule]]`.
    """
    details = error.errors(include_url=False)
    problems = [_explain(detail, table) for detail in details[:_MAX]]
    if len(details) > _MAX:
        problems.append(f"and {len(details) - _MAX} more")
    return problems


def _explain(details: ErrorDetails, table: str) -> str:
    where = ""
    for part in details["loc"]:
        if where == table and isinstance(part, int):
            where = f"{table} {part + 1}"
        else:
            where += f"[{part}]" if isinstance(part, int) else f"{': ' if where else ''}{part}"
    raised: Any = details.get("ctx", {}).get("error")
    if details["type"] == "extra_forbidden":
        text = "there is no such field"
    elif where == table and details["type"] == "list_type":
        text = f"each begins with [[{table}]]"
    elif where == table and details["type"] in ("missing", "too_short"):
        text = f"there is none; each begins with [[{table}]]"
    elif details["type"] == "too_short":
        text = "it names nothing"
    else:
        text = details["msg"] if raised is None else str(raised)
    return f"{where or 'the file'}: {text[:1].lower()}{text[1:]}"

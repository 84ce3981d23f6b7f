"""The settings in force, for people and for programs."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from muster_runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting in force.

    Attributes:
        name: its environment variable.
        value: what holds now; secrets are masked.
        default: what holds when it is not set; empty if it must be set.
        description: what it does, with unit and range.
    """

    name: str
    value: str
    default: str
    description: str


def effective(groups: Iterable[Settings]) -> list[Setting]:
    """Every setting of some groups, by name."""
    rows = {}
    for group in groups:
        for field_name, field in type(group).model_fields.items():
            name = group.variable(field_name)
            required = field.is_required() or field.default is PydanticUndefined
            default = (
                ""
                if required and field.default_factory is None
                else _text(field.get_default(call_default_factory=True))
            )
            rows[name] = Setting(name, _text(getattr(group, field_name)), default, field.description or "")
    return [rows[name] for name in sorted(rows)]


def as_table(settings: Iterable[Setting]) -> str:
    """The settings as lines of aligned columns; a `*` marks what differs from its default."""
    rows = [("", "NAME", "VALUE", "DEFAULT", "DESCRIPTION")]
    rows += [
        ("*" if s.value != s.default else "", s.name, s.value, s.default, s.description) for s in settings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in rows
    )


def as_json(settings: Iterable[Setting]) -> str:
    """The settings as a JSON list of objects."""
    return json.dumps([asdict(setting) for setting in settings], indent=2, ensure_ascii=False)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, SecretStr):
        return "********" if value.get_secret_value() else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in value)
    return str(value)

"""The settings in force, for people and for programs."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pydantic_core import PydanticUndefined

from muster_runtime.setting_facts import as_text, facts
from muster_runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting in force.

    Attributes:
        name: its environment variable.
        value: what holds now; secrets are masked.
        default: what holds when it is not set; empty if it must be set.
        unit: of a number; empty: it is a count, or no number.
        range: lowest and highest value; empty: there are none.
        description: what it does.
    """

    name: str
    value: str
    default: str
    unit: str
    range: str
    description: str


def effective(groups: Iterable[Settings]) -> list[Setting]:
    """Every setting of some groups, by name."""
    by_name = {}
    for group in groups:
        known = facts(type(group))
        for fact, (field_name, field) in zip(known, type(group).model_fields.items(), strict=True):
            required = field.is_required() or field.default is PydanticUndefined
            default = (
                ""
                if required and field.default_factory is None
                else as_text(field.get_default(call_default_factory=True))
            )
            value = as_text(getattr(group, field_name))
            by_name[fact.name] = Setting(fact.name, value, default, fact.unit, fact.range, fact.description)
    return [by_name[name] for name in sorted(by_name)]


def as_table(settings: Iterable[Setting]) -> str:
    """The settings as lines of aligned columns; a `*` marks what differs from its default."""
    rows = [("", "NAME", "VALUE", "DEFAULT", "UNIT", "RANGE", "DESCRIPTION")]
    rows += [
        ("*" if s.value != s.default else "", s.name, s.value, s.default, s.unit, s.range, s.description)
        for s in settings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def as_json(settings: Iterable[Setting]) -> str:
    """The settings as a JSON list of objects."""
    return json.dumps([asdict(setting) for setting in settings], indent=2, ensure_ascii=False)

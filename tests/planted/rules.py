"""The rules of docs/safety.md, each with its id."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAFETY = ROOT / "docs" / "safety.md"

_SECTION = re.compile(r"## (.+)")
_RULE = re.compile(r"\* `([A-Z]{3}-\d{2,3})` (.+)")


@dataclass(frozen=True)
class Rule:
    """One promise."""

    id: str
    section: str
    text: str


class BadRules(Exception):
    """The page cannot be read as a list of rules."""


def read_rules(path: Path = SAFETY) -> dict[str, Rule]:
    """The rules of the page by id, in its order: list items that begin with an id.

    Raises:
        BadRules: an id is used twice.
    """
    rules: dict[str, Rule] = {}
    section, parts = "", list[str]()
    rule_id = ""

    def close() -> None:
        nonlocal rule_id
        if rule_id:
            if rule_id in rules:
                raise BadRules(f"{path.name}: {rule_id} is the id of two rules")
            rules[rule_id] = Rule(rule_id, section, " ".join(parts))
        rule_id = ""

    for line in path.read_text("utf-8").splitlines():
        if (found := _RULE.fullmatch(line)) is not None:
            close()
            rule_id, parts = found[1], [found[2]]
        elif rule_id and line.startswith("  "):
            parts.append(line.strip())
        else:
            close()
            if (heading := _SECTION.fullmatch(line)) is not None:
                section = heading[1]
    close()
    return rules

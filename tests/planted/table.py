"""docs/planted.md: each rule, the bugs that break it, and what caught them."""

import re
from collections.abc import Mapping

from planted.plants import LAYERS, Plant, Plants, is_of, layer_of
from planted.rules import ROOT, Rule

PAGE = ROOT / "docs" / "planted.md"

_HEAD = """# Planted bugs

Each rule of [safety.md](safety.md) has at least one bug that breaks it, and a test that sees it. This page
was written by `./x planted`, which really plants them, one after the other, in a copy of the repository.
[CONTRIBUTING.md](../CONTRIBUTING.md#planted-bugs) says how to add one.
"""
_LIST_HEAD = """## A list of others

Bugs in which other systems of this kind were found wanting, as far as a log on a quorum can have them.

| bug | here |
|---|---|
"""
_MODEL_HEAD = """
## In the model

`./x model` walks a model of the log, and one of a member's life, in every order, and drops each of their
rules in turn: without any of them something breaks there.

| rule of the model | rules |
|---|---|
"""
_ROW = re.compile(r"\| .* \| .* `([a-z0-9-]+)` \| .* \| `(.+?)` \|")


def page(rules: Mapping[str, Rule], found: Plants, caught: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        rules: the rules.
        found: the plants.
        caught: plant → the test that caught it; a plant that is missing here gets no row.
    """
    lines = [_HEAD]
    section = ""
    for rule in rules.values():
        if rule.section != section:
            section = rule.section
            lines += [f"## {section}\n", "| rule | bug | layers | caught by |", "|---|---|---|---|"]
        plants = [plant for plant in found.plants.values() if rule.id in plant.rules]
        lines += [_row(rule, plant, caught[plant.id]) for plant in plants if plant.id in caught]
        if rule is _last_of(rules, section):
            lines.append("")
    lines.append(_LIST_HEAD.rstrip("\n"))
    for bug in found.listed:
        here = bug.fell_away or ", ".join(f"`{name}`" for name in bug.plants)
        lines.append(f"| {bug.name} | {here} |")
    lines.append(_MODEL_HEAD.rstrip("\n"))
    lines += [f"| `{name}` | {', '.join(ids)} |" for name, ids in found.model.items()]
    return "\n".join(lines) + "\n"


def _last_of(rules: Mapping[str, Rule], section: str) -> Rule:
    return [rule for rule in rules.values() if rule.section == section][-1]


def _row(rule: Rule, plant: Plant, test: str) -> str:
    layers = dict.fromkeys([layer_of(test), *(LAYERS[check.layer] for check in plant.also)])
    return f"| {rule.id} | {_cell(plant.bug)} `{plant.id}` | {', '.join(layers)} | `{test}` |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def read_catches(text: str) -> dict[str, str]:
    """What a page says about which test caught which bug."""
    return {found[1]: found[2] for line in text.splitlines() if (found := _ROW.fullmatch(line))}


def rows_missing(found: Plants, caught: Mapping[str, str]) -> list[str]:
    """Says of each plant that has no row, or the row of a test that it does not name, what brings it."""
    return [
        f"docs/planted.md does not say what catches {plant.id}: ./x planted --only {plant.id}"
        for plant in found.plants.values()
        if plant.id not in caught or not any(is_of(caught[plant.id], test) for test in plant.tests)
    ]


def is_current(text: str, rules: Mapping[str, Rule], found: Plants) -> bool:
    """Whether the page is what would be written now, with tests that the plants name."""
    catches = read_catches(text)
    if catches.keys() != found.plants.keys() or page(rules, found, catches) != text:
        return False
    return not rows_missing(found, catches)

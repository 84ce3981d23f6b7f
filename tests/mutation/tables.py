"""Changes of what cosmic-ray leaves alone: states, and the tables and sets that are made of them."""

import re
from abc import abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from cosmic_ray.operators.operator import Operator
from muster_core.state.group_state import GroupState
from parso.python.tree import Keyword

_ENUM_MEMBER = re.compile(r"[A-Za-z_]+\.[A-Z][A-Z_]+")
_STATES = tuple(f"GroupState.{state.name}" for state in GroupState)
_LISTS = ("dictorsetmaker", "testlist_comp")


class _Tables(Operator):
    """A change of a set, a tuple or a dictionary whose members or keys are members of an enum."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """The table once for each way to change it."""
        for _ in self.variants(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The table, changed in the way of that number."""
        return _text(node, self.variants(node)[index])

    @abstractmethod
    def variants(self, node: Any) -> list[str]:
        """The texts that the table may become, without the white space before it."""

    @classmethod
    def examples(cls) -> tuple[()]:
        """None."""
        return ()


class DropMember(_Tables):
    """Leaves out one member or entry."""

    def variants(self, node: Any) -> list[str]:
        """A text for each member."""
        entries = _entries(node)
        return [_table(node, entries[:left] + entries[left + 1 :]) for left in range(len(entries))]


class AddMember(_Tables):
    """Adds one state to a set or a tuple of states."""

    def variants(self, node: Any) -> list[str]:
        """A text for each state that is not in it."""
        entries = _entries(node)
        if not entries or not all(entry.strip() in _STATES for entry in entries):
            return []
        present = [entry.strip() for entry in entries]
        return [_table(node, [*entries, f" {state}"]) for state in _STATES if state not in present]


class NextEntry(_Tables):
    """Gives the key of a dictionary the value of the entry after it."""

    def variants(self, node: Any) -> list[str]:
        """A text for each key."""
        entries = _entries(node)
        if not all(":" in entry for entry in entries):
            return []
        variants = []
        for changed, (here, after) in enumerate(pairwise([*entries, *entries[:1]])):
            entry = here.partition(":")[0] + ":" + after.partition(":")[2]
            variants.append(_table(node, [*entries[:changed], entry, *entries[changed + 1 :]]))
        return variants


class NextState(_Tables):
    """Names the state after the one that is named; members and keys of tables are left to the others."""

    def variants(self, node: Any) -> list[str]:
        """One text, if it is a state."""
        text = node.get_code(include_prefix=False)
        if node.type != "atom_expr" or text not in _STATES or node.parent.type in _LISTS:
            return []
        return [_STATES[(_STATES.index(text) + 1) % len(_STATES)]]


OPERATORS = {kind.__name__: kind for kind in (DropMember, AddMember, NextEntry, NextState)}


def _entries(node: Any) -> list[str]:
    """The members of a table of enum members, as they are written; none: it is no such table."""
    if node.type != "atom" or len(node.children) != 3 or node.children[0].value not in "{(":
        return []
    inside = node.children[1]
    parts = inside.children if inside.type in _LISTS else [inside]
    if node.children[0].value == "(" and inside.type not in _LISTS:
        return []  # parentheses, no tuple
    entries = [""]
    for part in parts:
        if part.type == "operator" and part.value == ",":
            entries.append("")
        else:
            entries[-1] += part.get_code()
    entries = [entry for entry in entries if entry.strip()]
    return entries if all(_ENUM_MEMBER.match(entry.strip()) for entry in entries) else []


def _table(node: Any, entries: list[str]) -> str:
    opening, closing = str(node.children[0].value), str(node.children[2].get_code())
    if entries:
        return opening + "".join(f"{entry}," for entry in entries) + closing
    is_set = opening == "{" and ":" not in node.get_code()
    return "set()" if is_set else opening + closing


def _text(node: Any, text: str) -> Any:
    return Keyword(text, node.start_pos, node.get_first_leaf().prefix)

"""The changes of a file: those that cosmic-ray makes, and those of this folder."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from mutation import tables
from parso.python.tree import Keyword

_EXCLUDED = (
    "RemoveDecorator",  # a property, a static method, a dataclass: the type checker finds it
    "_Is_Eq",  # None, a member of an enum, an object without equality of its own: equal only to themselves
    "_IsNot_NotEq",
    *(
        f"_{asked}_{identity}"
        for asked in ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")
        for identity in ("Is", "IsNot")
    ),
)  # the last: whether equal numbers and texts are one object is up to the interpreter


class DropStatement(Operator):
    """Leaves out a statement that only has an effect: a call, or the setting of an attribute or an entry."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """The statement, if it is one."""
        is_statement = node.parent is not None and node.parent.type == "simple_stmt"
        sets_part = node.type == "expr_stmt" and node.children[0].type == "atom_expr"
        if is_statement and (node.type == "atom_expr" or sets_part):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """`pass` in its place."""
        return Keyword("pass", node.start_pos, node.get_first_leaf().prefix)

    @classmethod
    def examples(cls) -> tuple[()]:
        """None."""
        return ()


_OWN = {DropStatement.__name__: DropStatement, **tables.OPERATORS}


@dataclass(frozen=True, order=True)
class Change:
    """One change of a file.

    Attributes:
        file: name of the file.
        line: where.
        operator: kind of the change.
        occurrence: which place of that kind in the file.
        before: the line as it is.
        after: the line as it becomes.
    """

    file: str
    line: int
    operator: str
    occurrence: int
    before: str
    after: str


def operator(name: str) -> Any:
    """The operator of that name."""
    return _OWN[name]() if name in _OWN else cosmic_ray.plugins.get_operator(name)()


@lru_cache
def _names() -> tuple[str, ...]:
    plain = [
        name
        for name in cosmic_ray.plugins.operator_names()
        if not cosmic_ray.plugins.get_operator(name).arguments() and not name.endswith(_EXCLUDED)
    ]
    return (*sorted(plain), *_OWN)


def changed(path: Path, change: Change) -> str:
    """The file's text with the change."""
    return str(mutate_code(path.read_text(encoding="utf-8"), operator(change.operator), change.occurrence))


def changes_of(path: Path, sample: int = 0, seed: int = 0) -> list[Change]:
    """Changes of a file, in order; annotations stay as they are, and equal texts count once.

    Args:
        path: the file.
        sample: how many places to draw; 0: all.
        seed: what decides which.
    """
    source = path.read_text(encoding="utf-8")
    nodes = list(ast_nodes(get_ast(source)))
    places: list[tuple[str, int, int]] = []
    for name in _names():
        found = [(node, start) for node in nodes for start, _ in operator(name).mutation_positions(node)]
        places += [
            (name, occurrence, start[0])
            for occurrence, (node, start) in enumerate(found)
            if not _in_annotation(node)
        ]
    if sample and len(places) > sample:
        places = random.Random(seed).sample(places, sample)
    changes: dict[str, Change] = {}
    for name, occurrence, line in sorted(places):
        text = str(mutate_code(source, operator(name), occurrence))
        for before, after in zip(source.splitlines(), text.splitlines(), strict=False):
            if before != after:
                change = Change(path.name, line, name, occurrence, before.strip(), after.strip())
                changes.setdefault(text, change)
                break
    return sorted(changes.values())


def _in_annotation(node: Any) -> bool:
    while node is not None:
        if node.type == "tfpdef" or (node.type == "operator" and node.value == "->"):
            return True
        parent = node.parent
        if parent is not None and parent.type == "annassign" and node is parent.children[1]:
            return True
        if parent is not None and parent.type == "funcdef" and node is parent.annotation:
            return True
        node = parent
    return False

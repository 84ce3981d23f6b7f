"""The changes of a file, as cosmic-ray makes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from parso.python.tree import Keyword

_EXCLUDED = ("RemoveDecorator",)  # a property, a static method, a dataclass: the type checker finds it
_EFFECT = "DropStatement"


class DropStatement(Operator):  # type: ignore[misc]
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
    return DropStatement() if name == _EFFECT else cosmic_ray.plugins.get_operator(name)()


@lru_cache
def _names() -> tuple[str, ...]:
    plain = [
        name
        for name in cosmic_ray.plugins.operator_names()
        if not cosmic_ray.plugins.get_operator(name).arguments() and not name.endswith(_EXCLUDED)
    ]
    return (*sorted(plain), _EFFECT)


def changed(path: Path, change: Change) -> str:
    """The file's text with the change."""
    return str(mutate_code(path.read_text(encoding="utf-8"), operator(change.operator), change.occurrence))


def changes_of(path: Path) -> list[Change]:
    """All changes of a file, in order; annotations stay, and equal texts count once."""
    source = path.read_text(encoding="utf-8")
    tree = get_ast(source)
    lines = source.splitlines()
    found: dict[str, Change] = {}
    for name in _names():
        positions = [
            (node, start) for node in ast_nodes(tree) for start, _ in operator(name).mutation_positions(node)
        ]
        for occurrence, (node, start) in enumerate(positions):
            if _in_annotation(node):
                continue
            text = str(mutate_code(source, operator(name), occurrence))
            after = text.splitlines()
            number = next(
                (i for i, pair in enumerate(zip(lines, after, strict=False)) if pair[0] != pair[1]), None
            )
            if number is not None:
                change = Change(
                    path.name, start[0], name, occurrence, lines[number].strip(), after[number].strip()
                )
                found.setdefault(text, change)
    return sorted(found.values())


def _in_annotation(node: Any) -> bool:
    while node is not None:
        if node.type in ("annassign", "tfpdef") or (node.type == "operator" and node.value == "->"):
            return True
        parent = node.parent
        if parent is not None and parent.type == "funcdef" and node is parent.annotation:
            return True
        node = parent
    return False

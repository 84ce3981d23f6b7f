"""Named tuples whose `_replace` takes half the time: much of a walk is spent there."""

from typing import Any, TypeVar

AnyTuple = TypeVar("AnyTuple", bound=tuple[Any, ...])


def quick_replace(made: type[AnyTuple]) -> type[AnyTuple]:
    """Decorates a `NamedTuple`. A field that it does not have is a KeyError."""
    named: Any = made
    places = {name: place for place, name in enumerate(named._fields)}
    new = tuple.__new__

    def replace(self: AnyTuple, /, **changes: object) -> AnyTuple:
        values = list(self)
        for name, value in changes.items():
            values[places[name]] = value
        return new(made, values)

    named._replace = replace
    return made

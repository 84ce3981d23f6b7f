"""What can be said of a setting without reading the environment: its type, unit, range and default."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from muster_runtime.addresses import Address
from muster_runtime.settings import Settings

_UNITS = {"ms": "ms", "bytes": "bytes"}
_KINDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Path: "file",
    SecretStr: "secret",
    Address: "host:port",
    IPv4Network: "network",
}


@dataclass(frozen=True, slots=True)
class SettingFacts:
    """What is known of a setting.

    Attributes:
        name: its environment variable.
        kind: its type in words; of a choice, the values.
        unit: of a number; empty: it is a count, or no number.
        range: lowest and highest value; empty: there are none.
        default: what holds when it is not set; empty: nothing, or what the description says.
        description: what it does.
        secret: whether it can also be read from the file that `<name>_FILE` names.
    """

    name: str
    kind: str
    unit: str
    range: str
    default: str
    description: str
    secret: bool


def facts(settings_class: type[Settings]) -> list[SettingFacts]:
    """Every setting of a group, in the order of its class."""
    return [
        SettingFacts(
            name=settings_class.variable(name),
            kind=_kind(field.annotation),
            unit=_UNITS.get(name.rpartition("_")[2], ""),
            range=_range(field.metadata),
            default=_default(field),
            description=field.description or "",
            secret=SecretStr in (field.annotation, *get_args(field.annotation)),
        )
        for name, field in settings_class.model_fields.items()
    ]


def as_text(value: Any) -> str:
    """A value as it is written into the environment; secrets are masked."""
    if value is None:
        return ""
    if isinstance(value, SecretStr):
        return "********" if value.get_secret_value() else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in value)
    return str(value)


def _kind(annotation: Any) -> str:
    parts = [part for part in get_args(annotation) if part not in (type(None), ...)]
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in parts)
    if get_origin(annotation) is tuple:
        return f"list of {_kind(parts[0])}"
    if parts:  # an optional value
        return _kind(parts[0])
    return _KINDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _range(metadata: Sequence[Any]) -> str:
    lowest = next((one.ge for one in metadata if hasattr(one, "ge")), None)
    highest = next((one.le for one in metadata if hasattr(one, "le")), None)
    return "" if lowest is None or highest is None else f"{lowest:,} to {highest:,}"


def _default(field: FieldInfo) -> str:
    if field.is_required() or field.default_factory is not None:
        return ""
    value = field.default
    return value.get_secret_value() if isinstance(value, SecretStr) else as_text(value)

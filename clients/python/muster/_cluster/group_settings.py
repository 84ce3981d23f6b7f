"""Settings of groups, as values of Python and as the wire has them."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest, GroupSettings

from muster._errors import SettingsError

SettingValue: TypeAlias = str | int | bool

_FIELDS: Mapping[str, Any] = {field.name: field for field in GroupSettings.DESCRIPTOR.fields}
NAMES = tuple(_FIELDS)
"""Names of all settings of a group."""

_TYPES: Mapping[int, tuple[type[SettingValue], str]] = {
    FieldDescriptor.TYPE_STRING: (str, "a text"),
    FieldDescriptor.TYPE_INT32: (int, "a whole number"),
    FieldDescriptor.TYPE_BOOL: (bool, "true or false"),
}
_INT_LIMIT = 1 << 31
_BOOLS = {"true": True, "false": False}


def request_of(
    group_id: str, settings: Mapping[str, SettingValue], unset: Iterable[str]
) -> AlterGroupSettingsRequest:
    """The request that sets these settings, and takes those back.

    Raises:
        SettingsError: there is no such setting, or it is of another type.
    """
    request = AlterGroupSettingsRequest(group_id=group_id)
    for name, value in settings.items():
        kind, text = _TYPES[_field(name).type]
        if type(value) is not kind or (isinstance(value, int) and not -_INT_LIMIT <= value < _INT_LIMIT):
            raise SettingsError(name, f"must be {text}, not {value!r}")
        setattr(request.set, name, value)
    for name in dict.fromkeys(unset):
        _field(name)
        if name in settings:
            raise SettingsError(name, "is to be set and not to be set")
        request.unset.append(name)
    if not settings and not request.unset:
        raise SettingsError("settings", "there is nothing to set, and nothing to take back")
    return request


def value_of(name: str, text: str) -> SettingValue:
    """The value that a person wrote.

    Raises:
        SettingsError: there is no such setting, or it cannot have such a value.
    """
    kind, wanted = _TYPES[_field(name).type]
    try:
        return _BOOLS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise SettingsError(name, f"must be {wanted}, not {text!r}") from None


def values_of(settings: GroupSettings) -> dict[str, SettingValue]:
    """What is set, by name."""
    return {field.name: value for field, value in settings.ListFields()}


def _field(name: str) -> Any:
    if name not in _FIELDS:
        raise SettingsError(name, f"is no setting of a group; there are {', '.join(NAMES)}")
    return _FIELDS[name]

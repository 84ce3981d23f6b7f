"""Settings from the environment: typed, checked at start, explained when they are wrong."""

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from muster_runtime.errors import StartupError

PREFIX = "MUSTER_"
"""What every variable of Muster begins with."""

TOOL_VARIABLES = frozenset(
    {
        *("MUSTER_DEV_PORTS", "MUSTER_PYTHON", "MUSTER_ROLLOUT_HOLD_MS", "MUSTER_SERVERS"),
        *("MUSTER_TOKEN_FILE", "MUSTER_TOKEN_PLAIN_TEXT"),
        *("MUSTER_HOST", "MUSTER_OTLP", "MUSTER_VERSION"),  # docker-compose.yml
    }
)
"""Variables that clients and scripts read; they are known, and mean nothing to a service."""

_SECRET_FILE_MAX_BYTES = 65_536
_SERVICE_LINK_NAME = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
)
_SERVICE_LINK_VALUE = re.compile(r"^(tcp|udp|sctp)://")


class SettingsError(StartupError):
    """Some settings are wrong.

    Attributes:
        problems: one sentence for each, beginning with the name of the environment variable.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("the settings are wrong:\n" + "\n".join(f"  {problem}" for problem in self.problems))


class _SecretFiles(PydanticBaseSettingsSource):
    """Reads secrets from the files that `<NAME>_FILE` variables point to."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        problems: list[str] = []
        cls = self.settings_cls
        assert issubclass(cls, Settings)
        for name, field in cls.model_fields.items():
            variable = cls.variable(name)
            file = os.environ.get(f"{variable}_FILE", "")
            if not _is_secret(field) or not file:
                continue
            if os.environ.get(variable):
                problems.append(f"{variable} and {variable}_FILE are both set; keep one of them")
                continue
            try:
                values[name] = _read_secret(file)
            except (OSError, ValueError) as error:
                problems.append(f"{variable}_FILE={file!r}: {_reason(error)}")
        if problems:
            raise SettingsError(problems)
        return values


def _read_secret(file: str) -> str:
    with Path(file).open("rb") as stream:
        content = stream.read(_SECRET_FILE_MAX_BYTES + 1)
    if len(content) > _SECRET_FILE_MAX_BYTES:
        raise ValueError(f"the file is larger than {_SECRET_FILE_MAX_BYTES} bytes")
    text = content.decode("utf-8").rstrip("\r\n")
    if not text:
        raise ValueError("the file is empty")
    return text


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"the file cannot be read: {error.strerror}"
    return "the file is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


class Settings(BaseSettings):
    """Base of all groups of settings.

    A subclass sets its prefix with `model_config = SettingsConfigDict(env_prefix="MUSTER_…_")` and gives
    each field a default, bounds and a description. The variable of a field is the prefix and the field's
    name in capitals. A field of type `SecretStr` can also be read from the file that `<VARIABLE>_FILE`
    names. An empty variable counts as unset. Arguments to the constructor win over the environment.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then the environment, then files of secrets; no `.env` files."""
        return init_settings, env_settings, _SecretFiles(settings_cls)

    @classmethod
    def variable(cls, field_name: str) -> str:
        """Name of the environment variable of a field."""
        return f"{cls.model_config.get('env_prefix', PREFIX)}{field_name}".upper()

    @classmethod
    def variables(cls) -> frozenset[str]:
        """Every environment variable that this class reads."""
        names = {cls.variable(name) for name in cls.model_fields}
        names |= {
            f"{cls.variable(name)}_FILE" for name, field in cls.model_fields.items() if _is_secret(field)
        }
        return frozenset(names)


S = TypeVar("S", bound=Settings)


def load(settings_class: type[S], *, known: Iterable[type[Settings]] = (), **values: Any) -> S:
    """Reads one group of settings from the environment.

    Args:
        settings_class: the group wanted.
        known: the other groups in play; when given, variables that none of them reads are errors.
        **values: fields that do not come from the environment, by name.

    Raises:
        SettingsError: it names each variable that is wrong, its value and the limit.
    """
    others = tuple(known)
    unread = _Unread.of((settings_class, *others)) if others else _Unread()
    problems = unread.problems()
    try:
        settings = settings_class(**values)
    except ValidationError as error:
        problems += [
            _explain(settings_class, details)
            for details in error.errors(include_url=False)
            if _variable(settings_class, details) not in unread.service_links  # said already
        ]
    except SettingsError as error:
        problems += error.problems
    else:
        if not problems:
            return settings
    raise SettingsError(problems) from None


def check_environment(classes: Iterable[type[Settings]]) -> None:
    """Refuses variables that begin with `MUSTER_` and that nobody reads.

    Args:
        classes: every group of settings that the process may read.

    Raises:
        SettingsError: it names each key and the nearest one that is known.
    """
    problems = _Unread.of(classes).problems()
    if problems:
        raise SettingsError(problems)


@dataclass(frozen=True, slots=True)
class _Unread:
    """Variables that begin with `MUSTER_` and that nobody reads.

    Attributes:
        unknown: a sentence for each.
        service_links: names of those that Kubernetes set for a Service, which settings may have too.
    """

    unknown: tuple[str, ...] = ()
    service_links: tuple[str, ...] = ()

    @classmethod
    def of(cls, classes: Iterable[type[Settings]]) -> "_Unread":
        """Those of the environment that none of these classes reads."""
        known = set(TOOL_VARIABLES).union(*(settings_class.variables() for settings_class in classes))
        unknown, links = [], []
        for key, value in sorted(os.environ.items()):
            if not key.upper().startswith(PREFIX):
                continue
            if _is_service_link(key, value, known):
                links.append(key)
            elif key.upper() not in known:
                unknown.append(_unknown(key, known))
        return cls(tuple(unknown), tuple(links))

    def problems(self) -> list[str]:
        """All of them, in sentences."""
        if not self.service_links:
            return list(self.unknown)
        return [
            *self.unknown,
            f"{', '.join(self.service_links)}: set by Kubernetes for a Service whose name begins with "
            "`muster`, not by you; set `enableServiceLinks: false` in the pod's spec",
        ]


def _is_service_link(key: str, value: str, known: set[str]) -> bool:
    if _SERVICE_LINK_VALUE.match(value) and "_PORT" in key:
        return True
    return key not in known and _SERVICE_LINK_NAME.search(key) is not None


def _unknown(key: str, known: set[str]) -> str:
    nearest = difflib.get_close_matches(key.upper(), sorted(known), n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else "no setting has a name like it"
    return f"{key}: there is no such setting; {hint}"


def _variable(settings_class: type[Settings], details: ErrorDetails) -> str:
    """The variable that an error is about; empty: several together."""
    return settings_class.variable(str(details["loc"][0])) if details["loc"] else ""


def _explain(settings_class: type[Settings], details: ErrorDetails) -> str:
    raised = details.get("ctx", {}).get("error")  # by a validator of ours, whose words need no introduction
    message = details["msg"] if raised is None else str(raised)
    variable = _variable(settings_class, details)
    if not variable:
        return message
    field_name = str(details["loc"][0])
    field = settings_class.model_fields.get(field_name)
    if details["type"] == "extra_forbidden" or field is None:
        return f"{variable}: there is no such setting"
    if details["type"] == "missing":
        return f"{variable} is not set and has no default: {field.description or field_name}"
    shown = "" if _is_secret(field) else f"={_shown(details, variable)}"
    return f"{variable}{shown}: {message[:1].lower()}{message[1:]}"


def _shown(details: ErrorDetails, variable: str) -> str:
    value = os.environ.get(variable, details.get("input"))
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= 100 else text[:100] + "…")


def _is_secret(field: FieldInfo) -> bool:
    annotation = field.annotation
    return annotation is SecretStr or SecretStr in getattr(annotation, "__args__", ())

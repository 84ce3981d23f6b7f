"""The cluster's own processes, known by the names in their certificates."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer
from pydantic_settings import NoDecode

from muster_runtime.logs import clean_text
from muster_runtime.rpc.identity.certificates import Shown, name_in_certificate

MOST_PEERS = 100
LONGEST_PEER = 255

_URI, _DNS = "uri", "dns"
_KINDS: Mapping[str, str] = {"peer_uri": _URI, "peer_dns": _DNS}
"""How gRPC calls the alternative names of a certificate that has passed the handshake."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Name:
    """A subject alternative name of a certificate.

    Attributes:
        kind: `uri` or `dns`.
        text: the name; a DNS name in lower case.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Peer:
    """A pattern of names.

    Attributes:
        pattern: as it was written: a URI (it has `://`) or a DNS name. `*` stands for one or more characters
            of one part: none of them is the `/` or `.` that separates parts.
    """

    pattern: str

    def __str__(self) -> str:
        """As it is read again."""
        return self.pattern

    def matches(self, names: Sequence[Name]) -> bool:
        """Whether one of the names fits."""
        kind, text, separator = (
            (_URI, self.pattern, "/") if "://" in self.pattern else (_DNS, self.pattern.lower(), ".")
        )
        expression = f"[^{separator}]+".join(map(re.escape, text.split("*")))
        return any(name.kind == kind and re.fullmatch(expression, name.text) for name in names)


def names_of(context: Any) -> Sequence[Name] | None:
    """The alternative names in the certificate of a caller; None: it showed none.

    Names that contradict each other (`name_in_certificate`) are none.
    """
    shown: Shown = context.auth_context()
    called = name_in_certificate(shown)
    if not called:
        return None if called is None else ()
    names = []
    for key, kind in _KINDS.items():
        for value in shown.get(key, ()):
            text = value.decode("utf-8", "replace")
            names.append(Name(kind, text.lower() if kind == _DNS else text))
    return names


def named(names: Sequence[Name]) -> str:
    """The names for people, not more than a few."""
    shown = [clean_text(name.text, LONGEST_PEER) for name in names[:_SHOWN]]
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return ", ".join([*shown, *more]) or "nobody that has a DNS name or a URI"


def _peers(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    patterns = [part for part in (text.strip() for text in value.split(",")) if part]
    if len(patterns) > MOST_PEERS:
        raise ValueError(f"there are {len(patterns)} names, at most {MOST_PEERS} are allowed")
    for pattern in patterns:
        if len(pattern) > LONGEST_PEER:
            raise ValueError(f"{pattern[:40]!r}… is longer than {LONGEST_PEER} characters")
        if not all("!" <= character <= "~" for character in pattern):
            raise ValueError(f"{pattern!r} has characters other than visible ASCII")
        if not pattern.strip("*./:"):
            raise ValueError(f"{pattern!r} names everybody")
    return tuple(map(Peer, patterns))


PeerList = Annotated[
    tuple[Peer, ...],
    NoDecode,
    BeforeValidator(_peers),
    PlainSerializer(lambda value: ",".join(peer.pattern for peer in value)),
]
"""Type of a setting that is a list of patterns of names."""

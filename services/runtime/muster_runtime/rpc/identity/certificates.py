"""The name in a client's certificate that gRPC has verified, and when it ends."""

import functools
from collections.abc import Mapping, Sequence

_SPIFFE = "spiffe://"
_MOST_KNOWN = 10_000


Shown = Mapping[str, Sequence[bytes]]
"""What gRPC says of a caller's certificate (`auth_context`), which takes it some microseconds."""


def name_in_certificate(shown: Shown) -> str | None:
    """What the certificate of a caller calls it; None: it showed none.

    The first of these that the certificate has: an alternative name of type URI, one of type DNS, the common
    name. A SPIFFE id is a URI, and has to be the only one, as its standard demands; what looks like one in
    another field is none, for authorities check their fields by different rules.

    Returns:
        The name; empty where the certificate has none, or several that contradict each other.
    """
    if "x509_pem_cert" not in shown:
        return None
    uris = shown.get("peer_uri", ())
    if len(uris) > 1 and any(_text(uri).lower().startswith(_SPIFFE) for uri in uris):
        return ""
    for names in (uris, shown.get("peer_dns", ()), shown.get("x509_common_name", ())):
        if names:
            name = _text(names[0])
            return "" if names is not uris and name.lower().startswith(_SPIFFE) else name
    return ""


def end_of_certificate(shown: Shown) -> int | None:
    """When the certificate of a caller ends, Unix time in ms; None: it showed none, or nobody can say.

    gRPC looks at that once, as the connection is made, which may last for months.
    """
    pem = shown.get("x509_pem_cert")
    return _end_of(pem[0]) if pem else None


@functools.lru_cache(_MOST_KNOWN)
def _end_of(pem: bytes) -> int | None:
    from cryptography import x509  # only who asks for certificates loads it

    try:
        return int(x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp() * 1_000)
    except ValueError:  # the library is stricter than what made the connection
        return None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")

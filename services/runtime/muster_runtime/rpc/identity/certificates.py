"""The name in a client's certificate that gRPC has verified."""

from collections.abc import Mapping, Sequence
from typing import Any

_SPIFFE = "spiffe://"


def name_in_certificate(context: Any) -> str | None:
    """What the certificate of a caller calls it; None: it showed none.

    The first of these that the certificate has: an alternative name of type URI, one of type DNS, the common
    name. A SPIFFE id is a URI, and has to be the only one, as its standard demands; what looks like one in
    another field is none, for authorities check their fields by different rules.

    Returns:
        The name; empty where the certificate has none, or several that contradict each other.
    """
    shown: Mapping[str, Sequence[bytes]] = context.auth_context()
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


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")

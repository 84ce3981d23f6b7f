"""Addresses of the nodes of a log."""

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

NODE_COUNTS = (1, 3, 5)
SCHEMES = ("redis", "rediss")
DEFAULT_PORT = 6379

TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""Options of a `rediss://` address that name files."""

_TLS_OPTIONS = (*TLS_FILES, "ssl_check_hostname")


class BadUrlsError(ValueError):
    """The addresses of the nodes are invalid. The message says why; it contains no credentials."""


def split_urls(urls: str) -> list[str]:
    """Splits `redis://[user:password@]a:1,b:2,c:3[/0][?…]` into one address per node.

    With `rediss://` the options `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile` (files) and
    `ssl_check_hostname` (`true` or `false`) may follow the `?`.

    Raises:
        BadUrlsError: another scheme, an unknown option, a node named twice, or not 1, 3 or 5 nodes.
    """
    scheme, separator, rest = urls.strip().partition("://")
    if scheme not in SCHEMES or not separator:
        raise BadUrlsError("the address of the log must begin with redis:// or rediss://")
    if "://" in rest:
        raise BadUrlsError(
            "the address of the log names redis:// or rediss:// once, before the first node; it is the "
            "same for all nodes, and so are user, password and what follows the last node"
        )
    before, question, options = rest.partition("?")
    authority, slash, path = before.partition("/")
    tail = slash + path + question + options
    _check_options(scheme, options)
    user, at_sign, hosts = authority.rpartition("@")
    places = [place.strip() for place in hosts.split(",")]
    if any(not place for place in places):
        raise BadUrlsError("the address of the log names an empty host")
    if any("@" in place for place in (user, *places)):
        raise BadUrlsError(
            "the address of the log names user and password once, before the first node; they are the same "
            "for all"
        )
    if len(places) not in NODE_COUNTS:
        raise BadUrlsError(f"a log has 1, 3 or 5 nodes, not {len(places)}")
    named = [normalised(place) for place in places]
    for place in named:
        if named.count(place) > 1:
            raise BadUrlsError(f"the address of the log names one node twice: {place}")
    found = [f"{scheme}://{user}{at_sign}{place}{tail}" for place in places]
    for url in found:
        _check_reading(url)
    return found


def _check_reading(url: str) -> None:
    """Refuses an address that cannot be parsed: unencoded characters would end the password early."""
    try:
        parts = urlsplit(url)
        readable = parts.port is None or bool(parts.hostname)
    except ValueError:
        readable = False
    if not readable or parts.fragment:
        raise BadUrlsError(
            "the address of the log cannot be read: user and password must be percent-encoded where they "
            "have one of : / ? # [ ] @"
        )


def _check_options(scheme: str, query: str) -> None:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _TLS_OPTIONS:
            known = ", ".join(_TLS_OPTIONS)
            # What is no identifier may be the rest of an unencoded password.
            shown = f" {name!r}" if name.isidentifier() else " like the one that is given"
            raise BadUrlsError(f"the address of the log has no option{shown}; the options are {known}")
        if scheme != "rediss":
            raise BadUrlsError(f"{name} in the address of the log needs rediss://, not {scheme}://")
    if ("ssl_certfile" in options) != ("ssl_keyfile" in options):
        raise BadUrlsError("ssl_certfile and ssl_keyfile in the address of the log need each other")
    for name in TLS_FILES:
        if name in options and not Path(options[name]).is_file():
            raise BadUrlsError(f"{name} in the address of the log: there is no file {options[name]}")
    if options.get("ssl_check_hostname", "true").lower() not in ("true", "false"):
        raise BadUrlsError("ssl_check_hostname in the address of the log must be true or false")


def normalised(place: str) -> str:
    """`host:port` in lower case and with the port, so that two spellings of one address become equal.

    Raises:
        BadUrlsError: the port is no number.
    """
    try:
        parts = urlsplit(f"//{place}")
        port = parts.port
    except ValueError:
        raise BadUrlsError("the address of the log has a port that is no number") from None
    host = parts.hostname or ""
    return f"[{host}]:{port or DEFAULT_PORT}" if ":" in host else f"{host}:{port or DEFAULT_PORT}"


def place_of(url: str) -> str:
    """`host:port` of one node's URL, without credentials."""
    return normalised(urlsplit(url).netloc.rpartition("@")[2])


def at(url: str, place: str) -> str:
    """The URL of the node at `place`, with the scheme, credentials and options of `url`."""
    parts = urlsplit(url)
    user, at_sign, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}{at_sign}{place}").geturl()

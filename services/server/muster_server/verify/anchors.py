"""Anchors as files: JSON, signed with Ed25519, in a place that the nodes' administrators cannot write to.

    {"format": 1, "cluster_id": "…", "made_at_ms": 1700000000000, "ends": {"0": ["2-22", "9f…"]},
     "signature": "…"}

The signature is over the other fields, as JSON with sorted keys and without spaces.
"""

import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from muster_core.audit.anchor import Anchor, End, Restore
from muster_core.position import Position

from muster_server.verify.reader import LogUnreadableError

FORMAT = 1

_TIMEOUT_S = 10.0
_MAX_BYTES = 16 << 20


class AnchorError(LogUnreadableError):
    """An anchor cannot be read, trusted or kept; the message says why."""


@dataclass(frozen=True, slots=True)
class Anchoring:
    """What a run does about anchors.

    Attributes:
        place: file or URL of the anchor to check against; empty: none.
        public_key: file of the key that it must be signed with (PEM); None: the signature is not checked.
        keep: file or URL where the ends that this run sees are kept; empty: nowhere. A URL takes a PUT.
        private_key: file of the key to sign them with (PEM); None: they are not signed.
        accept_restore: whether a restore that the catalog's log tells of excuses a log that was set back.
    """

    place: str = ""
    public_key: Path | None = None
    keep: str = ""
    private_key: Path | None = None
    accept_restore: bool = False

    def read(self, cluster_id: str) -> Anchor | None:
        """The anchor to check against; None: there is none to be checked.

        Raises:
            AnchorError: it cannot be read, is not signed with the key, or is of another cluster.
        """
        if not self.place:
            return None
        anchor = parse(_load(self.place), self.place, self.public_key)
        if anchor.cluster_id != cluster_id:
            raise AnchorError(
                f"{self.place} is an anchor of cluster {anchor.cluster_id}, not of {cluster_id}"
            )
        return anchor

    def store(self, cluster_id: str, ends: Mapping[int, End]) -> None:
        """Keeps the ends of the logs, where that is wanted.

        Raises:
            AnchorError: they cannot be signed, or stored.
        """
        if self.keep:
            _save(self.keep, as_text(Anchor(cluster_id, round(time.time() * 1000), ends), self.private_key))


NO_ANCHORS = Anchoring()
"""Checks against no anchor, and keeps none."""


def in_words(restore: Restore, logs: int) -> str:
    """What a restore excuses, for people."""
    at = datetime.fromtimestamp(restore.at_ms / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"{logs} logs lack what the anchor says: accepted, for the nodes were restored at {at} "
        f"({restore.position.stream_id} of the catalog): {restore.reason}"
    )


def parse(text: bytes, place: str, public_key: Path | None) -> Anchor:
    """Reads an anchor, and checks its signature where a key is given.

    Raises:
        AnchorError: it is damaged, or not signed with the key.
    """
    try:
        stored: dict[str, Any] = json.loads(text)
        signature = b64decode(stored.pop("signature", ""))
        anchor = Anchor(str(stored["cluster_id"]), int(stored["made_at_ms"]), ends_of(stored["ends"]))
        format_ = stored["format"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AnchorError(f"{place} holds no anchor: {error!r}") from error
    if format_ != FORMAT:
        raise AnchorError(f"{place} has format {format_}; this version reads {FORMAT}")
    if public_key is not None:
        _verify(public_key, signature, _signed(stored), place)
    return anchor


def ends_of(stated: Mapping[str, tuple[str, str]]) -> dict[int, End]:
    """Ends as JSON has them: number of a log → its place and hash."""
    return {
        int(shard): End(Position.parse(position), bytes.fromhex(hash_))
        for shard, (position, hash_) in stated.items()
    }


def stated_ends(ends: Mapping[int, End]) -> dict[str, tuple[str, str]]:
    """What `ends_of` reads."""
    return {str(shard): (end.position.stream_id, end.hash.hex()) for shard, end in sorted(ends.items())}


def as_text(anchor: Anchor, private_key: Path | None) -> bytes:
    """An anchor as it is stored, signed where a key is given.

    Raises:
        AnchorError: the key cannot be used.
    """
    stated: dict[str, Any] = {
        "format": FORMAT,
        "cluster_id": anchor.cluster_id,
        "made_at_ms": anchor.made_at_ms,
        "ends": stated_ends(anchor.ends),
    }
    if private_key is not None:
        stated["signature"] = b64encode(_sign(private_key, _signed(stated))).decode()
    return json.dumps(stated, indent=1).encode()


def _signed(stated: dict[str, Any]) -> bytes:
    return json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()


def _sign(path: Path, data: bytes) -> bytes:
    serialization, ed25519 = _cryptography()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise AnchorError(f"{path} holds no private key (PEM, without a password): {error}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise AnchorError(f"{path} holds no Ed25519 key: `openssl genpkey -algorithm ed25519` makes one")
    signature: bytes = key.sign(data)
    return signature


def _verify(path: Path, signature: bytes, data: bytes, place: str) -> None:
    serialization, ed25519 = _cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise AnchorError(f"{path} holds no public key (PEM): {error}") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise AnchorError(f"{path} holds no Ed25519 key: `openssl pkey -pubout` writes that of a private one")
    try:
        key.verify(signature, data)
    except InvalidSignature:
        how = "signed with another key, or changed since" if signature else "not signed"
        raise AnchorError(f"{place} is {how}: it proves nothing") from None


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError:
        raise AnchorError(
            "signatures need the package cryptography: `pip install 'muster-server[anchors]'`"
        ) from None
    return serialization, ed25519


def _is_url(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _load(place: str) -> bytes:
    try:
        if _is_url(place):
            with urlopen(place, timeout=_TIMEOUT_S) as answer:  # noqa: S310  of http only
                text: bytes = answer.read(_MAX_BYTES + 1)
        else:
            with Path(place).open("rb") as file:
                text = file.read(_MAX_BYTES + 1)
    except (OSError, URLError, ValueError) as error:
        raise AnchorError(f"the anchor {place} cannot be read: {error}") from error
    if len(text) > _MAX_BYTES:
        raise AnchorError(f"the anchor {place} has more than {_MAX_BYTES:,} bytes")
    return text


def _save(place: str, text: bytes) -> None:
    try:
        if _is_url(place):
            request = Request(place, text, {"Content-Type": "application/json"}, method="PUT")  # noqa: S310  of http only
            with urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310  of http only
                return
        path = Path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".new")
        try:
            with temporary.open("wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:  # as on a full disk: half an anchor is of no use
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, URLError, ValueError) as error:
        raise AnchorError(f"the anchor cannot be kept at {place}: {error}") from error

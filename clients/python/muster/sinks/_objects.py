"""The fence of an object store: writes that are conditional on what was there."""

from typing import Any

from muster._config import check_at_most
from muster.sinks._resource import Owned, StaleToken, resource_of

_TRIES = 10
_NAME_MAX_BYTES = 2_048
_CONFLICTS = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})


class ObjectFence:
    """Writes objects of S3, or of a store that is like it, each with the token of who wrote it.

    A write reads the token of the object that is there, and replaces exactly that object (`If-Match`), or
    none (`If-None-Match`). The fence is on each object: a stale owner can still create one that its successor
    has not written. Let readers go by one object of the partition, such as a manifest, and write that last.

    Args:
        client: of boto3, or with its `head_object` and `put_object`.
        bucket: name of the bucket.
        entry: the entry of the object's metadata that holds the token.
    """

    def __init__(self, client: Any, bucket: str, entry: str = "muster-token") -> None:
        for name in ("head_object", "put_object"):
            if not callable(getattr(client, name, None)):
                raise TypeError(f"client must be one of boto3 with `{name}`, not {client!r}")
        self._client = client
        self._bucket = check_at_most("bucket", bucket, _NAME_MAX_BYTES)
        self._entry = check_at_most("entry", entry, _NAME_MAX_BYTES)

    def put(self, owned: Owned, key: str, body: bytes, **options: Any) -> Any:
        """Writes an object; blocks.

        Args:
            owned: the partition.
            key: the object's.
            body: its content.
            options: further arguments of `put_object`, such as `ContentType` or `Metadata`.

        Returns:
            The store's answer.

        Raises:
            StaleToken: the object has a higher token; it was not written.
            OSError: others wrote it each time that this tried.
        """
        metadata = {**options.pop("Metadata", {}), self._entry: owned.token}
        for _ in range(_TRIES):
            etag, token = self._present(key)
            if token > owned.token:
                raise StaleToken(resource_of(owned), owned.token, token)
            condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
            try:
                return self._client.put_object(
                    Bucket=self._bucket, Key=key, Body=body, Metadata=metadata, **condition, **options
                )
            except Exception as error:
                if _code_of(error) not in _CONFLICTS:
                    raise
        raise OSError(f"{self._bucket}/{key} was written by others {_TRIES} times meanwhile")

    def _present(self, key: str) -> tuple[str | None, str]:
        """ETag and token of the object; None: there is no object; empty: it has no token."""
        try:
            head = self._client.head_object(Bucket=self._bucket, Key=key)
        except Exception as error:
            if _code_of(error) not in _MISSING:
                raise
            return None, ""
        return head["ETag"], head.get("Metadata", {}).get(self._entry, "")


def _code_of(error: Exception) -> str:
    """The code of botocore's `ClientError`; empty: it is another error."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""

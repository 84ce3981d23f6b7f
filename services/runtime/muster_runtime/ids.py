"""What the ids in requests may be made of."""

from muster_protos.limits import ID_MAX_BYTES, has_unfit

HAS_UNFIT = "must not contain control characters, or characters without width"


def id_problem(value: str, limit: int = ID_MAX_BYTES) -> str:
    """What is wrong with an id, for people; empty: nothing.

    Args:
        value: the id.
        limit: bytes that it may have.
    """
    if len(value) > limit or (not value.isascii() and len(value.encode("utf-8", "surrogatepass")) > limit):
        return f"must be at most {limit} bytes long"
    return HAS_UNFIT if has_unfit(value) else ""

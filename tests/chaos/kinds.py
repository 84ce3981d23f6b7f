"""Kinds of group that the load has."""

from collections.abc import Sequence

CLASSIC, INCREMENTAL = "classic", "incremental"

KINDS: dict[str, Sequence[str]] = {
    CLASSIC: (CLASSIC,),
    INCREMENTAL: (INCREMENTAL,),
    "both": (CLASSIC, INCREMENTAL),
}
"""What `--groups` may be: the groups of the load are of these kinds in turn."""

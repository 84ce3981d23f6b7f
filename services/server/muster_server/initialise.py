"""Initialises the log of a cluster."""

import sys
from collections.abc import Callable, Iterable

from muster_core.features import FEATURE_NAMES
from muster_metadata.operator.initialise import Initialised, InitialiseError, initialise
from muster_runtime.errors import StartupError


class InitError(StartupError):
    """The log was not initialised; nothing that existed was changed."""


def _say(waiting: str) -> None:
    sys.stderr.write(f"{waiting}\n")
    sys.stderr.flush()


async def initialise_log(
    url: str,
    shard_count: int,
    cluster_id: str = "",
    waiting: Callable[[str], None] = _say,
    features: Iterable[str] = FEATURE_NAMES,
) -> Initialised:
    """Writes what is missing of a cluster's log; repeated, it changes nothing.

    Args:
        url: `redis://host:port,host:port,…`.
        shard_count: cannot be changed later.
        cluster_id: empty: the existing one, or a new one.
        waiting: called each second with the nodes that do not answer yet; prints to standard error if absent.
        features: names of the features that a new cluster begins with.

    Raises:
        InitError: the nodes have another cluster or number of shards, or too few of them answer.
    """
    try:
        return await initialise(url, shard_count, cluster_id or None, waiting=waiting, features=features)
    except (InitialiseError, ValueError) as error:
        raise InitError(str(error)) from error


def in_words(made: Initialised) -> str:
    """The output of `init`."""
    lines = [f"cluster {made.cluster_id} with {made.shard_count} shards"]
    lines.append(
        f"initialised: node {', '.join(map(str, made.made))}"
        if made.made
        else "nothing to do: it is there already"
    )
    if made.left:
        lines.append(f"left alone, to be rebuilt from the others: node {', '.join(map(str, made.left))}")
    return "\n".join(lines)

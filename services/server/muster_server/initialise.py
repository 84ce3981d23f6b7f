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
        shard_count: fixed for ever.
        cluster_id: empty: the one that stands there, else a new one.
        waiting: told each second which nodes do not answer yet; on standard error if absent.
        features: names of what a new cluster begins with.

    Raises:
        InitError: another cluster or number of shards stands there, or too few nodes answer.
    """
    try:
        return await initialise(url, shard_count, cluster_id or None, waiting=waiting, features=features)
    except (InitialiseError, ValueError) as error:
        raise InitError(str(error)) from error


def in_words(made: Initialised) -> str:
    """What `init` tells."""
    lines = [f"cluster {made.cluster_id} with {made.shard_count} shards"]
    lines.append(
        f"initialised: node {', '.join(map(str, made.made))}"
        if made.made
        else "nothing to do: it is there already"
    )
    if made.left:
        lines.append(f"left alone, to be rebuilt from the others: node {', '.join(map(str, made.left))}")
    return "\n".join(lines)

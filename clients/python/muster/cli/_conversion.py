"""`muster groups convert`."""

from enum import StrEnum
from typing import Annotated

import typer

from muster.cli._output import Servers, ask, say

_HELP = """Make a group with members one of the other kind, while they work.

incremental: nobody gets or loses anything, and nothing stops. classic: the group rebalances; what members
have stays theirs until all have joined again, or their time is up. Says why where it cannot be, for instance
because a member can only be of the other kind; then nothing changes.

What is set as `convert` does not keep it from that, and goes on to count: where it is auto or always, a
classic group becomes incremental again by itself when all its members can. `muster groups set GROUP
convert=never` before that keeps it classic. Needs the right `admin` of the group.

\b
muster groups convert orders classic --reason "release 42 is rolled back"
"""


class Kind(StrEnum):
    """What a group can be."""

    CLASSIC = "classic"
    INCREMENTAL = "incremental"


def convert(
    group_id: Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")],
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="classic or incremental.")],
    reason: Annotated[str, typer.Option(help="Why; the group's history shows it.")] = "",
    servers: Servers = None,
) -> None:
    """See `_HELP`."""
    is_changed = ask(servers, lambda cluster: cluster.convert_group(group_id, kind.value, reason))
    say(f"group {group_id} is {kind.value} {'now' if is_changed else 'already'}")


convert.__doc__ = _HELP

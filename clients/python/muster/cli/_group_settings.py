"""`muster groups set`."""

from collections.abc import Mapping
from typing import Annotated

import typer

from muster._cluster.group_settings import NAMES, SettingValue, value_of
from muster._errors import SettingsError
from muster.cli._output import Format, Output, Servers, ask, say, show_json

_HELP = """Set what holds for one group, instead of what its coordinators are set to.

It is stored with the group and holds until it is taken back with --unset, or the group is deleted.
A group that does not exist yet is made, so that its first member finds the settings. Needs the right
`admin` of the group.

\b
assignor                uniform or range: who shares the partitions of an incremental group out,
                        whatever its members prefer. The group is assigned anew.
assignment_interval_ms  pause between two assignments; 0: none, -1: as the coordinator finds best.
session_timeout_ms      how long a member may be silent. Counts when it joins again, since it lives by
                        the time that it was told.
heartbeat_interval_ms   when members without a stream are to send a heartbeat; below the session.
disconnect_grace_ms     how long a member may stay away when its stream broke; as the session.
convert                 never, auto or always: when a classic group becomes an incremental one
                        while its members work.
hold                    true: no partition is taken from a member that lives, as during a deployment;
                        those of members that left are given out. false: the group is balanced again.

\b
muster groups set orders hold=true
muster groups set orders session_timeout_ms=60000 disconnect_grace_ms=20000
muster groups set orders hold=false --unset session_timeout_ms
"""


def set_settings(
    group_id: Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE…", help="What to set.", show_default=False)
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Take it back: the coordinator's own setting holds again."),
    ] = None,
    servers: Servers = None,
    output: Format = Output.TABLE,
) -> None:
    """See `_HELP`."""
    try:
        wanted = dict(_pair(text) for text in settings or ())
    except SettingsError as error:
        raise typer.BadParameter(str(error), param_hint="NAME=VALUE") from None
    for name in unset or ():
        if name not in NAMES:
            text = f"{name}: is no setting of a group; there are {', '.join(NAMES)}"
            raise typer.BadParameter(text, param_hint="--unset")
    if len(wanted) < len(settings or ()):
        raise typer.BadParameter("give each setting once", param_hint="NAME=VALUE")
    if both := sorted(wanted.keys() & set(unset or ())):
        raise typer.BadParameter(f"{both[0]} is to be set, too", param_hint="--unset")
    if not wanted and not unset:
        raise typer.BadParameter("give NAME=VALUE or --unset NAME", param_hint="NAME=VALUE")
    now = ask(servers, lambda cluster: cluster.alter_group_settings(group_id, wanted, unset or ()))
    if output is Output.JSON:
        show_json(now)
    else:
        say(f"group {group_id}: {in_words(now) or 'nothing is set, its coordinators decide'}")


set_settings.__doc__ = _HELP


def _pair(text: str) -> tuple[str, SettingValue]:
    name, separator, value = text.partition("=")
    if not separator:
        raise SettingsError(text, "must be NAME=VALUE")
    return name, value_of(name, value)


def in_words(settings: Mapping[str, SettingValue]) -> str:
    """What is set, as it is given to the command; empty: nothing."""
    return ", ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in settings.items()
    )

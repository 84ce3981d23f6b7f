"""Writes docs/settings.md from the classes that read the settings, or checks that it is up to date."""

import argparse
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

from muster_runtime.logs import LogSettings
from muster_runtime.rpc.quotas.settings import QuotaSettings
from muster_runtime.rpc.server import ServerSettings
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.setting_facts import SettingFacts, facts
from muster_runtime.settings import Settings
from muster_server.roles import ORDER, settings_classes

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

HEAD = """# Settings

<!-- Written by `./x settings` from the code; do not edit. -->

All settings are environment variables, read once, at the start. `muster-server config` shows what holds in an
environment. A variable that begins with `MUSTER_` and that nobody knows is refused with the nearest name that
is known; so is a value out of its range. An empty variable counts as unset. A *secret* can stand in a file
instead: `<NAME>_FILE` names it.

One environment may serve processes of several roles: each reads what it needs, and knows the others' names.
"""

FOOT = """## Around the services

| variable | read by | meaning |
|---|---|---|
| `MUSTER_SERVERS` | the Python client, `muster` | addresses of discovery; `localhost:7400` by default |
| `MUSTER_TLS_…_FILE` | also the Python client, `muster` | certificates, PEM; plain text without any |
| `MUSTER_TOKEN_FILE` | the Python client, `muster` | file of a token that says who they are |
| `MUSTER_TOKEN_PLAIN_TEXT` | the Python client, `muster` | whether it may be sent without TLS; `false` |
| `MUSTER_ROLLOUT_HOLD_MS` | the Python client | `rollout_hold_ms` of its members; 0 by default |
| `MUSTER_HOST` | `docker-compose.yml` | what workers outside of Docker reach the coordinators at |
| `MUSTER_VERSION` | `docker-compose.yml` | tag of the images |
| `MUSTER_OTLP` | `docker-compose.yml` | collector of traces; none by default ([metrics.md](metrics.md)) |
| `MUSTER_PYTHON` | `./x` | the Python that the environment is made with |

The times of members (`session_timeout_ms`, `rebalance_timeout_ms`, `disconnect_grace_ms`) are no settings of
the services: each member says its own when it joins. [clients.md](clients.md) has the Python client's.
"""


def group(title: str, classes: Iterable[type[Settings]]) -> str:
    """A section: each class with its variables as a table."""
    parts = [f"## {title}\n"]
    for settings_class in classes:
        parts.append(f"### `{settings_class.variable('')}…`\n\n{inspect.getdoc(settings_class) or ''}\n")
        parts.append("| variable | type | default | unit | range | meaning |\n|---|---|---|---|---|---|")
        parts.append("\n".join(map(row, facts(settings_class))) + "\n")
    return "\n".join(parts)


def row(fact: SettingFacts) -> str:
    """One line of a table."""
    default = f"`{fact.default}`" if fact.default else "–"
    cells = (f"`{fact.name}`", fact.kind, default, fact.unit, fact.range, fact.description)
    return "| " + " | ".join(cell.replace("|", "\\|") or " " for cell in cells) + " |"


def page() -> str:
    """The whole page."""
    everything = settings_classes()
    own = {role: settings_classes([role]) for role in ORDER}
    shared = [one for one in everything if all(one in of_role for of_role in own.values())]
    first = [one for one in (LogSettings, ServerSettings, QuotaSettings, *Trust.SETTINGS) if one in shared]
    sections = [
        group(role.capitalize(), [one for one in own[role] if one not in shared]) for role in reversed(ORDER)
    ]
    rest = first + [one for one in shared if one not in first]
    return "\n".join([HEAD, *sections, group("Every process", rest), FOOT])


def main() -> None:
    """Entry point of `./x settings` and of the check."""
    parser = argparse.ArgumentParser(prog="./x settings", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if it would change")
    options = parser.parse_args()
    fresh = page()
    if not options.check:
        PAGE.write_text(fresh)
        print(f"settings: {fresh.count('| `MUSTER_')} variables written to {PAGE.name}")
    elif not PAGE.exists() or PAGE.read_text() != fresh:
        sys.exit("settings: docs/settings.md is not up to date, run ./x settings")
    else:
        print("settings: docs/settings.md is up to date")


if __name__ == "__main__":
    main()

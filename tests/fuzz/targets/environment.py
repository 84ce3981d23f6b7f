"""Any environment: settings are read or refused by name, and what was read is read again from what is shown.

Nothing but `SettingsError` is raised, and a secret is in no error.
"""

import os
from unittest.mock import patch

from muster_coordinator.settings import (
    CoordinatorSettings,
    FaultSettings,
    GroupSettings,
    SessionSettings,
    ShardLogSettings,
)
from muster_discovery.settings import DiscoverySettings
from muster_metadata.settings import MetadataSettings
from muster_runtime.effective import as_json, as_table, effective
from muster_runtime.logs import LogSettings
from muster_runtime.rpc.server import ServerSettings
from muster_runtime.rpc.trust.inside import InternalSettings
from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.settings import SettingsError, load
from muster_runtime.telemetry.settings import TelemetrySettings

from fuzz.draw import Draw
from fuzz.target import Broken

LONGEST_BYTES = 1_024

CLASSES = (
    *(CoordinatorSettings, FaultSettings, GroupSettings, SessionSettings, ShardLogSettings),
    *(DiscoverySettings, MetadataSettings, LogSettings, InternalSettings, ServerSettings, TlsSettings),
    TelemetrySettings,
)
_VALUES = (
    *("", "0", "1", "-1", "100", "1000", "5000", "true", "no", "1e400", "nan", "inf", "0x10", "1_000", " 7 "),
    *("9" * 4_000, "9" * 5_000, "[]", "{}", "null", "\u0661", "tcp://10.0.0.1:7400", "localhost", "a:1,b:2"),
    *("redis://localhost:6379/0", "redis://:secret@[::1]:6379", "rediss://h:1,h:2,h:3", "10.0.0.0/8", "::/0"),
    *("[::1]:7400", ":7400", "h:99999", "http://h:4317", "https://[", "/dev/null", "/", "/proc/self/mem"),
)
SECRET = "do-not-show"


def play(data: bytes) -> None:
    source = Draw(data)
    wanted = source.choice(CLASSES)
    names = sorted(wanted.variables())
    environment: dict[str, str] = {}
    while not source.over and len(environment) < 20:
        name = source.choice(names) if source.random() < 0.9 else source.choice(_STRANGE)
        environment[name] = _value(source)
    secret = {name: SECRET for name in environment if "PASSWORD" in name}
    with patch.dict(os.environ, environment | secret, clear=True):
        try:
            settings = load(wanted, known=CLASSES)
        except SettingsError as error:
            if secret and SECRET in str(error):
                raise Broken(f"a secret is shown: {error}") from None
            if not error.problems:
                raise Broken("refused without a reason") from None
            return
        shown = effective([settings])
        if SECRET in as_table(shown) + as_json(shown):
            raise Broken("a secret is shown")
    masked = {name for name in wanted.variables() if f"{name}_FILE" in wanted.variables()}
    again = {one.name: one.value for one in shown if one.name not in masked}
    kept = {name: value for name, value in (environment | secret).items() if name not in again}
    with patch.dict(os.environ, again | kept, clear=True):
        if load(wanted, known=CLASSES).model_dump() != settings.model_dump():
            raise Broken("what is shown is read as something else")


_STRANGE = (
    *("MUSTER_", "muster_log_level", "MUSTER_COORDINATOR_SERVICE_HOST", "MUSTER_COORDINATOR_PORT_7410_TCP"),
    *("MUSTER_COORDINATOR_PORT", "MUSTER_NOTHING", "MUSTER_\u00e9", "MUSTER_SERVERS"),
)


def _value(source: Draw) -> str:
    if source.random() < 0.7:
        return source.choice(_VALUES)
    text = source.take(source.randrange(40)).decode("utf-8", "surrogateescape")
    return text.replace("\0", "")

"""What a process asks before it answers a caller."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import structlog
from muster_protos.muster.internal.v1 import process_pb2
from pydantic import Field, PrivateAttr
from pydantic_settings import SettingsConfigDict

from muster_runtime.rpc._files import RenewedFiles
from muster_runtime.rpc.access.rules import AccessError, Decision, Granted, Rules
from muster_runtime.rpc.access.trail import Trail
from muster_runtime.rpc.access.verbs import Kind, Verb
from muster_runtime.settings import Settings, SettingsError

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
"""How often a running process looks whether the file has changed."""

_IDENTITIES_MAX = 1_024
TOLD_MAX = 20
"""Of the things of one call that are refused the trail names the first ones, and counts the others."""


class AccessSettings(Settings):
    """Who may do what. Without a file everybody who can reach a port may do everything."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_ACCESS_")

    file: Path | None = Field(
        default=None,
        description=(
            "Rules of who may do what, TOML (docs/access.md): what none of them allows is refused. The file "
            "may be changed while the process runs; one that cannot be used changes nothing."
        ),
    )

    _files: RenewedFiles | None = PrivateAttr(default=None)

    def model_post_init(self, _: object) -> None:
        """Prepares to read the file; it is not read yet."""
        if self.file is not None:
            self._files = RenewedFiles("access_rules", {self.variable("file"): self.file}, self._check)

    def content(self) -> bytes | None:
        """The content that the file last had when it could be used; None: there is no file.

        Raises:
            SettingsError: it cannot be used, and never could.
        """
        return None if self._files is None else next(iter(self._files.read().values()))

    @property
    def is_current(self) -> bool:
        """Whether `content` is what the file has now; if not, its present content cannot be used."""
        return self._files is None or not self._files.refuses

    def _check(self, content: Mapping[str, bytes]) -> None:
        ((variable, text),) = content.items()
        try:
            Rules.parse(text)
        except AccessError as error:
            raise SettingsError([f"{variable}={str(self.file)!r}: {p}" for p in error.problems]) from None


class Access:
    """Answers, from the file as it is, whether an identity may do something.

    Args:
        settings: where the file is; absent: everything is allowed.

    Raises:
        SettingsError: the file cannot be used.

    Attributes:
        refused: how many calls were refused, by verb.
        version: changes when other rules are in force.
        trail: records refusals.
    """

    def __init__(self, settings: AccessSettings | None = None) -> None:
        self._settings = settings
        self._content = None if settings is None else settings.content()
        self._rules = None if self._content is None else Rules.parse(self._content)
        self._granted: dict[str, Granted] = {}
        self.refused: Counter[Verb] = Counter()
        self.version = 0
        self.trail = Trail()

    @property
    def on(self) -> bool:
        """Whether there are rules; else everything is allowed."""
        return self._rules is not None

    @property
    def is_current(self) -> bool:
        """Whether the rules are those of the file as it is now."""
        return self._settings is None or self._settings.is_current

    @property
    def state(self) -> process_pb2.RightsState.ValueType:
        """The state of the rights, for operators."""
        if not self.on:
            return process_pb2.RIGHTS_STATE_OFF
        return process_pb2.RIGHTS_STATE_ON if self.is_current else process_pb2.RIGHTS_STATE_OUTDATED

    def __len__(self) -> int:
        """How many rules there are."""
        return 0 if self._rules is None else len(self._rules)

    def allows(self, who: str, verb: Verb, kind: Kind, name: str = "", where: str = "") -> bool:
        """Whether an identity may do something; if not, the refusal is counted and recorded in the trail.

        Args:
            who: name of the identity, that of the call which is served now.
            verb: what it does.
            kind: with what.
            name: of the group or topic.
            where: the address that the call came from; empty: not known.
        """
        allowed = self.may(who, verb, kind, name)
        if not allowed:
            self.refused[verb] += 1
            what = f"{kind}:{name}" if name else str(kind)
            self.trail.refused(verb, what, where, lambda: self.explain(who, verb, kind, name).reason)
        return allowed

    def allows_each(
        self, who: str, verb: Verb, kind: Kind, names: Collection[str], where: str = ""
    ) -> list[bool]:
        """As `allows`, for many things of one call: the trail names the first that are refused."""
        allowed = self.may_each(who, verb, kind, names)
        refused = [name for name, is_allowed in zip(names, allowed, strict=True) if not is_allowed]
        self.refuse_each(who, verb, kind, refused, where)
        return allowed

    def refuse_each(self, who: str, verb: Verb, kind: Kind, refused: Sequence[str], where: str = "") -> None:
        """Counts and records what `may_each` has found of one call that is refused for it."""
        for name in refused[:TOLD_MAX]:
            self.allows(who, verb, kind, name, where)
        if (more := len(refused) - TOLD_MAX) > 0:
            self.refused[verb] += more
            self.trail.more_refused(verb, f"{kind}:…", where, more)

    def may(self, who: str, verb: Verb, kind: Kind, name: str = "") -> bool:
        """As `allows`, but a no refuses nothing: a list shows less, or there is another way."""
        granted = self._of(who)
        return granted is None or (verb, kind, name) in granted

    def may_each(self, who: str, verb: Verb, kind: Kind, names: Collection[str]) -> list[bool]:
        """As `may`, for many things."""
        granted = self._of(who)
        if granted is None:
            return [True] * len(names)
        return [(verb, kind, name) in granted for name in names]

    def sees(self, who: str, kind: Kind, name: str = "") -> bool:
        """Whether a list shows a group, a topic or the cluster to an identity."""
        return self.may(who, Verb.DESCRIBE, kind, name)

    def explain(self, who: str, verb: Verb, kind: Kind, name: str = "") -> Decision:
        """Decides, and says why."""
        if self._rules is None:
            return Decision(True, 0, "there is no file of rights, so everything is allowed")
        return self._rules.decide(who, verb, kind, name)

    def _of(self, who: str) -> Granted | None:
        """What an identity has been given; None: there are no rules."""
        if self._rules is None:
            return None
        granted = self._granted.get(who)
        if granted is None:
            if len(self._granted) >= _IDENTITIES_MAX:
                self._granted.clear()
            granted = self._granted[who] = self._rules.granted(who)
        return granted

    async def follow(self, *, tells: bool = True) -> None:
        """Reads the file again whenever it has changed, until it is cancelled.

        Args:
            tells: whether changes are recorded in the trail; of the ports of a process one is enough.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.renew(tells=tells)

    async def renew(self, *, tells: bool = True) -> bool:
        """Reads the file again if it has changed; returns whether other rules are in force."""
        if self._settings is None or self._rules is None:
            return False
        content = await asyncio.to_thread(self._settings.content)
        if content is None or content == self._content:
            return False
        rules = await asyncio.to_thread(Rules.parse, content)
        self._content, self._rules = content, rules
        self.version += 1
        self._granted.clear()
        if tells:
            self.trail.rules_changed(str(self._settings.file), sha256(content).hexdigest(), len(rules))
        return True

"""The quotas of a server: finds who calls, and counts."""

import asyncio
import functools
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import unquote

import structlog

from muster_runtime import clock
from muster_runtime.logs import Seldom
from muster_runtime.rpc.identity import current_identity
from muster_runtime.rpc.quotas.party import Connection, Party, Quota, serve_on
from muster_runtime.rpc.quotas.rules import OF_GROUPS, Rule, parse
from muster_runtime.rpc.quotas.settings import QuotaSettings
from muster_runtime.rpc.quotas.work import WorkInHand
from muster_runtime.rpc.refusals import ResourceExhausted
from muster_runtime.rpc.unread import Cuts

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
"""How often a running process looks whether the file of exceptions has changed."""

_SWEEP_S = 5.0
_CONNECTIONS_MAX = 100_000
_KNOWN_GROUPS = 16_384
_LOCAL = "local"


class Quotas:
    """What the callers of one server may ask for.

    Args:
        settings: the quotas; the environment's if absent.
        now_s: the clock.
        cuts: ends connections; those of this process if absent.

    Raises:
        SettingsError: the file of exceptions cannot be used.
    """

    def __init__(
        self,
        settings: QuotaSettings | None = None,
        now_s: Callable[[], float] = lambda: clock.boot_ms() / 1_000,
        cuts: Cuts | None = None,
    ) -> None:
        self._settings = settings = QuotaSettings() if settings is None else settings
        self._content = settings.content()
        self.limits = {quota.value: int(getattr(settings, quota.value)) for quota in Quota}
        self._of_callers: tuple[Rule, ...] = ()
        self._groups: tuple[Party, ...] = ()
        self._now_s = now_s
        self._work = WorkInHand(settings.work_bytes)
        self._cuts = Cuts() if cuts is None else cuts
        self._connections: dict[tuple[str, str, str], Connection] = {}
        self._parties: dict[str, Party] = {}
        self._party_of_group = functools.lru_cache(_KNOWN_GROUPS)(self._find_party_of_group)
        self._sweeper: asyncio.TimerHandle | None = None
        self._lines = Seldom(now_s)
        self.refusals: dict[Quota, int] = dict.fromkeys(Quota, 0)
        """How many there were, by quota."""
        self.behind_proxies: Callable[[Any], str] = lambda _: ""
        """Finds the host of a call that may have come through a proxy; empty: who connected is the host."""
        self._use(parse(self._content))

    async def follow(self) -> None:
        """Reads the file of exceptions again whenever it has changed, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.renew()

    async def renew(self) -> bool:
        """Reads the file again if it has changed; returns whether other rules are in force."""
        content = await asyncio.to_thread(self._settings.content)
        if content == self._content:
            return False
        rules = await asyncio.to_thread(parse, content)
        self._content = content
        self._use(rules)
        return True

    def _use(self, rules: Sequence[Rule]) -> None:
        """Puts rules in force; who has used something up has used it up still."""
        self._of_callers = _longest_first(rule for rule in rules if rule.caller is not None)
        before = {party.name: party for party in self._groups}
        groups = []
        for rule in _longest_first(rule for rule in rules if rule.groups is not None):
            name, limits = rule.groups or "", _of_groups(rule)
            party = before.pop(name, None)
            if party is None:
                party = Party(name, limits, self._now_s, self._count, is_groups=True)
            else:
                party.change(limits)
            groups.append(party)
        self._groups = tuple(groups)
        self._party_of_group.cache_clear()
        for party in self._parties.values():
            party.change(self._limits_of(party.name))
        for connection in self._connections.values():
            connection.change()

    def enter(self, context: Any) -> None:
        """A call of a public service begins: its task gets a connection, which counts it.

        Args:
            context: the call, as grpc gives it to a servicer.

        Raises:
            ResourceExhausted: the caller has too many, or asks too often.
        """
        connection = self._connection(context.peer(), self.behind_proxies(context))
        task = asyncio.current_task()
        assert task is not None
        connection.enter(task)
        serve_on(connection)

    def given_up(self, context: Any) -> None:
        """A call was given up by its caller before it was answered: too many cost the connection.

        Args:
            context: the call, in its task.
        """
        peer: str = context.peer()
        host = self.behind_proxies(context)
        try:
            connection = self._connection(peer, host)
        except ResourceExhausted:
            return
        if connection.reset() and not host:  # the connection of a proxy is that of many callers
            self._cuts.soon(peer, given_up=connection.resets)

    def _connection(self, peer: str, host: str) -> Connection:
        name = current_identity().name
        return self._connections.get((peer, host, name)) or self._add(peer, host, name)

    def take_of_groups(self, quota: Quota, group_id: str, amount: int) -> None:
        """A call asks something of a group, whose prefix may have a quota.

        Raises:
            ResourceExhausted: it is used up.
        """
        party = self._party_of_group(group_id)
        if party is not None:
            party.take(quota, amount, self._now_s())

    @property
    def has_file(self) -> bool:
        """Whether there is a file of exceptions, which may change."""
        return self._settings.file is not None

    @property
    def has_groups(self) -> bool:
        """Whether any groups have a quota."""
        return bool(self._groups)

    def parties(self) -> Iterator[Party]:
        """Prefixes of groups, and all who called lately."""
        yield from self._groups
        yield from self._parties.values()

    def close(self) -> None:
        """Forgets no more callers: the server ends."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    def sweep(self, *, full: bool = False) -> None:
        """Forgets connections and callers that have nothing to be remembered.

        Args:
            full: whether there is no room: then all that have no open call are forgotten.
        """
        now_s = self._now_s()
        for key in [
            key
            for key, one in self._connections.items()
            if one.is_at_rest(now_s) or (full and not one.open_calls)
        ]:
            self._connections.pop(key).forget()
        for party in self.parties():
            party.look(now_s)
        used = {id(connection.party) for connection in self._connections.values()}
        for name in [
            name for name, one in self._parties.items() if id(one) not in used and one.is_at_rest(now_s)
        ]:
            del self._parties[name]

    def _add(self, peer: str, host: str, name: str) -> Connection:
        if len(self._connections) >= _CONNECTIONS_MAX:
            self.sweep(full=True)
            if len(self._connections) >= _CONNECTIONS_MAX:
                self._count(Quota.CONNECTIONS)
                raise ResourceExhausted(
                    f"this server knows {_CONNECTIONS_MAX:,} connections; try again", 1_000
                )
        who = name or (network_of(host) if host else host_of(peer))
        party = self._parties.get(who)
        if party is None:
            party = self._parties[who] = Party(who, self._limits_of(who), self._now_s, self._count)
        connection = self._connections[peer, host, name] = Connection(party, self._work)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep_now_and_then)
        return connection

    def _limits_of(self, who: str) -> dict[str, int]:
        for rule in self._of_callers:
            if who.startswith(rule.caller or ""):
                return {**self.limits, **rule.limits()}
        return self.limits

    def _find_party_of_group(self, group_id: str) -> Party | None:
        return next((party for party in self._groups if group_id.startswith(party.name)), None)

    def _sweep_now_and_then(self) -> None:
        self._sweeper = None
        self.sweep()
        if self._connections or self._parties:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep_now_and_then)

    def _count(self, quota: Quota) -> None:
        self.refusals[quota] += 1
        if refused := self._lines.count():
            worst = max(self.parties(), key=lambda party: party.refused_at_s or 0, default=None)
            caller = worst.name if worst is not None else ""
            log.warning("quota_refused", quota=quota.value, caller=caller, refused=refused)


def host_of(peer: str) -> str:
    """The host in what grpc calls a peer, of IPv6 its /64 network; `local` for a local socket."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return _LOCAL
    return network_of(unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0])


def network_of(text: str) -> str:
    """The host that an address stands for: of IPv6 its /64 network; what is no address stands for itself."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    if not isinstance(address, IPv6Address):
        return text
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


def _longest_first(rules: Iterator[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=lambda rule: len(rule.caller or rule.groups or ""), reverse=True))


def _of_groups(rule: Rule) -> dict[str, int]:
    return dict.fromkeys(OF_GROUPS, 0) | rule.limits()

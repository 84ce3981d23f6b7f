"""The quotas of a server: finds who calls, and counts."""

import asyncio
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import unquote

import structlog

from muster_runtime import clock
from muster_runtime.logs import Seldom
from muster_runtime.rpc.identity import current_identity
from muster_runtime.rpc.quotas.connection import Connection, serve_on
from muster_runtime.rpc.quotas.party import Party, Quota
from muster_runtime.rpc.quotas.rules import OF_GROUPS, Rule, parse
from muster_runtime.rpc.quotas.settings import QuotaSettings
from muster_runtime.rpc.quotas.totals import Total, Totals
from muster_runtime.rpc.quotas.work import Decoding, WorkInHand
from muster_runtime.rpc.refusals import ResourceExhausted, Unavailable
from muster_runtime.rpc.unread import Cuts

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
"""How often a running process looks whether the file of exceptions has changed."""

_SWEEP_S = 5.0
_SWEPT_AT_ONCE = 200
_SWEEP_PAUSE_S = 0.005
_RETRY_MS = 1_000
_CONNECTIONS_MAX = 100_000
_KNOWN_GROUPS = 16_384
_LOCAL = "local"

_TOTALS: Mapping[Quota, Callable[[Total], int]] = {
    Quota.TOTAL_GROUPS: lambda total: total.groups,
    Quota.TOTAL_MEMBERS: lambda total: total.members,
    Quota.TOTAL_PARTITIONS: lambda total: total.partitions,
}
"""What is counted for each quota of what somebody has in all."""


class Quotas:
    """What the callers of one server may ask for.

    Args:
        settings: the quotas; the environment's if absent.
        now_s: the clock.
        cuts: ends connections; those of this process if absent.

    Attributes:
        of_callers: the groups of this process, by the name of the caller that they count for.
        of_prefixes: those of prefixes with a limit of groups, or of what is in them.
        rules_number: goes up with each change of the rules, which empties `of_prefixes`.

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
        self._decoding = Decoding(self._work.most_bytes)
        self._cuts = Cuts() if cuts is None else cuts
        self._connections: dict[tuple[str, str, str], Connection] = {}
        self._parties: dict[str, Party] = {}
        self._party_of_group = functools.lru_cache(_KNOWN_GROUPS)(self._find_party_of_group)
        self._sweeper: asyncio.TimerHandle | None = None
        self.of_callers = Totals()
        self.of_prefixes = Totals()
        self.rules_number = 0
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
        """Puts rules in force; what a caller has used up stays used up."""
        self._of_callers = _longest_first(rule for rule in rules if rule.caller is not None)
        before = {party.name: party for party in self._groups}
        groups = []
        for rule in _longest_first(rule for rule in rules if rule.groups is not None):
            name, limits = rule.groups or "", _of_groups(rule)
            party = before.pop(name, None)
            if party is None:
                party = Party(name, limits, self._now_s, self._count, is_groups=True, ruled=OF_GROUPS)
            else:
                party.change(limits, OF_GROUPS)
            groups.append(party)
        self._groups = tuple(groups)
        self._party_of_group.cache_clear()
        self.of_prefixes.clear()
        self.rules_number += 1
        for party in self._parties.values():
            party.change(*self._limits_of(party.name))
        for connection in self._connections.values():
            connection.change()

    def enter(self, context: Any) -> None:
        """Counts a call of a public service that begins, and makes its connection that of the current task.

        Args:
            context: the call, as grpc gives it to a servicer.

        Raises:
            ResourceExhausted: the caller has too many, or asks too often.
            Unavailable: its connection is being ended, with thousands of calls that were given up, or it is
                another one that has the port.
        """
        connection = self._connection(context.peer(), self.behind_proxies(context))
        if connection.ended:
            raise Unavailable("a connection from this port is being ended; try again", _RETRY_MS)
        task = asyncio.current_task()
        assert task is not None
        connection.enter(task)
        serve_on(connection)

    def given_up(self, context: Any) -> None:
        """Counts a call that its caller gave up before it was answered; too many cost it the connection.

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
            connection.end()
            self._cuts.soon(peer, given_up=connection.resets)

    def _connection(self, peer: str, host: str) -> Connection:
        name = current_identity().name
        return self._connections.get((peer, host, name)) or self._add(peer, host, name)

    def take_of_groups(self, quota: Quota, group_id: str, amount: int) -> None:
        """Takes from the quota of a group's prefix, if that has one.

        Raises:
            ResourceExhausted: it is used up.
        """
        party = self._party_of_group(group_id)
        if party is not None:
            party.take(quota, amount, self._now_s())

    def may_have_group(self, party: Party | None, group_id: str, *, counts_for_prefix: bool) -> None:
        """Checks that whoever a new group will count for may have one more.

        Args:
            party: who calls; None: nobody counts.
            group_id: the group.
            counts_for_prefix: whether the caller may begin it, so that it takes the room of others.

        Raises:
            ResourceExhausted: it would be one too many.
        """
        if party is not None:
            _refuse_above(party, self.of_callers)
        of_group = self._party_of_group(group_id) if counts_for_prefix else None
        if of_group is not None:
            _refuse_above(of_group, self.of_prefixes)

    def has_group(self, who: str, group_id: str) -> None:
        """Counts a group that the process has from now on.

        Args:
            who: the name of the caller that it counts for; empty: nobody knows.
            group_id: the group.
        """
        if who:
            self.of_callers.add(who, group_id)
        party = self._party_of_group(group_id) if self.has_groups else None
        if party is not None and any(party.limits[quota.value] for quota in _TOTALS):
            self.of_prefixes.add(party.name, group_id)

    def has_no_group(self, group_id: str) -> None:
        """Counts a group no longer: the process does not have it any more."""
        self.of_callers.remove(group_id)
        self.of_prefixes.remove(group_id)

    def resized(self, group_id: str, members: int, partitions: int) -> None:
        """A group has so many members, and so many partitions with a committed offset, from now on."""
        for totals in (self.of_callers, self.of_prefixes):
            totals.resize(group_id, members, partitions)

    def found(self, group_id: str, members: int, partitions: int) -> None:
        """As `resized`, of what no call has brought now: it was there before it was counted."""
        for totals in (self.of_callers, self.of_prefixes):
            totals.resize(group_id, members, partitions, brought=False)

    def full_with(self, quota: Quota, group_id: str, more: int, begun_by: str = "") -> Party | None:
        """Who has no room for what a call would add to a group; None: there is room.

        Args:
            quota: of members, or of partitions.
            group_id: the group.
            more: how many would come, at least one.
            begun_by: whom the group is going to count for, where it counts for nobody yet.
        """
        caller, count = self._counts_for(group_id, begun_by), _TOTALS[quota]
        if caller:
            known = self._parties.get(caller)
            limits = self._limits_of(caller)[0] if known is None else known.limits
            if 0 < limits[quota.value] < count(self.of_callers.with_coming(caller)) + more:
                return self._party(caller)
        prefix = self._party_of_group(group_id) if self.has_groups else None
        if prefix is None:
            return None
        has = count(self.of_prefixes.with_coming(prefix.name))
        return prefix if 0 < prefix.limits[quota.value] < has + more else None

    def expect(self, quota: Quota, group_id: str, more: int, begun_by: str = "") -> Callable[[], None] | None:
        """Counts what a call may add to a group that is about to be answered; see `full_with`.

        Returns:
            What is called once it was answered, or given up; None: it counts for nobody.
        """
        members, partitions = (more, 0) if quota is Quota.TOTAL_MEMBERS else (0, more)
        prefix = self._party_of_group(group_id) if self.has_groups else None
        caller = self._counts_for(group_id, begun_by)
        of_caller = self.of_callers.expect(caller, members, partitions) if caller else None
        if prefix is None:
            return of_caller
        of_prefix = self.of_prefixes.expect(prefix.name, members, partitions)

        def ended() -> None:
            of_prefix()
            if of_caller is not None:
                of_caller()

        return ended

    def _counts_for(self, group_id: str, begun_by: str) -> str:
        return self.of_callers.whose(group_id) or begun_by

    def totals_of(self, party: Party) -> dict[Quota, int]:
        """What a caller, or a prefix, has in all, by quota."""
        total = (self.of_prefixes if party.is_groups else self.of_callers).of(party.name)
        return {quota: count(total) for quota, count in _TOTALS.items()}

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
        """Stops forgetting callers: the server ends."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    def sweep(self, *, full: bool = False) -> None:
        """Forgets connections and callers that have nothing to be remembered.

        Args:
            full: whether there is no room: then all that have no open call are forgotten.
        """
        for _ in self._sweep_in_steps(full=full):
            pass

    def _sweep_in_steps(self, *, full: bool = False) -> Iterator[None]:
        """As `sweep`, some at a time: of twenty thousand callers it takes a quarter of a second."""
        for number, key in enumerate([*self._connections], 1):
            connection = self._connections.get(key)
            if connection is not None and (
                connection.is_at_rest(self._now_s()) or (full and not connection.open_calls)
            ):
                self._connections.pop(key).forget()
            if number % _SWEPT_AT_ONCE == 0:
                yield
        for number, party in enumerate([*self.parties()], 1):
            now_s = self._now_s()
            party.look(now_s)
            is_caller = self._parties.get(party.name) is party  # no prefix, and nobody has come after it
            if is_caller and not party.known and party.is_at_rest(now_s):
                del self._parties[party.name]
            if number % _SWEPT_AT_ONCE == 0:
                yield

    def _add(self, peer: str, host: str, name: str) -> Connection:
        if len(self._connections) >= _CONNECTIONS_MAX:
            self.sweep(full=True)
            if len(self._connections) >= _CONNECTIONS_MAX:
                self._count(Quota.CONNECTIONS)
                raise ResourceExhausted(
                    f"this server knows {_CONNECTIONS_MAX:,} connections; try again", 1_000
                )
        who = name or (network_of(host) if host else host_of(peer))
        made = self._connections[peer, host, name] = Connection(self._party(who), self._work, self._decoding)
        return made

    def _party(self, who: str) -> Party:
        party = self._parties.get(who)
        if party is None:
            limits, ruled = self._limits_of(who)
            party = self._parties[who] = Party(who, limits, self._now_s, self._count, ruled=ruled)
            if self._sweeper is None:
                self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep_now_and_then)
        return party

    def _limits_of(self, who: str) -> tuple[Mapping[str, int], Collection[str]]:
        """The limits of a caller, and which of them a rule sets."""
        for rule in self._of_callers:
            if who.startswith(rule.caller or ""):
                ruled = rule.limits()
                return {**self.limits, **ruled}, ruled.keys()
        return self.limits, ()

    def _find_party_of_group(self, group_id: str) -> Party | None:
        return next((party for party in self._groups if group_id.startswith(party.name)), None)

    def _sweep_now_and_then(self, steps: Iterator[None] | None = None) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        steps = self._sweep_in_steps() if steps is None else steps
        if next(steps, self) is None:
            self._sweeper = loop.call_later(_SWEEP_PAUSE_S, self._sweep_now_and_then, steps)
        elif self._connections or self._parties:
            self._sweeper = loop.call_later(_SWEEP_S, self._sweep_now_and_then)

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


def _refuse_above(party: Party, totals: Totals) -> None:
    limit = party.limits[Quota.TOTAL_GROUPS.value]
    if 0 < limit <= totals.of(party.name).groups:
        raise party.refusal(Quota.TOTAL_GROUPS, party.now_s())


def _of_groups(rule: Rule) -> dict[str, int]:
    return dict.fromkeys(OF_GROUPS, 0) | rule.limits()

"""States that differ only in what nobody can tell apart are walked once."""

from model.incremental.rules import Rules
from model.incremental.state import NOBODY, Bounds, Group, Message, State, put


class Canonical:
    """Finds the one state that stands for all that are alike.

    Args:
        rules: of the walk.
        bounds: of the walk.
    """

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.bounds = bounds
        self.rules = rules
        self.plain = is_plain(rules, bounds)

    def of(self, state: State) -> State:
        """The one state that stands for all that differ only in what nobody can tell apart.

        Positions and connections count by their order alone. A broken connection that has nothing more to
        say is noticed at once by both ends; where several are on it, by the coordinator at any time. Epochs
        decide nothing once all requests name join and version.
        """
        processes = list(state.processes)
        attached, dirty, seen = list(state.attached), list(state.dirty), list(state.seen)
        for who, process in enumerate(processes):
            if process.dead and not state.down[who]:
                process = process._replace(
                    conn=0, dead=False, settled=False, era=max(process.era, process.conn)
                )
            if process.mode in {"out", "stopped"}:
                process = process._replace(
                    epoch=0,
                    version=0,
                    owns=self.bounds.nothing,
                    news=None,
                    over=False,
                    ousted=False,
                    hung=False,
                )
            if attached[who] and (attached[who] != process.conn or process.dead or process.asleep):
                attached[who] = attached[who] if who in self.bounds.shared else 0
            if not attached[who]:
                dirty[who] = False
            if self.plain and process.epoch:
                process = process._replace(epoch=0)
            if who not in self.bounds.unary:
                numbers = {process.conn, process.era, seen[who], attached[who], 0}
                numbers.update(m.conn for m in state.up[who])
                numbers.update(m.conn for m in state.late if m.who == who)
                if max(numbers) >= len(numbers):
                    rank = {number: place for place, number in enumerate(sorted(numbers))}
                    attached[who], seen[who] = rank[attached[who]], rank[seen[who]]
                    process = process._replace(conn=rank[process.conn], era=rank[process.era])
                    up = tuple(m._replace(conn=rank[m.conn]) for m in state.up[who])
                    late = tuple(m._replace(conn=rank[m.conn]) if m.who == who else m for m in state.late)
                    state = state._replace(up=put(state.up, who, up), late=late)
            processes[who] = process
        state = state._replace(
            processes=tuple(processes), attached=tuple(attached), dirty=tuple(dirty), seen=tuple(seen)
        )
        return self._ranked(state)

    def _without_epochs(self, group: Group) -> Group:
        """Of the epochs only this is left: is the target out of date, and who has been brought to it."""
        epoch = 3 if group.target_epoch != group.epoch else 1
        if (
            group.epoch == epoch
            and group.target_epoch == 1
            and not any(m and m.before for m in group.members)
        ):
            return group
        members = tuple(
            m and m._replace(epoch=int(m.epoch == group.target_epoch), before=0) for m in group.members
        )
        return group._replace(epoch=epoch, target_epoch=1, members=members)

    def _ranked(self, state: State) -> State:
        """Positions by their order."""
        found = _positions(state)
        if state.past or self.bounds.cuts:
            found.add(state.group.position)
        if self.plain:
            state = self._without_any_epochs(state)
        last = len(found) - 1
        if max(found) != last and (self.rules.positions_go_on or not self.bounds.cuts):
            state = _Ranks(found).of_state(state)
        if not self.bounds.cuts and state.group.position != last:
            state = state._replace(group=state.group._replace(position=last))
        return state

    def _without_any_epochs(self, state: State) -> State:
        group = self._without_epochs(state.group)
        if state.computing and state.computing != NOBODY:
            now = state.computing[0] == state.group.epoch
            state = state._replace(computing=(group.epoch if now else 2, state.computing[1]))
        return state._replace(group=group, past=state.past and self._without_epochs(state.past))


def _positions(state: State) -> set[int]:
    """The positions that somebody knows, and 0."""
    found = {0}
    for group in (state.group, state.past):
        if group:
            for member in group.members:
                if member:
                    found.update(member.held, member.taken, (member.version,))
            found.update(token for token, _ in group.commits)
    if state.past:
        found.add(state.past.position)
    for process in state.processes:
        found.update(process.owns, (process.version,), process.news or ())
    for queue in (*state.up, *state.down, state.late, (state.checked,) if state.checked else ()):
        for message in queue:
            found.update((message.version, message.commit[1]))
            if message.kind == "list":
                found.update(message.owned)
    found.update(taken for _, _, taken in state.timers)
    return found


class _Ranks:
    """Puts places in an order in place of positions."""

    def __init__(self, found: set[int]) -> None:
        self._rank = {position: place for place, position in enumerate(sorted(found))}

    def of_state(self, state: State) -> State:
        return state._replace(
            group=self._of_group(state.group),
            processes=tuple(
                p._replace(
                    owns=self._of(p.owns), version=self._rank[p.version], news=p.news and self._of(p.news)
                )
                for p in state.processes
            ),
            up=tuple(tuple(map(self._of_message, queue)) for queue in state.up),
            down=tuple(tuple(map(self._of_message, queue)) for queue in state.down),
            late=tuple(sorted(map(self._of_message, state.late))),
            checked=state.checked and self._of_message(state.checked),
            timers=tuple((who, epoch, self._rank[taken]) for who, epoch, taken in state.timers),
            past=state.past and self._of_group(state.past),
        )

    def _of(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._rank[token] for token in tokens)

    def _of_message(self, message: Message) -> Message:
        owned = self._of(message.owned) if message.kind == "list" else message.owned
        partition, token, seq = message.commit
        return message._replace(
            version=self._rank[message.version], owned=owned, commit=(partition, self._rank[token], seq)
        )

    def _of_group(self, group: Group) -> Group:
        members = tuple(
            m and m._replace(held=self._of(m.held), taken=self._of(m.taken), version=self._rank[m.version])
            for m in group.members
        )
        commits = tuple((self._rank[token], seq) for token, seq in group.commits)
        position = self._rank.get(group.position, group.position)
        return group._replace(members=members, commits=commits, position=position)


def is_plain(rules: Rules, bounds: Bounds) -> bool:
    """Whether epochs decide nothing, since all requests name join and version."""
    named = rules.version and rules.resume_any and rules.leave_any and rules.leave_named
    return named and rules.never_judged and (rules.deadline_named or not bounds.is_timed)

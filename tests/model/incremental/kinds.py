"""A model of a group that changes its kind under its members."""

from collections.abc import Iterator
from itertools import product

from model.incremental.kinds_coordinator import KindsCoordinator
from model.incremental.kinds_state import (
    CHANGE_BUDGETS,
    M_BACKS,
    M_COMMITS,
    M_CONVERSIONS,
    M_CRASHES,
    M_INPUTS,
    M_JOINS,
    M_LATE,
    M_LEAVES,
    M_REJOINS,
    Call,
    ChangeBounds,
    Club,
    Meeting,
    Seat,
    Worker,
    change,
    list_of,
    seat_of,
    spend,
    store,
)
from model.incremental.rules import Rules
from model.incremental.state import NEW_TARGET


class ChangeModel:
    """A group that becomes incremental, or classic, while its members work.

    All calls are unary here: a stream tells a member sooner, and nothing else. Classic members are eager:
    they stop everything before they join again.
    """

    def __init__(self, rules: Rules, bounds: ChangeBounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self._coordinator = KindsCoordinator(rules, bounds)

    def initial(self) -> Meeting:
        """A stable group whose members run what they were given."""
        bounds = self.bounds
        seats = tuple(
            Seat(
                who not in bounds.old,
                1,
                1,
                who not in bounds.raw,
                named=bounds.kind == "classic" or who not in bounds.mute,
            )
            if who < bounds.members
            else None
            for who in range(bounds.processes)
        )
        holders = bounds.gives or tuple(
            p % bounds.members if bounds.members else -1 for p in range(bounds.partitions)
        )
        tokens = tuple(int(who >= 0) for who in holders)
        club = Club(
            bounds.kind,
            "stable",
            1,
            holders,
            tokens,
            self.bounds.nothing,
            (),
            seats,
            self.bounds.nothing,
            0,
            1,
            1,
        )
        workers = tuple(
            Worker(
                "stable" if bounds.kind == "classic" else "incremental",
                1,
                1,
                tuple(t if h == who else 0 for h, t in zip(holders, tokens, strict=True)),
            )
            if who < bounds.members
            else Worker("out", 0, 0, self.bounds.nothing)
            for who in range(bounds.processes)
        )
        left = tuple(getattr(bounds, name) for name in CHANGE_BUDGETS)
        return Meeting(club, workers, None, False, (), left)

    def canonical(self, state: Meeting) -> Meeting:
        """Positions count by their order alone."""
        club = state.club
        found = {0, *club.tokens, *club.taken, *club.commits, club.converted}
        if state.slow:
            found.add(state.slow[0])
        found.update(seat.version for seat in club.seats if seat)
        for worker in state.workers:
            found.update((worker.version,), worker.owns)
        for call in state.late:
            found.add(call.version)
            if call.kind in {"synced", "listed", "commit"}:
                found.update(call.data[1:] if call.kind == "commit" else call.data)
        if len(found) - 1 == club.position:
            return state
        rank = {position: place for place, position in enumerate(sorted(found))}

        def of(tokens: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(rank[token] for token in tokens)

        club = club._replace(
            tokens=of(club.tokens),
            taken=of(club.taken),
            commits=of(club.commits),
            converted=rank[club.converted],
            position=len(found) - 1,
            seats=tuple(seat and seat._replace(version=rank[seat.version]) for seat in club.seats),
        )
        workers = tuple(w._replace(version=rank[w.version], owns=of(w.owns)) for w in state.workers)
        late = tuple(
            call._replace(
                version=rank[call.version],
                data=of(call.data)
                if call.kind in {"synced", "listed"}
                else (call.data[0], *of(call.data[1:]))
                if call.kind == "commit"
                else call.data,
            )
            for call in state.late
        )
        slow = state.slow and (rank[state.slow[0]], state.slow[1])
        return state._replace(club=club, workers=workers, late=late, slow=slow)

    def steps(self, state: Meeting) -> Iterator[tuple[str, Meeting]]:
        """Everything that can happen next."""
        for who, worker in enumerate(state.workers):
            yield from self._steps_of(state, who, worker)
        for place, call in enumerate(state.late):
            rest = state._replace(late=(*state.late[:place], *state.late[place + 1 :]))
            if call.kind == "synced":
                yield f"worker {call.who} hears a SyncGroup answer, delayed", self._hear_late(rest, call)
            elif call.kind == "listed":
                yield f"worker {call.who} hears an incremental answer, delayed", self._hear_list(rest, call)
            else:
                yield (
                    f"{call.kind} of worker {call.who} arrives, delayed",
                    self._coordinator.handle(rest, call, delayed=True)[0],
                )
        yield from self._steps_of_group(state)
        if state.left[M_CRASHES]:
            loaded = self._coordinator.take_over(spend(state, M_CRASHES))
            yield "the coordinator dies, another one loads", loaded
        for who, seat in enumerate(state.club.seats):
            if seat and state.workers[who].mode in {"out", "refused"}:
                yield f"the session of worker {who} expires", self._coordinator.leave(state, who)

    def _steps_of_group(self, state: Meeting) -> Iterator[tuple[str, Meeting]]:
        """Targets, their inputs, and changes of the kind."""
        club, left = state.club, state.left
        living = tuple(who for who, seat in enumerate(club.seats) if seat)
        if state.slow:
            yield "an assignment that was computed aside is there", self._coordinator.take_slow(state)
        if club.kind == "classic":
            if living and left[M_CONVERSIONS] and self.can_convert(state):
                yield "the group is converted", self._coordinator.convert(spend(state, M_CONVERSIONS))
            return
        if living and not club.target:
            for target in product(living, repeat=self.bounds.partitions):
                yield f"{NEW_TARGET} {target}", store(state, target=target)
                if self.bounds.slow and not state.slow:
                    slow = state._replace(slow=(club.converted, target))
                    yield f"an assignment is computed aside: {target}", slow
        if club.target and left[M_INPUTS]:
            spent = spend(state, M_INPUTS)
            yield "an input of the assignment changes", store(spent, target=(), number=club.number + 1)
        if living and left[M_BACKS] and self._coordinator.can_go_back(state):
            yield "an operator converts the group back", self._coordinator.convert_back(spend(state, M_BACKS))

    def can_convert(self, state: Meeting) -> bool:
        """Whether all members can be incremental, and work on nothing that another one may be given."""
        club = state.club
        if not self.rules.all_capable:
            return True
        blind = state.guess and not self.rules.capable_stored
        said = [state.joined[who] if state.joined else None for who in range(self.bounds.processes)]
        works = any(
            seat and kept and club.holders[p] != who
            for who, seat in enumerate(club.seats)
            for p, kept in enumerate((said[who] or seat.keeps) if seat else ())
        )
        if club.reverted or (works and self.rules.released_first):
            return False
        return all(seat is None or seat.capable or blind for seat in club.seats)

    def _hear_list(self, state: Meeting, call: Call) -> Meeting:
        worker = state.workers[call.who]
        if worker.mode == "out" or call.version < worker.version:
            return state
        if self.rules.back_answers and worker.mode != "incremental":
            return state
        return change(
            state, call.who, mode="incremental", number=call.number, owns=call.data, version=call.version
        )

    def _hear_late(self, state: Meeting, call: Call) -> Meeting:
        worker = state.workers[call.who]
        if worker.mode == "out" or call.number < worker.number:
            return state
        if self.rules.classic_answers and (worker.mode != "syncing" or call.number != worker.number):
            return state
        return change(
            state, call.who, mode="stable", number=call.number, owns=call.data, version=call.version
        )

    def _call(self, state: Meeting, call: Call, label: str) -> Iterator[tuple[str, Meeting]]:
        """A call with all that can become of it."""
        after, answer = self._coordinator.handle(state, call)
        heard = self.hear(after, call, answer)
        if heard != state:
            yield label, heard
        if heard != after and after != state:
            yield f"{label}; the answer is lost", after
        if state.left[M_LATE] and call not in state.late and call.kind != "leave":
            spent = spend(state, M_LATE)
            copied = spent._replace(late=tuple(sorted((*state.late, call))))
            yield f"{label}; the call is delayed", copied
            again, answer = self._coordinator.handle(copied, call)
            yield f"{label}; a copy is delayed", self.hear(again, call, answer)
            if answer == "synced":
                told = self._synced(after, call.who)
                yield (
                    f"{label}; its answer is delayed",
                    spend(after, M_LATE)._replace(late=tuple(sorted((*state.late, told)))),
                )

            if answer == "list" and call.kind == "beat" and self.bounds.answers:
                told = self._synced(after, call.who)._replace(kind="listed")
                yield (
                    f"{label}; its answer is delayed",
                    spend(after, M_LATE)._replace(late=tuple(sorted((*state.late, told)))),
                )

    def _synced(self, state: Meeting, who: int) -> Call:
        return Call(
            "synced", who, state.club.number, seat_of(state.club, who).version, list_of(state.club, who)
        )

    def hear(self, state: Meeting, call: Call, answer: str) -> Meeting:
        """What the process that made a call does when it hears the answer."""
        who, club = call.who, state.club
        worker, seat = state.workers[who], club.seats[who]
        if call.kind in {"commit", "leave"}:
            return state
        if answer == "unknown":
            if seat and club.kind == "incremental" and any(worker.owns):
                return state._replace(wrong="S6 the conversion interrupts the work of a member")
            return change(state, who, mode="out", owns=self.bounds.nothing, number=0, version=0)
        if answer == "refused":
            return change(state, who, mode="refused", owns=self.bounds.nothing)
        if answer == "rejoin":
            owns = worker.owns if who in self.bounds.keep else self.bounds.nothing
            return change(state, who, mode="joining", owns=owns)
        if answer == "back":
            return change(state, who, mode="returning")
        if answer == "joined":
            owns = worker.owns if who in self.bounds.keep else self.bounds.nothing
            return change(state, who, mode="syncing", number=club.number, owns=owns)
        if answer == "synced":
            told = self._synced(state, who)
            return change(state, who, mode="stable", number=told.number, owns=told.data, version=told.version)
        if answer == "converted":
            return change(state, who, mode="incremental")
        if answer == "list" and seat:
            return change(
                state,
                who,
                mode="incremental",
                number=seat.number,
                version=seat.version,
                owns=list_of(club, who),
            )
        return state

    def _steps_of(self, state: Meeting, who: int, worker: Worker) -> Iterator[tuple[str, Meeting]]:
        match worker.mode:
            case "out" if state.left[M_JOINS]:
                spent = spend(state, M_JOINS)
                yield f"worker {who} comes", change(spent, who, mode="joining")
                if who not in self.bounds.old:
                    yield from self._call(spent, Call("enter", who), f"worker {who} comes as incremental")
            case "joining":
                kept = tuple(int(bool(token)) for token in worker.owns)
                yield from self._call(state, Call("join", who, worker.number, 0, kept), f"worker {who} joins")
            case "syncing":
                yield from self._syncs(state, who, worker)
            case "stable":
                call = Call("heartbeat", who, worker.number)
                yield from self._call(state, call, f"worker {who} heartbeats")
                if state.left[M_REJOINS]:
                    owns = worker.owns if who in self.bounds.keep else self.bounds.nothing
                    spent = change(spend(state, M_REJOINS), who, mode="joining", owns=owns)
                    yield f"worker {who} stops what it does not keep to join again", spent
            case "returning":
                stopped = change(state, who, mode="joining", owns=self.bounds.nothing)
                yield f"worker {who} stops everything to join as a classic member", stopped
                if who in self.bounds.keep:
                    yield f"worker {who} joins and keeps what it has", change(state, who, mode="joining")
            case "incremental":
                owned = tuple(int(bool(token)) for token in worker.owns)
                call = Call("beat", who, worker.number, worker.version, owned)
                yield from self._call(state, call, f"worker {who} beats with its list")
        yield from self._work(state, who, worker)

    def _syncs(self, state: Meeting, who: int, worker: Worker) -> Iterator[tuple[str, Meeting]]:
        """The leader's SyncGroup, with each assignment, or that of another member."""
        club = state.club
        seats = [place for place, seat in enumerate(club.seats) if seat]
        leads = seats and seats[0] == who and worker.number == club.number and club.phase == "completing"
        for data in product(seats, repeat=self.bounds.partitions) if leads else ((),):
            call = Call("sync", who, worker.number, 0, data)
            yield from self._call(state, call, f"worker {who} syncs {data or ''}")

    def _work(self, state: Meeting, who: int, worker: Worker) -> Iterator[tuple[str, Meeting]]:
        """Commits, and the leave."""
        incremental = worker.mode in {"incremental", "returning"}
        if state.left[M_COMMITS]:
            for p, token in enumerate(worker.owns):
                if token:
                    commit = Call("commit", who, worker.number, 0, (p, token if incremental else 0, token))
                    yield from self._call(spend(state, M_COMMITS), commit, f"worker {who} commits {p}")
        if state.left[M_LEAVES] and (incremental or worker.mode == "stable"):
            spent = change(
                spend(state, M_LEAVES), who, mode="out", owns=self.bounds.nothing, number=0, version=0
            )
            yield f"worker {who} leaves", self._coordinator.handle(spent, Call("leave", who))[0]

    # What must hold.

    def broken(self, state: Meeting) -> str:
        """Which promise is broken; empty: none."""
        if state.wrong:
            return state.wrong
        club = state.club
        for who, worker in enumerate(state.workers):
            for p, token in enumerate(worker.owns):
                seat = club.seats[who]
                is_kept = club.holders[p] in {-1, who} and seat and seat.keeps and seat.keeps[p]
                if who in club.replaced or is_kept:
                    continue
                if token and (club.holders[p] != who or club.tokens[p] != token):
                    return f"S1 worker {who} runs {p}, which the group has taken from it"
        return ""

    def settled(self, state: Meeting) -> bool:
        """Everybody runs what the group gives him, and nothing is to be done."""
        club = state.club
        if state.joined is not None or club.phase != "stable":
            return False
        if (
            club.kind == "incremental"
            and any(club.seats)
            and (not club.target or club.target != club.holders)
        ):
            return False
        kind = "stable" if club.kind == "classic" else "incremental"
        for who, worker in enumerate(state.workers):
            if club.seats[who] is None:
                if worker.mode not in {"out", "refused"}:
                    return False
            elif worker.mode != kind or worker.owns != list_of(club, who):
                return False
        return True

"""The coordinator of a group that may be of either kind."""

from model.incremental.kinds_state import Call, ChangeBounds, Meeting, Seat, seat_of, store
from model.incremental.rules import Rules
from model.incremental.state import put


class KindsCoordinator:
    """Answers calls of both protocols, and converts the group.

    Args:
        rules: of the walk.
        bounds: of the walk.
    """

    def __init__(self, rules: Rules, bounds: ChangeBounds) -> None:
        self.rules = rules
        self.bounds = bounds

    def handle(self, state: Meeting, call: Call, *, delayed: bool = False) -> tuple[Meeting, str]:
        """A call comes. Returns the name of the answer; what it says is what the log says then."""
        seat = state.club.seats[call.who]
        if delayed and call.kind in {"join", "enter"} and seat:
            return state, "ok"  # a lower `member_seq` changes nothing
        match call.kind:
            case "commit":
                return self._commit(state, call), "ok"
            case "leave":
                return (self.leave(state, call.who) if seat else state), "ok"
            case "enter" | "beat":
                return self._on_incremental(state, call, seat)
            case _ if state.club.kind == "classic":
                return self._on_classic(state, call)
        return self._on_unfit(state, call, seat)

    def _on_incremental(self, state: Meeting, call: Call, seat: Seat | None) -> tuple[Meeting, str]:
        classic = state.club.kind == "classic"
        if call.kind == "enter":
            if classic and any(state.club.seats):
                return state, "classic"
            return (state if seat else self._enter(state, call.who)), "list"
        if classic or seat is None:
            return state, "back" if seat else "unknown"
        return self._beat(state, call), "list"

    def _on_classic(self, state: Meeting, call: Call) -> tuple[Meeting, str]:
        match call.kind:
            case "join":
                return self._on_join(state, call)
            case "sync":
                return self._on_sync(state, call)
            case _:
                return self._on_heartbeat(state, call)

    def _on_unfit(self, state: Meeting, call: Call, seat: Seat | None) -> tuple[Meeting, str]:
        """A classic call meets an incremental group."""
        if seat:
            if not self.rules.classic_calls and call.kind == "sync" and call.data:
                return self._assign(state, call), "synced"
            return state, "converted" if self.rules.converted_told else "unknown"
        if call.kind != "join":
            return state, "unknown"
        if not any(state.club.seats):
            number = state.club.number if self.rules.numbers_go_on else 0
            state = store(state, kind="classic", phase="stable", number=number, generation=number, target=())
            return self._on_join(state, call)
        if call.who in self.bounds.old and self.rules.old_refused:
            if not self.bounds.auto or not self.can_go_back(state):
                return state, "refused"
            return self._on_join(self.convert_back(state), call)
        return self._enter(state, call.who), "converted"

    def _enter(self, state: Meeting, who: int) -> Meeting:
        """A new member of an incremental group, or of an empty one, which is incremental from here."""
        club = state.club
        number = club.number + 1
        if club.kind == "classic" and not self.rules.numbers_go_on:
            number = 1
        bounds = self.bounds
        seat = Seat(
            who not in bounds.old,
            number,
            club.position + 1,
            who not in bounds.raw,
            named=who not in bounds.mute,
        )
        state = store(
            state,
            kind="incremental",
            phase="stable",
            seats=put(club.seats, who, seat),
            number=number,
            target=(),
        )
        return state if seat.capable else state._replace(wrong="S6 an old client is in an incremental group")

    def _on_join(self, state: Meeting, call: Call) -> tuple[Meeting, str]:
        club, seat = state.club, state.club.seats[call.who]
        if seat and call.number < seat.number and state.joined is None and club.phase != "preparing":
            return state, "joined"  # a retry: its answer was lost
        state = self._replace_twin(state, call.who)
        if seat is None and state.club.seats[call.who] and state.club.phase == "stable":
            return state, "joined"  # it has the place as it was (KIP-345)
        club = state.club
        kept = call.data or self.bounds.nothing
        joined = put(state.joined or (None,) * self.bounds.processes, call.who, kept)
        state = state._replace(joined=joined)
        if not all(joined[who] is not None for who, other in enumerate(club.seats) if other):
            return state, "wait"
        number = club.number + 1
        seats = tuple(
            Seat(who not in self.bounds.old, number, club.position + 1, who not in self.bounds.raw, kept)
            if kept is not None
            else None
            for who, kept in enumerate(joined)
        )
        state = state._replace(joined=None, guess=False)
        return store(state, phase="completing", number=number, generation=number, seats=seats), "joined"

    def _on_sync(self, state: Meeting, call: Call) -> tuple[Meeting, str]:
        club, seat = state.club, state.club.seats[call.who]
        if seat is None:
            return state, "unknown"
        if state.joined is not None or club.phase == "preparing" or call.number != club.number:
            return state, "rejoin"
        if club.phase == "completing" and call.data:
            return self._assign(state, call), "synced"
        return (state, "synced") if club.phase == "stable" else (state, "wait")

    def _assign(self, state: Meeting, call: Call) -> Meeting:
        """The leader's assignment. What is not kept since before has a new token."""
        club = state.club
        token = club.position + 1
        holders, tokens = list(call.data), [token] * self.bounds.partitions
        for p, to in enumerate(call.data):
            keepers = [who for who, seat in enumerate(club.seats) if seat and seat.keeps and seat.keeps[p]]
            if self.rules.withheld and keepers and keepers != [to]:
                holders[p], tokens[p] = -1, 0
            elif keepers == [to] and club.holders[p] == to:
                tokens[p] = club.tokens[p]
        if club.kind == "incremental":
            state = state._replace(wrong="S2 a classic assignment moves partitions of an incremental group")
        seats = tuple(seat and seat._replace(version=token) for seat in club.seats)
        return store(
            state,
            phase="stable",
            holders=tuple(holders),
            tokens=tuple(tokens),
            taken=self.bounds.nothing,
            seats=seats,
            reverted=False,
        )

    def _replace_twin(self, state: Meeting, who: int) -> Meeting:
        """A process with a static id joins a classic group: it has the place of the one before it."""
        club, (old, new) = state.club, self.bounds.twins
        if who in club.replaced:
            state = store(state, replaced=tuple(other for other in club.replaced if other != who))
            club = state.club
        seat = club.seats[old] if old >= 0 else None
        if who != new or seat is None or club.seats[new]:
            return state
        token = club.position + 1
        mine = [holder == old for holder in club.holders]
        joined = state.joined and put(state.joined, old, None)
        works = any(kept and not m for kept, m in zip(seat.keeps, mine, strict=False))
        stays = club.phase == "stable" and state.joined is None and not works
        number = club.number if stays else 0
        return store(
            state._replace(joined=joined),
            seats=put(put(club.seats, old, None), new, seat._replace(number=number, keeps=())),
            holders=tuple(new if m else h for m, h in zip(mine, club.holders, strict=True)),
            tokens=tuple(token if m else t for m, t in zip(mine, club.tokens, strict=True)),
            taken=tuple(0 if m else t for m, t in zip(mine, club.taken, strict=True)),
            replaced=(*club.replaced, old),
            phase="stable" if stays else "preparing",
        )

    def _on_heartbeat(self, state: Meeting, call: Call) -> tuple[Meeting, str]:
        club, seat = state.club, state.club.seats[call.who]
        if seat is None:
            return state, "unknown"
        if state.joined is not None or club.phase != "stable" or call.number != club.number:
            return state, "rejoin"
        return state, "ok"

    def leave(self, state: Meeting, who: int) -> Meeting:
        """A member is gone."""
        club = state.club
        seats = put(club.seats, who, None)
        mine = [holder == who for holder in club.holders]
        gone = {
            "holders": tuple(-1 if m else h for m, h in zip(mine, club.holders, strict=True)),
            "taken": tuple(0 if m else t for m, t in zip(mine, club.taken, strict=True)),
            "tokens": tuple(0 if m else t for m, t in zip(mine, club.tokens, strict=True)),
        }
        if club.kind == "incremental":
            return store(state, seats=seats, number=club.number + 1, target=(), **gone)
        joined = state.joined and put(state.joined, who, None)
        if joined is not None and all(kept is None for kept in joined):
            joined = None
        phase = "preparing" if any(seats) else "stable"
        reverted = club.reverted and (any(seats) or joined is not None)
        return store(state._replace(joined=joined), seats=seats, phase=phase, reverted=reverted, **gone)

    def _beat(self, state: Meeting, call: Call) -> Meeting:
        """An incremental heartbeat: frees what was taken by then, takes, and gives."""
        club, who = state.club, call.who
        for p in range(self.bounds.partitions):
            club = state.club
            if (
                club.holders[p] == who
                and club.taken[p]
                and club.taken[p] <= call.version
                and not call.data[p]
            ):
                if state.workers[who].owns[p] == club.tokens[p]:
                    state = state._replace(wrong=f"S5 {p} is freed though process {who} still runs it")
                state = store(state, holders=put(club.holders, p, -1), taken=put(club.taken, p, 0))
        club = state.club
        owes = any(holder == who and taken for holder, taken in zip(club.holders, club.taken, strict=True))
        if not club.target or owes:
            return state
        lose = [p for p in range(self.bounds.partitions) if club.holders[p] == who and club.target[p] != who]
        for p in lose:
            club, position = state.club, state.club.position + 1
            seats = put(club.seats, who, seat_of(club, who)._replace(version=position))
            state = store(state, taken=put(club.taken, p, position), seats=seats)
        club = state.club
        if lose:
            return state
        if seat_of(club, who).number != club.number:
            seat = seat_of(club, who)._replace(number=club.number, version=club.position + 1)
            state = store(state, seats=put(club.seats, who, seat))
        for p in range(self.bounds.partitions):
            club = state.club
            if club.holders[p] == -1 and club.target[p] == who:
                token = club.position + 1
                seats = put(club.seats, who, seat_of(club, who)._replace(version=token))
                state = store(
                    state, holders=put(club.holders, p, who), tokens=put(club.tokens, p, token), seats=seats
                )
        return state

    def _commit(self, state: Meeting, call: Call) -> Meeting:
        """A commit: partition, token (0: a classic one names none), and the token that it was made under."""
        club, who = state.club, call.who
        partition, token, truth = call.data
        seat = club.seats[who]
        if seat is None:
            return state
        mine = club.holders[partition] == who
        if club.kind == "classic" and token:
            counts = self.rules.back_commits and club.reverted
            good = counts and mine and club.tokens[partition] == token
        elif club.kind == "classic":
            waits_for_plan = club.phase == "completing" and state.joined is None
            good = call.number == club.number and not waits_for_plan and not club.reverted
        elif token:
            good = mine and club.tokens[partition] == token
        elif self.rules.classic_commits:
            good = mine and club.tokens[partition] < club.converted and call.number == club.generation
        else:
            good = call.number == seat.number
        if not good:
            lasts = club.kind == "incremental" or club.phase != "stable"  # no assignment since
            if lasts and token and mine and token == club.tokens[partition]:
                state = state._replace(wrong=f"S7 the commit of worker {who}, which is the owner, is refused")
            return state
        is_kept = club.holders[partition] == -1 and bool(seat.keeps) and bool(seat.keeps[partition])
        if not is_kept and (not mine or truth != club.tokens[partition]):
            state = state._replace(wrong=f"S4 a commit for {partition} is stored though its owner lost it")
        return store(state, commits=put(club.commits, partition, truth))

    def convert(self, state: Meeting) -> Meeting:
        """One record: the group is incremental. Owners, tokens and offsets are those last stored."""
        club = state.club
        position = club.position + 1
        tokens = club.tokens if self.rules.owners_stay else tuple(position if t else 0 for t in club.tokens)
        wrong = "S6 a token changed with the kind of the group" if tokens != club.tokens else ""
        holders = tuple(h if h >= 0 and club.seats[h] else -1 for h in club.holders)
        tokens = tuple(t if h >= 0 else 0 for t, h in zip(tokens, holders, strict=True))
        if any(seat and who in self.bounds.old for who, seat in enumerate(club.seats)):
            wrong = "S6 an old client is in an incremental group"
        seats = tuple(seat and seat._replace(number=club.number) for seat in club.seats)
        target = () if -1 in holders else holders
        return store(
            state._replace(joined=None, wrong=state.wrong or wrong),
            kind="incremental",
            phase="stable",
            holders=holders,
            tokens=tokens,
            taken=self.bounds.nothing,
            target=target,
            seats=seats,
            converted=position,
            reverted=False,
        )

    def convert_back(self, state: Meeting) -> Meeting:
        """The group is classic again: a join phase, before which nobody gets anything."""
        club = state.club
        if not all(seat.classic for seat in club.seats if seat):
            state = state._replace(wrong="S6 a member that cannot be classic is in a classic group")
        elif not all(seat.named for seat in club.seats if seat):
            state = state._replace(wrong="S6 a member is in a classic group, and nobody knows with what")
        seats = tuple(seat and seat._replace(number=0, keeps=()) for seat in club.seats)
        held = tuple(-1 if taken else holder for holder, taken in zip(club.holders, club.taken, strict=True))
        if self.rules.back_rebalances:
            owners = {"holders": club.holders if self.rules.back_owners else held}
            return store(
                state, kind="classic", phase="preparing", target=(), seats=seats, reverted=True, **owners
            )
        seats = tuple(seat and seat._replace(number=club.number) for seat in club.seats)
        return store(
            state,
            kind="classic",
            target=(),
            seats=seats,
            holders=held,
            taken=self.bounds.nothing,
            generation=club.number,
        )

    def take_over(self, state: Meeting) -> Meeting:
        """Another coordinator loads the log: who had joined is forgotten, calls to the old one are lost."""
        if self.bounds.stored and not self.rules.back_snapshot:
            state = state._replace(club=state.club._replace(reverted=False))
        state = state._replace(slow=None)
        late = tuple(call for call in state.late if call.kind in {"synced", "listed"})
        return state._replace(joined=None, guess=True, late=late)

    def take_slow(self, state: Meeting) -> Meeting:
        """An assignment that was computed aside is there."""
        assert state.slow is not None
        (life, target), club = state.slow, state.club
        state = state._replace(slow=None)
        is_same = club.kind == "incremental" and life == club.converted
        if self.rules.kind_named and not is_same:
            return state
        if club.kind == "classic":
            return state._replace(wrong="S6 a late result gives a classic group a target")
        living = all(holder >= 0 and club.seats[holder] for holder in target)
        return store(state, target=target) if not club.target and living else state

    def can_go_back(self, state: Meeting) -> bool:
        """Whether all members can be classic, and have said with what."""
        seats = [seat for seat in state.club.seats if seat]
        return (not self.rules.back_capable or all(seat.classic for seat in seats)) and (
            not self.rules.back_named or all(seat.named for seat in seats)
        )

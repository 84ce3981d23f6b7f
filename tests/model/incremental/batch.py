"""One decision of the coordinator: records that are written together."""

from typing import Any

from model.incremental.rules import Rules
from model.incremental.state import Bounds, Group, Member, put


class Batch:
    """One decision: records that are written together. Each is applied as a replay would apply it."""

    def __init__(self, rules: Rules, bounds: Bounds, group: Group) -> None:
        self.rules = rules
        self.bounds = bounds
        self.began = group
        self.records: list[tuple[Any, ...]] = []
        self.wrong = ""
        self._load(group)

    def _load(self, group: Group) -> None:
        self.epoch, self.target_epoch, self.target = group.epoch, group.target_epoch, group.target
        self.members = list(group.members)
        self.commits = list(group.commits)
        self.position = group.position

    def add(self, *record: object) -> None:
        """Writes a record."""
        self.records.append(record)
        self._apply(record)

    def _apply(self, record: tuple[Any, ...]) -> None:
        self.position += 1
        getattr(self, "_" + record[0])(*record[1:])

    def group(self) -> Group:
        """What the log gives with the batch in it."""
        if not self.rules.release_first and any(r[0] == "release" for r in self.records):
            order = sorted(self.records, key=lambda record: record[0] == "release")
            if order != self.records:
                self._load(self.began)
                for record in order:
                    self._apply(record)
        return Group(
            self.epoch,
            self.target_epoch,
            self.target,
            tuple(self.members),
            tuple(self.commits),
            self.position,
        )

    def holder(self, partition: int) -> int | None:
        """Who has a partition, given back or not."""
        for who, member in enumerate(self.members):
            if member and member.held[partition]:
                if member.taken[partition] and not self.rules.pending_owned:
                    continue
                return who
        return None

    def living(self, who: int) -> Member:
        """A member that is there."""
        member = self.members[who]
        assert member is not None
        return member

    def fail(self, what: str) -> None:
        """A promise is broken; the first one counts."""
        self.wrong = self.wrong or what

    def _token(self, partition: int) -> int:
        if self.position <= self.commits[partition][0]:
            self.fail(f"S3 a token of {partition} is not above the former ones")
        return self.position

    # What each kind of record does.

    def _join(self, who: int, join: int) -> None:
        none = (0,) * self.bounds.partitions
        self.members[who] = Member(self.target_epoch, 0, none, none, join, self.position)

    def _rejoin(self, who: int, join: int) -> None:
        """A member that is known joins again: what it had is lost, and given to it anew."""
        member = self.living(who)
        held = list(member.held)
        for partition, token in enumerate(held):
            if token and member.taken[partition]:
                held[partition] = 0
            elif token and self.rules.rejoin_token:
                held[partition] = self._token(partition)
            elif token and join != member.join:
                self.fail(f"S3 the token of {partition} is the same for another owner")
        none = (0,) * self.bounds.partitions
        self.members[who] = member._replace(
            held=tuple(held), taken=none, join=max(join, member.join), version=self.position, away=False
        )
        if self.rules.seq_anew:
            self.members[who] = self.living(who)._replace(seq=0)
        self._advance_silently(who)

    def _replace(self, old: int, new: int, join: int) -> None:
        """A static member has a new process, under a new member id."""
        member = self.living(old)
        self.members[new] = member._replace(join=0)
        self.members[old] = None
        self.target = tuple(new if who == old else who for who in self.target)
        if self.rules.static_token:
            self._rejoin(new, join)
        else:
            if any(member.held):
                self.fail("S3 a token is the same for another process")
            self.members[new] = member._replace(join=join, version=self.position, away=False)

    def _remove(self, who: int) -> None:
        self.members[who] = None

    def _delete(self) -> None:
        """The group is gone; what comes next under its name begins anew, at later positions."""
        self.epoch = self.target_epoch = 0
        self.target = (-1,) * self.bounds.partitions
        self.commits = [(0, 0)] * self.bounds.partitions

    def _bump(self) -> None:
        self.epoch += 1

    def _target(self, epoch: int, target: tuple[int, ...]) -> None:
        self.target_epoch, self.target = epoch, target
        for who in range(self.bounds.processes):
            self._advance_silently(who)

    def _take(self, who: int, partition: int) -> None:
        member = self.living(who)
        if self.target[partition] < 0:
            self.fail(f"L4 {partition} is taken from process {who}, and for nobody")
        self.members[who] = member._replace(
            taken=put(member.taken, partition, self.position), version=self.position, before=member.epoch
        )

    def _release(self, who: int, partition: int) -> None:
        member = self.living(who)
        self.members[who] = member._replace(
            held=put(member.held, partition, 0), taken=put(member.taken, partition, 0)
        )
        self._advance_silently(who)

    def _give(self, who: int, partition: int) -> None:
        for other, member in enumerate(self.members):
            if member and member.held[partition] and (other != who):
                self.fail(f"S2 {partition} is given to {who} before {other} has released it")
        member = self.living(who)
        self.members[who] = member._replace(
            held=put(member.held, partition, self._token(partition)),
            taken=put(member.taken, partition, 0),
            version=self.position,
        )

    def _advance(self, who: int, epoch: int) -> None:
        self.members[who] = self.living(who)._replace(version=self.position)
        self._bring(who, epoch)

    def _advance_silently(self, who: int) -> None:
        """The epoch of a member on a stream is the target's, unless it has something to give back."""
        member = self.members[who]
        if member is None or who in self.bounds.unary or not self.rules.silent:
            return
        if member.epoch == self.target_epoch or member.away or any(member.taken):
            return
        if all(self.target[p] == who for p, token in enumerate(member.held) if token):
            self._bring(who, self.target_epoch)

    def _bring(self, who: int, epoch: int) -> None:
        member = self.living(who)
        self.members[who] = member._replace(epoch=epoch, before=member.epoch)
        if not self.rules.token_kept:
            held = tuple(self._token(p) if token else 0 for p, token in enumerate(member.held))
            if any(held):
                self.fail("S3 a token changed though the owner did not")
            self.members[who] = self.living(who)._replace(held=held)

    def _leave_for_a_while(self, who: int) -> None:
        member = self.living(who)
        held = tuple(0 if member.taken[p] else token for p, token in enumerate(member.held))
        self.members[who] = member._replace(
            held=held, taken=(0,) * len(held), away=True, version=self.position
        )

    def _commit(self, who: int, partition: int, token: int, seq: int) -> None:
        holder = self.holder(partition)
        if holder is None or self.living(holder).held[partition] != token:
            self.fail(f"S4 a commit for {partition} is stored though its owner lost it")
        if (token, seq) < self.commits[partition]:
            self.fail(f"S4 a commit for {partition} is overtaken by an older one")
        self.commits[partition] = (token, seq)
        member = self.members[who]
        if member:
            self.members[who] = member._replace(seq=max(member.seq, seq))

    # One step of a member towards its target.

    def reconcile(self, who: int) -> None:
        """Takes away first; gives what is free when nothing is to be given back."""
        member = self.members[who]
        if member is None or any(member.taken):
            return
        partitions = range(self.bounds.partitions)
        lose = [p for p in partitions if member.held[p] and self.target[p] != who]
        for partition in lose:
            self.add("release" if member.away and self.rules.away_frees else "take", who, partition)
        if any(self.living(who).taken):
            return
        silent = self.rules.silent and who not in self.bounds.unary
        if member.epoch != self.target_epoch and not member.away and not silent:
            self.add("advance", who, self.target_epoch)
        for partition in partitions:
            if self.target[partition] == who and not self.living(who).held[partition]:
                holder = self.holder(partition)
                if holder is None and not member.away:
                    self.add("give", who, partition)

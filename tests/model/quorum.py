"""An explicit-state model of the quorum log: every order of everything that can happen, within bounds.

Independent nodes hold a promise and a log; two coordinators claim it, write it, die, and have messages
under way. Nodes lose their data and are rebuilt, restart without their last second, the log is trimmed, a
node is replaced by another server.
The rules are those of docs/safety.md; each can be dropped, to see that something breaks without it.

It is a model of the protocol and shares no code with it: `explore.py` walks it, `cases.py` names the spaces.
"""

from collections.abc import Iterator
from itertools import combinations, pairwise
from operator import lt
from typing import Any

from model.forgetting import FORGETS, Forgetting
from model.reduction import reduced
from model.state import Bounds, Coordinator, Entry, Message, Node, Rules, State, View, name_of, spend

RECORDS, CLAIMS, CRASHES, LATE, WIPES, TRIMS = range(6)
assert FORGETS == TRIMS + 1
EMPTY = Node(0, (0, -1), ())
Step = tuple[str, State]


class Model(Forgetting):
    """The rules, as steps from state to state.

    Args:
        rules: which hold.
        bounds: how often things happen.
    """

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self.entries: list[Entry] = []
        self.ancestors: list[frozenset[int]] = []
        self._numbers: dict[Entry, int] = {}
        self._judged: dict[tuple[object, ...], str] = {}
        self._known_targets: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, ...]]] = {}
        self.views = [View(1, (0, 1, 2), 2)]
        if bounds.replacements:
            self.views.append(View(2, (0, 1, 3), 2))
        if bounds.twice:
            self.views.append(View(2, (0, 4, 2), 2))
        self._begin_with_view_of_b()
        # Nodes that every list of nodes treats alike may change places.
        special = bounds.part or bounds.dead >= 0 or bounds.twice
        moving = bounds.replacements or bounds.stranger
        moving = moving or bounds.wiped_before
        self._alike = () if special else (0, 1) if moving else (0, 1, 2)

    def _begin_with_view_of_b(self) -> None:
        """The second coordinator's settings may be wrong."""
        self.view_of_b = 0
        if self.bounds.part:
            self.views.append(View(1, (0,), 1))
            self.view_of_b = len(self.views) - 1
        if self.bounds.stranger:
            self.views.append(View(1, (0, 1, 3), 2))
            self.view_of_b = len(self.views) - 1

    def initial(self) -> State:
        """All nodes hold the Claim of the first coordinator, which owns the log."""
        bounds = self.bounds
        claim = self.entry(Entry(1, 1, "claim", 0, -1))
        first = Node(1, (1, 0), (claim,), noted=self.rules.noted or not bounds.unnoted)
        count = 1 + max(node for view in self.views for node in view.nodes)
        nodes = tuple(first if node < 3 else EMPTY for node in range(count))
        owner = Coordinator("own", 0, 1, 0, (), (claim,), (1, 1, 1, *[0] * (count - 3)), 1)
        if bounds.wiped_before:
            nodes = (*nodes[:2], first._replace(wipes=1), *nodes[3:])
            owner = owner._replace(empties=((2, 0),))
        other = Coordinator(view=self.view_of_b, known=(0,) * count)
        # The number of claims left makes the nonce of a claim: the first owner's is none of them.
        left = (
            bounds.records, bounds.claims, bounds.crashes, bounds.late, bounds.wipes, bounds.trims,
            bounds.forgets
        )  # fmt: skip
        return State(nodes, (owner, other), claim, False, (), left)

    def canonical(self, state: State) -> State:
        """The one state that stands for all that differ from it in nothing that matters.

        That is the numbers of nodes that are alike, and what nobody can come to know any more.
        """
        state = reduced(state, self.rules, self.bounds)
        alike = self._alike
        if not alike:
            return state
        there = [state.nodes[node] for node in alike]
        if all(map(lt, there, there[1:])):
            return state
        # What else concerns the nodes counts only between nodes that are equal.
        marks: list[Any] = there if len({*there}) == len(there) else self._marks(state)
        order = sorted(range(len(alike)), key=marks.__getitem__)
        if order == list(range(len(alike))):
            return state
        source = list(range(len(state.nodes)))
        for place, origin in zip(alike, order, strict=True):
            source[place] = alike[origin]
        target = {origin: place for place, origin in enumerate(source)}
        return state._replace(
            nodes=tuple(state.nodes[origin] for origin in source),
            coordinators=tuple(
                coordinator._replace(
                    seen=tuple(sorted((target[node], log) for node, log in coordinator.seen)),
                    known=tuple(coordinator.known[origin] for origin in source),
                    empties=tuple(sorted((target[node], wipes) for node, wipes in coordinator.empties)),
                    raising=tuple(sorted((target[node], log) for node, log in coordinator.raising)),
                    raising_for=target.get(coordinator.raising_for, -1),
                    lowering=tuple((target[node], floor) for node, floor in coordinator.lowering),
                )
                for coordinator in state.coordinators
            ),
            late=tuple(sorted(message._replace(node=target[message.node]) for message in state.late)),
        )

    def _marks(self, state: State) -> list[list[object]]:
        """Everything that concerns each of the nodes that are alike."""
        alike = self._alike
        marks: list[list[object]] = [[state.nodes[node]] for node in alike]
        for coordinator in state.coordinators:
            heard = (coordinator.seen, coordinator.empties, coordinator.raising, coordinator.lowering)
            for place, node in enumerate(alike):
                marks[place] += [coordinator.known[node], coordinator.raising_for == node]
                marks[place] += [[said for other, said in some if other == node] for some in heard if some]
        if state.late:
            for place, node in enumerate(alike):
                marks[place].append(sorted(message[1:] for message in state.late if message.node == node))
        return marks

    def entry(self, entry: Entry) -> int:
        """The number of an entry; the same entry always has the same."""
        number = self._numbers.get(entry)
        if number is None:
            number = self._numbers[entry] = len(self.entries)
            self.entries.append(entry)
            before = entry.before
            self.ancestors.append(
                frozenset() if before < 0 else self.ancestors[before] | frozenset((before,))
            )
        return number

    def end(self, log: tuple[int, ...]) -> tuple[int, int]:
        """Place of the last entry."""
        if not log:
            return (0, 0)
        last = self.entries[log[-1]]
        return (last.epoch, last.offset)

    def holds(self, log: tuple[int, ...], entry: int) -> bool:
        """Whether an entry stands in a log, or before its oldest entry."""
        return bool(log) and (entry == log[-1] or entry in self.ancestors[log[-1]])

    def votes(self, state: State, view: View, node: int) -> bool:
        """Whether a node answers a writer with this view."""
        if node == self.bounds.dead or (self.rules.placed and view.majority == 1):
            return False
        there = state.nodes[node]
        if self.rules.doubted and not there.sure:
            return False
        if there.configuration == 0:
            return not self.rules.silent and not self.bounds.replacements
        if self.rules.numbered:
            return there.configuration == view.configuration
        return True

    # -- what must never be ------------------------------------------------------------------------------

    def broken(self, state: State) -> str:
        """Which invariant does not hold; empty: all do."""
        if state.forked:
            return "two entries were acknowledged for one place"
        views = sorted({coordinator.view for coordinator in state.coordinators})
        key = (state.nodes, state.acknowledged, *views)
        if key not in self._judged:
            self._judged[key] = self._judge(state, [self.views[view] for view in views])
        return self._judged[key]

    def _judge(self, state: State, views: list[View]) -> str:
        for view in views:
            voters = [node for node in view.nodes if self.votes(state, view, node)]
            for majority in combinations(voters, view.majority):
                best = max((state.nodes[node].log for node in majority), key=self.end)
                if not self.holds(best, state.acknowledged):
                    return (
                        f"{self.show(state.acknowledged)} is acknowledged; who hears nodes {majority} does "
                        "not see it"
                    )
                problem = self._unreadable(state, majority, best)
                if problem:
                    return problem
        return ""

    def _unreadable(self, state: State, majority: tuple[int, ...], best: tuple[int, ...]) -> str:
        """Why a load from a majority would fail."""
        for before, entry in pairwise(best):
            if self.entries[entry].before != before:
                return f"{self.show(entry)} stands behind a gap"
        first = self.entries[best[0]].offset if best else 1
        if first == 1:
            return ""
        for entry in best:
            found = self.entries[entry]
            held = any(found.nonce in state.nodes[node].snapshots for node in majority)
            if found.kind == "marker" and found.nonce >= first - 1 and held:
                return ""
        return f"the log begins at {first}, and nodes {majority} have no snapshot that a marker in it names"

    # -- what can happen ---------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step]:
        """Every step that is possible, with what it is and where it leads.

        What can be acknowledged is, before anything else happens: nothing else becomes impossible by that,
        and what is acknowledged must last.
        """
        for index in range(len(state.coordinators)):
            if acknowledged := self._acknowledgement(state, index):
                yield acknowledged
                return
        for index in range(len(state.coordinators)):
            yield from self._coordinator(state, index)
        for message in state.late:
            after = self._write(state, message)
            if after is not None and after != state:
                yield f"a delayed message arrives at node {message.node}", after
        if state.left[WIPES]:
            yield from self._wipes(state)
        if state.left[FORGETS]:
            yield from self._restarts(state)
        if self.bounds.replacements:
            yield from self._replacement(state)

    def _coordinator(self, state: State, index: int) -> Iterator[Step]:
        coordinator = state.coordinators[index]
        if state.left[CRASHES] and coordinator.mode != "idle":
            # What saw nodes empty is an instance of metadata, which lives on.
            fresh = Coordinator(
                view=coordinator.view, known=(0,) * len(state.nodes), empties=coordinator.empties
            )
            yield f"{name_of(index)} dies", self._set(spend(state, CRASHES), index, fresh)
        if self.bounds.replacements:
            yield from self._follow(state, index)
        if state.left[CLAIMS] and coordinator.mode != "prepare":
            yield from self._begin_claim(state, index)
        if coordinator.mode == "prepare":
            yield from self._prepare(state, index)
        if coordinator.mode == "own":
            yield from self._own(state, index)

    def _begin_claim(self, state: State, index: int) -> Iterator[Step]:
        coordinator = state.coordinators[index]
        known = {coordinator.epoch}
        if self.rules.above:
            known |= {max(node.promise[0], node.floor) for node in state.nodes}
        for top in sorted(known):
            claiming = Coordinator(
                "prepare", coordinator.view, top + 1, state.left[CLAIMS], known=(0,) * len(state.nodes),
                empties=coordinator.empties,
            )  # fmt: skip
            after = self._set(spend(state, CLAIMS), index, claiming)
            yield f"{name_of(index)} begins to claim epoch {top + 1}", after

    def _prepare(self, state: State, index: int) -> Iterator[Step]:
        coordinator = state.coordinators[index]
        view = self.views[coordinator.view]
        mine = (coordinator.epoch, coordinator.nonce)
        seen = dict(coordinator.seen)
        for node in view.nodes:
            there = state.nodes[node]
            if not self.votes(state, view, node):
                continue
            same_epoch = not self.rules.nonce and coordinator.epoch >= there.promise[0]
            if there.promise != mine and coordinator.epoch <= there.promise[0] and not same_epoch:
                continue
            if there.promise != mine and coordinator.epoch <= there.floor:
                continue
            after = self._node(state, node, there._replace(promise=mine))
            if node not in seen:
                told = coordinator._replace(seen=tuple(sorted((*coordinator.seen, (node, there.log)))))
                yield (
                    f"node {node} promises {coordinator.epoch} to {name_of(index)}",
                    self._set(after, index, told),
                )
            if self.bounds.lost and there.promise != mine:
                yield (
                    f"node {node} promises {coordinator.epoch} to {name_of(index)}, which does not hear it",
                    after,
                )
        if len(seen) >= (view.majority if self.rules.prepared else 1):
            logs = list(seen.values())
            taken = max(logs, key=self.end) if self.rules.best else logs[0]
            before = taken[-1] if taken else -1
            offset = self.end(taken)[1] + 1
            claim = self.entry(Entry(coordinator.epoch, offset, "claim", coordinator.nonce, before))
            done = 0 if self.rules.claim_first else self.end(taken)[1]
            owning = coordinator._replace(mode="own", seen=(), log=(*taken, claim), done=done)
            after = self._set(state, index, owning)
            if not self.rules.claim_first and taken:
                after = self._acknowledge(after, taken[-1])
            yield f"{name_of(index)} takes the log up to {offset - 1} and claims", after

    def _own(self, state: State, index: int) -> Iterator[Step]:
        coordinator = state.coordinators[index]
        view = self.views[coordinator.view]
        last = self.end(coordinator.log)[1]
        if state.left[RECORDS] and coordinator.done == last:
            record = self.entry(Entry(coordinator.epoch, last + 1, "record", 0, coordinator.log[-1]))
            writing = coordinator._replace(log=(*coordinator.log, record))
            after = self._set(spend(state, RECORDS), index, writing)
            yield f"{name_of(index)} writes {self.show(record)}", after
        for node in view.nodes:
            if self.votes(state, view, node):
                yield from self._send(state, index, node)
                if self.bounds.patient and state.nodes[node].promise[0] > coordinator.epoch:
                    yield from self._recover(state, index, node)
            elif not state.nodes[node].sure:
                yield from self._recover(state, index, node)
            elif state.nodes[node].configuration == 0 and node != self.bounds.dead:
                yield from self._rebuild(state, index, node)
            yield from self._lower(state, index, node)
        if self.bounds.trims:
            yield from self._trim(state, index)

    def _acknowledgement(self, state: State, index: int) -> Step | None:
        """An owner hears that enough nodes have more than it has acknowledged; None: they have not."""
        coordinator = state.coordinators[index]
        if coordinator.mode != "own":
            return None
        view = self.views[coordinator.view]
        confirmed = sorted((coordinator.known[node] for node in view.nodes), reverse=True)
        have = min(confirmed[view.majority - 1 if self.rules.committed else 0], self.end(coordinator.log)[1])
        if have <= coordinator.done:
            return None
        own_claim = next(
            self.entries[entry].offset
            for entry in coordinator.log
            if self.entries[entry].nonce == coordinator.nonce and self.entries[entry].kind == "claim"
        )
        if have < own_claim and self.rules.claim_first:
            return None
        entry = next(entry for entry in coordinator.log if self.entries[entry].offset == have)
        after = self._acknowledge(self._set(state, index, coordinator._replace(done=have)), entry)
        return f"{name_of(index)} acknowledges up to {self.show(entry)}", after

    def _send(self, state: State, index: int, node: int) -> Iterator[Step]:
        """Append or one step of a repair, seen from what the node holds now."""
        coordinator = state.coordinators[index]
        there = state.nodes[node]
        if there.floor > max(coordinator.floor, coordinator.epoch):
            # What was answered under another floor is not added up with what is answered under this one.
            learned = coordinator._replace(floor=there.floor, known=(0,) * len(state.nodes))
            yield f"{name_of(index)} hears of floor {there.floor}", self._set(state, index, learned)
            return
        logs = there.log, coordinator.log
        if (targets := self._known_targets.get(logs)) is None:
            targets = self._known_targets[logs] = self._targets(*logs)
        for log in targets:
            upto = self.end(log)[1]
            if log == there.log and coordinator.known[node] >= upto:
                continue
            message = Message(
                node,
                self.views[coordinator.view].configuration,
                (coordinator.epoch, coordinator.nonce),
                there.log,
                log,
                coordinator.floor,
            )
            after = self._write(state, message)
            told = f"{name_of(index)} writes up to {self.show(log[-1])} at node {node}"
            if after is not None:
                known = (*coordinator.known[:node], upto, *coordinator.known[node + 1 :])
                yield told, self._set(after, index, coordinator._replace(known=known))
                if self.bounds.lost and after != state:
                    yield f"{told}, the answer is lost", after
            if state.left[LATE] and message not in state.late:
                yield f"{told}: delayed", spend(state, LATE)._replace(late=(*state.late, message))

    def _targets(self, here: tuple[int, ...], log: tuple[int, ...]) -> list[tuple[int, ...]]:
        """What a node may be given next: one entry more, or everything."""
        common = next((entry for entry in reversed(here) if entry in log), None)
        if common is None:
            if not here or self.rules.replaced_whole:
                return [log]
            return [here + log]
        kept = here[: here.index(common) + 1]
        missing = log[log.index(common) + 1 :]
        if not missing:
            return [here] if kept == here else []
        return [kept + missing] if len(missing) == 1 else [kept + missing[:1], kept + missing]

    def _write(self, state: State, message: Message) -> State | None:
        """A write arrives at its node; None: it is refused."""
        there = state.nodes[message.node]
        if there.configuration == 0 and self.rules.silent:
            return None
        if self.rules.numbered and there.configuration not in (0, message.configuration):
            return None
        if self.rules.guard:
            promised, mine = there.promise, message.promise
            if promised != mine if self.rules.nonce else promised[0] != mine[0]:
                return None
            if there.floor > max(message.floor, promised[0]):
                return None
        if self.rules.behind and there.log not in (message.expected, message.log):
            return None
        return self._node(state, message.node, there._replace(log=message.log))

    def _acknowledge(self, state: State, entry: int) -> State:
        current = state.acknowledged
        if entry == current or entry in self.ancestors[current]:
            return state
        if current in self.ancestors[entry]:
            return state._replace(acknowledged=entry)
        return state._replace(forked=True)

    # -- nodes that lose their data ----------------------------------------------------------------------

    def _wipes(self, state: State) -> Iterator[Step]:
        for node, there in enumerate(state.nodes):
            if there.configuration:
                wiped = EMPTY._replace(wipes=there.wipes + 1)
                yield f"node {node} loses its data", self._node(spend(state, WIPES), node, wiped)

    def _rebuild(self, state: State, index: int, node: int) -> Iterator[Step]:
        """The owner fills an empty node from the copy of another one."""
        coordinator = state.coordinators[index]
        view = self.views[coordinator.view]
        if self.bounds.stranger and node == 3 and self.rules.named:
            return
        seen_at = dict(coordinator.empties)
        now = state.nodes[node].wipes
        if self.bounds.wipes and self.rules.delayed:
            if seen_at.get(node) != now:
                seeing = coordinator._replace(empties=tuple(sorted((seen_at | {node: now}).items())))
                if node not in seen_at or self.rules.continuous:
                    yield f"{name_of(index)} sees node {node} empty", self._set(state, index, seeing)
            if node not in seen_at or (self.rules.continuous and seen_at[node] != now):
                return
        mine = (coordinator.epoch, coordinator.nonce)
        sources = [
            other
            for other in view.nodes
            if other != node
            and self.votes(state, view, other)
            and state.nodes[other].promise == mine
            and self.end(state.nodes[other].log)[0] == coordinator.epoch
        ]
        standing = [
            other
            for other in view.nodes
            if other != node and self.votes(state, view, other) and state.nodes[other].promise == mine
        ]
        if self.rules.excluding and len(standing) < view.majority:
            return
        best = max((self.end(state.nodes[other].log) for other in standing), default=(0, 0))
        for source in sources:
            copy = state.nodes[source]
            if self.rules.whole and self.end(copy.log) < best:
                continue
            furnishing = standing if self.rules.furnished else [source]
            snapshots = {upto for other in furnishing for upto in state.nodes[other].snapshots}
            floor = max(state.nodes[other].floor for other in standing) if self.rules.floored else 0
            filled = Node(view.configuration, mine, copy.log, tuple(sorted(snapshots)), floor, now)
            after = self._node(state, node, filled)
            if self.rules.delayed:
                if not self.bounds.wipes or seen_at[node] == now:
                    after = self._forget(after, node)
                rest = tuple(pair for pair in after.coordinators[index].empties if pair[0] != node)
                after = self._set(after, index, after.coordinators[index]._replace(empties=rest))
            yield f"{name_of(index)} rebuilds node {node} from node {source}", after

    def _forget(self, state: State, node: int) -> State:
        """Nobody counts any more what a node said before it lost its data."""
        for index, coordinator in enumerate(state.coordinators):
            seen = tuple(pair for pair in coordinator.seen if pair[0] != node)
            known = (*coordinator.known[:node], 0, *coordinator.known[node + 1 :])
            state = self._set(state, index, coordinator._replace(seen=seen, known=known))
        return state

    # -- snapshots and trimming --------------------------------------------------------------------------

    def _trim(self, state: State, index: int) -> Iterator[Step]:
        coordinator = state.coordinators[index]
        view = self.views[coordinator.view]
        last = self.end(coordinator.log)[1]
        mine = (coordinator.epoch, coordinator.nonce)
        markers = [
            self.entries[entry].nonce for entry in coordinator.log if self.entries[entry].kind == "marker"
        ]
        if state.left[TRIMS] and coordinator.done == last and last > 1:
            upto = last
            for count in {view.majority if self.rules.stored else 1}:
                for holders in combinations([n for n in view.nodes if self.votes(state, view, n)], count):
                    after = spend(state, TRIMS)
                    for node in holders:
                        there = after.nodes[node]
                        after = self._node(after, node, there._replace(snapshots=(*there.snapshots, upto)))
                    marker = self.entry(
                        Entry(coordinator.epoch, last + 1, "marker", upto, coordinator.log[-1])
                    )
                    writing = coordinator._replace(log=(*coordinator.log, marker))
                    yield (
                        f"{name_of(index)} stores a snapshot up to {upto} at {holders}",
                        self._set(after, index, writing),
                    )
        for upto in markers:
            for node in view.nodes:
                there = state.nodes[node]
                if not self.votes(state, view, node) or there.promise != mine:
                    continue
                marked = any(
                    self.entries[entry].kind == "marker" and self.entries[entry].nonce >= upto
                    for entry in there.log
                )
                kept = tuple(entry for entry in there.log if self.entries[entry].offset > upto)
                if kept != there.log and (marked or (not self.rules.marked and kept)):
                    yield (
                        f"{name_of(index)} trims node {node} up to {upto}",
                        self._node(state, node, there._replace(log=kept)),
                    )
                elif kept != there.log and not self.rules.marked:
                    kept = there.log[-1:]
                    if kept != there.log:
                        yield (
                            f"{name_of(index)} trims node {node} to its last entry",
                            self._node(state, node, there._replace(log=kept)),
                        )

    # -- replacing a node --------------------------------------------------------------------------------

    def _replacement(self, state: State) -> Iterator[Step]:
        """The command decides, and brings the nodes that stay into the new configuration, one by one."""
        choices = [1, 2] if self.bounds.twice else [1]
        for choice in choices:
            if choice not in state.decided:
                if not state.decided or not self.rules.decided:
                    yield f"replacement {choice} is decided", state._replace(decided=(*state.decided, choice))
                continue
            staying = [node for node in self.views[choice].nodes if node < 3]
            for node in staying:
                if state.nodes[node].configuration == 1:
                    yield (
                        f"node {node} goes over to configuration 2",
                        self._node(state, node, state.nodes[node]._replace(configuration=2)),
                    )

    def _follow(self, state: State, index: int) -> Iterator[Step]:
        """A coordinator learns of the new configuration from a node that has it."""
        coordinator = state.coordinators[index]
        if coordinator.view != 0:
            return
        for choice in state.decided:
            if any(state.nodes[node].configuration == 2 for node in self.views[choice].nodes):
                following = coordinator._replace(view=choice)
                if self.rules.counted:
                    following = following._replace(seen=(), known=(0,) * len(state.nodes))
                yield f"{name_of(index)} follows to configuration 2", self._set(state, index, following)

    # -- small things ------------------------------------------------------------------------------------

    def _set(self, state: State, index: int, coordinator: Coordinator) -> State:
        nodes, before, acknowledged, forked, late, left, decided = state  # `_replace` takes twice as long
        coordinators = (*before[:index], coordinator, *before[index + 1 :])
        return State(nodes, coordinators, acknowledged, forked, late, left, decided)

    def _node(self, state: State, node: int, there: Node) -> State:
        before = state.nodes[node]
        if self.bounds.forgets and there.configuration and there.sure:
            changed = before[1:3] != there[1:3] or before.floor != there.floor
            if changed and before.configuration and before.sure:
                past = (*before.past, (before.promise, before.log, before.floor, before.noted))
                there = there._replace(past=past[-self.bounds.depth :], noted=True)
        nodes, coordinators, acknowledged, forked, late, left, decided = state
        nodes = (*nodes[:node], there, *nodes[node + 1 :])
        return State(nodes, coordinators, acknowledged, forked, late, left, decided)

    def show(self, number: int) -> str:
        """An entry in a word. The nonce tells claims apart."""
        entry = self.entries[number]
        nonce = f" (nonce {entry.nonce})" if entry.kind == "claim" else ""
        return f"{entry.kind} {entry.epoch}-{entry.offset}{nonce}"

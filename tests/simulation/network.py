"""A network of connections that deliver late, stall, are cut one way or both, and break."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from simulation.world import World

SYN_AGAIN_S = (1.0, 3.0, 7.0)
"""When an unanswered attempt to connect is repeated."""


class Owner(Protocol):
    """What stands at one end of a connection. Called between two turns of everybody."""

    def received(self, data: Any) -> None:
        """Something arrived, in the order in which it was sent."""

    def lost(self, reason: str) -> None:
        """The connection is over; nothing arrives any more."""


class Answers(Protocol):
    """Whether a machine, or the process on it, does what it should."""

    alive: bool
    stopped: bool


@dataclass(eq=False)
class Place:
    """An address in the network.

    Attributes:
        host: its address.
        owner: the process, or node of the log, that lives there.
        slow_s: what it adds to the way of each message.
    """

    host: str
    owner: Answers
    slow_s: float = 0.0


@dataclass(eq=False)
class _Way:
    """One direction of a connection."""

    place: Place
    last_s: float = 0.0
    stalled_until_s: float = 0.0
    held: list[tuple[str, Any]] = field(default_factory=list)


class Connection:
    """Two ends and what travels between them.

    Args:
        network: carries it.
        near: the end that connected.
        far: the end that accepted.
    """

    def __init__(self, network: "Network", near: Place, far: Place) -> None:
        self.network = network
        self.ends = (End(self, 0, near), End(self, 1, far))

    @property
    def open(self) -> bool:
        """Whether both ends stand."""
        return not (self.ends[0].closed or self.ends[1].closed)


class End:
    """One end of a connection.

    Attributes:
        place: where it is.
        peer: the place of the other end.
        closed: nothing is sent or received here any more.
        keepalive_s: its owner gives up when the other end is silent for so long; 0: never.
    """

    def __init__(self, connection: Connection, index: int, place: Place) -> None:
        self.connection = connection
        self.place = place
        self.owner: Owner | None = None
        self.closed = False
        self.keepalive_s = 0.0
        self._index = index
        self._way = _Way(place)

    @property
    def other(self) -> "End":
        """The other end."""
        return self.connection.ends[1 - self._index]

    def send(self, data: Any, size: int) -> None:
        """Sends something; never waits."""
        if not self.closed:
            self.connection.network.carry(self, "data", data, size)

    def close(self) -> None:
        """Ends it in order: what was sent arrives still."""
        if not self.closed:
            self.closed = True
            self.connection.network.closed(self.connection)
            self.connection.network.carry(self, "end", "the peer closed the connection", 0)

    def give_up(self, reason: str) -> None:
        """Ends it here because the other end is silent."""
        if not self.closed:
            owner = self.owner
            self.close()
            if owner is not None:
                owner.lost(reason)

    def arrived(self, kind: str, data: Any) -> None:
        """Takes what the other end sent."""
        if self.closed:
            return
        if kind == "data":
            if self.owner is not None:
                self.owner.received(data)
            return
        self.closed = True
        self.connection.network.closed(self.connection)
        if self.owner is not None:
            self.owner.lost(str(data))

    @property
    def way(self) -> _Way:
        """The direction that leads away from here."""
        return self._way


class Attempt:
    """An attempt to connect.

    Attributes:
        end: the near end once it stands.
    """

    def __init__(self) -> None:
        self.end: End | None = None
        self.over = False

    def give_up(self) -> None:
        """The caller does not want it any more."""
        self.over = True
        if self.end is not None:
            self.end.close()


Accept = Callable[[End], Owner]


class Network:
    """All links and connections of a world.

    Attributes:
        delivered: messages that arrived.
        delay_s: shortest and longest way of a message.
        repeat: share of the unary calls that something on the way sends a second time, much later.
        repeat_until_s: when the last of them arrive.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.delivered = 0
        self.delay_s = (0.000_2, 0.001)
        self.repeat = 0.0
        self.repeat_until_s = 0.0
        self._listeners: dict[str, tuple[Place, Accept]] = {}
        self._connections: dict[Connection, None] = {}
        self._cut: dict[tuple[str, str], int] = {}
        self._cuts = 0

    # --- connecting

    def listen(self, place: Place, port: int, accept: Accept) -> None:
        """Accepts connections at a port."""
        self._listeners[f"{place.host}:{port}"] = (place, accept)

    def deaf(self, place: Place, port: int) -> None:
        """Accepts no more of them."""
        found = self._listeners.get(f"{place.host}:{port}")
        if found is not None and found[0] is place:
            del self._listeners[f"{place.host}:{port}"]

    def connect(
        self, place: Place, address: str, owner: Owner, done: Callable[[OSError | None], None]
    ) -> Attempt:
        """Begins to connect; `done` is told when it stands or was refused, and nothing while it is silent."""
        attempt = Attempt()
        self._knock(place, address, owner, done, attempt, 0)
        return attempt

    def _knock(
        self,
        place: Place,
        address: str,
        owner: Owner,
        done: Callable[[OSError | None], None],
        attempt: Attempt,
        number: int,
    ) -> None:
        if attempt.over or not place.owner.alive:
            return
        host = address.rpartition(":")[0]
        if self.passes(place.host, host) and self.passes(host, place.host):
            self.world.after(self._delay_s(place), self._answer_knock, place, address, owner, done, attempt)
        elif number < len(SYN_AGAIN_S):
            self.world.after(
                SYN_AGAIN_S[number], self._knock, place, address, owner, done, attempt, number + 1
            )

    def _answer_knock(
        self,
        place: Place,
        address: str,
        owner: Owner,
        done: Callable[[OSError | None], None],
        attempt: Attempt,
    ) -> None:
        if attempt.over or not place.owner.alive:
            return
        found = self._listeners.get(address)
        if found is None:
            self.world.after(
                self._delay_s(place), _refused, attempt, done, ConnectionRefusedError(111, "refused")
            )
            return
        far, accept = found
        connection = Connection(self, place, far)
        near_end, far_end = connection.ends
        near_end.owner = owner
        far_end.owner = accept(far_end)
        self._connections[connection] = None
        self.world.after(self._delay_s(place), self._stands, attempt, near_end, done)

    def _stands(self, attempt: Attempt, end: End, done: Callable[[OSError | None], None]) -> None:
        attempt.end = end
        if attempt.over:
            end.close()
        elif not end.closed:
            done(None)
        else:
            done(ConnectionResetError(104, "reset"))

    # --- carrying

    def _delay_s(self, place: Place) -> float:
        low, high = self.delay_s
        return low + (high - low) * self.world.random.random() + place.slow_s

    def carry(self, end: End, kind: str, data: Any, size: int) -> None:
        """Sends something on its way."""
        way = end.way
        when_s = self.world.now_s + self._delay_s(end.place) + end.other.place.slow_s + size * 1e-8
        way.last_s = max(when_s, way.last_s + 1e-7, way.stalled_until_s)
        self.world.at(way.last_s, self._arrive, end, kind, data)

    def _arrive(self, end: End, kind: str, data: Any) -> None:
        way, other = end.way, end.other
        if way.held or not self.passes(end.place.host, other.place.host):
            way.held.append((kind, data))
            return
        self._deliver(end, kind, data)

    def _deliver(self, end: End, kind: str, data: Any) -> None:
        if kind == "data":
            self.delivered += 1
            if isinstance(data, bytes):
                self.world.note_bytes(f"{end.place.host}>{end.other.place.host}", data)
            else:
                self.world.note(f"{end.place.host}>{end.other.place.host}", data[0], data[1])
                if isinstance(data[2], bytes):
                    self.world.note_bytes("-", data[2])
        end.other.arrived(kind, data)

    # --- faults

    def passes(self, source: str, target: str) -> bool:
        """Whether messages get from one host to another."""
        return (source, target) not in self._cut

    def cut(self, source: str, target: str) -> None:
        """Lets nothing through any more in one direction. What is sent meanwhile arrives after `heal`."""
        self._cuts += 1
        number = self._cut[source, target] = self._cuts
        for connection in tuple(self._connections):
            hosts = {end.place.host for end in connection.ends}
            if hosts == {source, target}:
                for end in connection.ends:
                    self._watch(end, lambda: self._cut.get((source, target)) == number)

    def heal(self, source: str, target: str) -> None:
        """Lets messages through again."""
        if self._cut.pop((source, target), None) is None:
            return
        for connection in tuple(self._connections):
            for end in connection.ends:
                if end.place.host == source and end.other.place.host == target:
                    self.world.after(self._delay_s(end.place), self._release, end)

    def heal_all(self) -> None:
        """Heals every cut."""
        for source, target in tuple(self._cut):
            self.heal(source, target)

    def _release(self, end: End) -> None:
        if not self.passes(end.place.host, end.other.place.host):
            return
        held, end.way.held = end.way.held, []
        for kind, data in held:
            self._deliver(end, kind, data)

    def frozen(self, place: Place) -> None:
        """A process was stopped: its peers' keepalives go unanswered."""
        for connection in tuple(self._connections):
            for end in connection.ends:
                if end.other.place is place:
                    self._watch(end, lambda: place.owner.stopped)

    def _watch(self, end: End, still: Callable[[], bool]) -> None:
        if end.keepalive_s:
            wait_s = end.keepalive_s * self.world.random.uniform(0.4, 1.0)
            self.world.after(wait_s, self._starved, end, still)

    def _starved(self, end: End, still: Callable[[], bool]) -> None:
        if still() and not end.closed:
            end.give_up("keepalive: the peer is silent")

    def gone(self, place: Place) -> None:
        """A process died: its ports close, one after the other, and its connections end."""
        for address, (owner, _) in tuple(self._listeners.items()):
            if owner is place:
                self.world.after(self.world.random.uniform(0, 0.01), self._close_port, address, place)
        for connection in tuple(self._connections):
            for end in connection.ends:
                if end.place is place and not end.closed:
                    end.owner = None
                    self.world.after(self.world.random.uniform(0, 0.005), end.close)

    def _close_port(self, address: str, place: Place) -> None:
        found = self._listeners.get(address)
        if found is not None and found[0] is place:
            del self._listeners[address]

    def closed(self, connection: Connection) -> None:
        """An end of it closed."""
        if connection.ends[0].closed and connection.ends[1].closed:
            self._connections.pop(connection, None)

    def connections(self) -> list[Connection]:
        """Those that stand."""
        return [connection for connection in self._connections if connection.open]

    def reset(self, connection: Connection) -> None:
        """Breaks a connection; what is on its way is lost."""
        self._connections.pop(connection, None)
        for end in connection.ends:
            if not end.closed:
                end.closed = True
                if end.owner is not None:
                    end.owner.lost("connection reset")

    def stall(self, end: End, for_s: float) -> None:
        """Delays everything that is sent from an end, in order, while other connections are not affected."""
        end.way.stalled_until_s = self.world.now_s + for_s
        if end.other.keepalive_s:
            until_s = end.way.stalled_until_s
            self._watch(end.other, lambda: self.world.now_s < until_s)


def _refused(attempt: Attempt, done: Callable[[OSError | None], None], problem: OSError) -> None:
    if not attempt.over:
        done(problem)

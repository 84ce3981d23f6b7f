"""Members of incremental groups on session streams of a core shard in virtual time."""

from itertools import count

from kit.lives.incremental_shard import GROUP, NumberedMember, held_in
from kit.lives.virtual_shard import VirtualShard
from muster_core.events import Beat, StreamBroken, StreamPlace
from muster_core.position import Position
from muster_protos.muster.v1 import session_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_STREAMS = count(1)


class StreamMember(NumberedMember):
    """A member that makes its calls on a stream and hears news there.

    Attributes:
        stream_id: its stream.
        connection: its number of it.
        news: what it heard and did not drop, oldest first.
        fenced: how its membership ended; None: it has not heard that.
        attached: how often it heard that it is on the stream.
    """

    def __init__(
        self, cluster: VirtualShard, member_id: str, *, instance: str = "", process: str = ""
    ) -> None:
        super().__init__(cluster, member_id, instance=instance, process=process)
        self.news: list[ConsumerGroupHeartbeatResponse] = []
        self.fenced: session_pb2.Fenced | None = None
        self.attached = 0
        self.connection = 0
        self.stream_id = 0
        self.beats = 0
        self._read = 0
        self.connect()

    def connect(self, stream_id: int = 0) -> None:
        """Has another stream from now on: a new one, or the one that another member is on too."""
        self.connection += 1
        self.stream_id = stream_id or next(_STREAMS)
        self._read = len(self.cluster.pushes)

    def move(self, cluster: VirtualShard) -> None:
        """Turns to another owner, on a new stream."""
        self.cluster = cluster
        self.connect()

    @property
    def place(self) -> StreamPlace:
        """Where its calls come from."""
        return StreamPlace(self.stream_id, self.connection)

    def ask(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """Makes a call on the stream."""
        answer = self.cluster.answer(self.cluster.send(request, place=self.place))
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer

    def live(self) -> None:
        """Sends a beat."""
        self.beats += 1
        self.cluster.feed(Beat(self.stream_id, self.beats))

    def lose_stream(self, *, suspect: bool = True) -> None:
        """Its stream breaks."""
        self.cluster.feed(StreamBroken(self.stream_id, suspect))

    def listen(self) -> list[ConsumerGroupHeartbeatResponse]:
        """Hears what was pushed since it listened last; gives what is news to it."""
        heard: list[ConsumerGroupHeartbeatResponse] = []
        pushes, self._read = self.cluster.pushes[self._read :], len(self.cluster.pushes)
        for push in pushes:
            message = push.message
            if push.stream_id != self.stream_id or message.group_id != GROUP:
                continue
            match message:
                case session_pb2.MemberNews(response=response):
                    is_own = (response.member_id, message.member_seq) == (self.member_id, self.seq)
                    if is_own and Position.from_proto(response.version) > self.version:
                        heard.append(response)
                        self.hear(response)
                        assert held_in(response) == self.owned
                case session_pb2.Fenced(member_id=self.member_id, member_seq=self.seq):
                    self.fenced, self.owned = message, {}
                case session_pb2.AttachResult(member_id=self.member_id):
                    self.attached += 1
        self.news += heard
        return heard


def on_streams(cluster: VirtualShard, *names: str) -> list[StreamMember]:
    """Members that have all their shares."""
    members = [StreamMember(cluster, name) for name in names]
    for number, member in enumerate(members):
        assert not member.join().error_code
        let_move(*members[: number + 1])
    return members


def let_move(*members: StreamMember) -> None:
    """Members hear their news and acknowledge them, until there are none."""
    while sum(len(member.listen()) for member in members):
        for member in members:
            member.beat(member.owned)

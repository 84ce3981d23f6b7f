"""The spaces that are walked with all rules; nothing may break."""

from model.incremental.case import IncrementalCase
from model.incremental.holds import HoldBounds
from model.incremental.identity import IdentityBounds
from model.incremental.kinds_state import ChangeBounds
from model.incremental.state import Bounds

SPACES = (
    IncrementalCase("unary: the log loses its end", Bounds(partitions=1, unary=(0, 1), inputs=1, cuts=1)),
    IncrementalCase("unary: the log loses a join", Bounds(2, 1, 1, unary=(0, 1), joins=1, cuts=1)),
    IncrementalCase("three share three", Bounds(processes=3, members=3, partitions=3, inputs=1)),
    IncrementalCase("a frame is late, a life ends", Bounds(partitions=1, inputs=1, breaks=1, late=1, ends=1)),
    IncrementalCase("streams break twice, a frame is late", Bounds(partitions=1, inputs=1, breaks=2, late=1)),
    IncrementalCase("the coordinator dies twice", Bounds(partitions=1, inputs=1, crashes=2)),
    IncrementalCase(
        "a process hangs, the coordinator dies", Bounds(partitions=1, inputs=1, hangs=1, crashes=1)
    ),
    IncrementalCase(
        "a join is late, a life ends", Bounds(partitions=1, members=1, joins=1, breaks=1, late=1, ends=1)
    ),
    IncrementalCase("two on one stream, it breaks", Bounds(partitions=1, inputs=1, breaks=1, shared=(0, 1))),
    IncrementalCase(
        "a process waits for its static id, streams break",
        Bounds(3, 1, instance=(0, 2), joins=1, breaks=1, waits=True),
    ),
    IncrementalCase("a leave is late", Bounds(partitions=1, leaves=1, breaks=1, late=1)),
    IncrementalCase("a static process is replaced", Bounds(3, 1, instance=(0, 2), joins=1, inputs=1)),
    IncrementalCase(
        "an assignment takes its time", Bounds(partitions=1, inputs=1, leaves=1, slow_target=True)
    ),
    IncrementalCase(
        "an assignment takes its time, a stream breaks, the coordinator dies",
        Bounds(partitions=1, inputs=1, breaks=1, crashes=1, slow_target=True),
    ),
    IncrementalCase(
        "an assignment takes its time, a static process is replaced",
        Bounds(3, 1, instance=(0, 2), joins=1, inputs=1, slow_target=True),
    ),
    IncrementalCase(
        "the log loses its end: a static process", Bounds(2, 1, 1, instance=(0, 1), joins=1, cuts=1)
    ),
    IncrementalCase("the log loses its end: a partition that was free", Bounds(2, 1, gives=(-1,), cuts=1)),
    IncrementalCase(
        "a new process under a static id commits",
        Bounds(partitions=1, members=1, instance=(0, 1), joins=1, commits=2, late=1, breaks=1),
    ),
    IncrementalCase("unary: a call is late", Bounds(unary=(0, 1), inputs=1, late=1, losses=1, extras=1)),
    IncrementalCase(
        "unary: commits are late", Bounds(partitions=1, unary=(0, 1), inputs=1, commits=2, late=1)
    ),
    IncrementalCase("one unary", Bounds(2, 1, unary=(1,), inputs=1, late=1, losses=1, breaks=1, extras=1)),
    IncrementalCase("one id: a process leaves", IdentityBounds(breaks=2, late=1, leaves=1)),
    IncrementalCase("kinds: an old client comes", ChangeBounds(3, 1, old=(2,), joins=1, late=1, crashes=1)),
    IncrementalCase("kinds: empty, and back", ChangeBounds(1, 1, 1, joins=2, leaves=2, commits=1, late=1)),
    IncrementalCase(
        "kinds: an old client brings the group back",
        ChangeBounds(
            3, 1, old=(2,), kind="incremental", auto=True, joins=1, late=1, commits=1, conversions=0
        ),
    ),
    IncrementalCase(
        "kinds: an old client where not all can be classic",
        ChangeBounds(3, 1, old=(2,), raw=(0,), kind="incremental", auto=True, joins=1, late=1, conversions=0),
    ),
    IncrementalCase(
        "kinds: a member that did not say with what it can be classic",
        ChangeBounds(
            3, 1, old=(2,), mute=(0,), kind="incremental", auto=True, joins=1, late=1, conversions=0
        ),
    ),
    IncrementalCase(
        "kinds: back, from a snapshot",
        ChangeBounds(2, 1, kind="incremental", backs=1, commits=1, crashes=1, conversions=0, stored=True),
    ),
    IncrementalCase(
        "kinds: an assignment is late, back and forth",
        ChangeBounds(2, 1, kind="incremental", inputs=1, backs=1, slow=True),
    ),
    IncrementalCase("holds: joins, one of them again", HoldBounds(joins=2, retries=1, leaves=1)),
    IncrementalCase("holds: an operator", HoldBounds(joins=2, sets=2)),
    IncrementalCase("holds: another owner, clocks apart", HoldBounds(joins=2, loads=1, skews=(-4, 0, 4))),
    IncrementalCase("holds: an assignment takes its time", HoldBounds(joins=2, leaves=1, slow=True)),
    IncrementalCase("holds: a group starts", HoldBounds(members=0, joins=2, leaves=2)),
    IncrementalCase("holds: joins without end", HoldBounds(2, 1, 1, storm=True)),
)
"""Spaces that are walked to their end in a second; nothing may break."""

LARGE = (
    IncrementalCase(
        "unary: the log loses its end, a call is late",
        Bounds(partitions=1, unary=(0, 1), inputs=1, cuts=1, late=1),
    ),
    IncrementalCase(
        "unary: the log loses its end, an answer is lost",
        Bounds(partitions=1, unary=(0, 1), inputs=1, cuts=1, losses=1),
    ),
    IncrementalCase("one unary: the log loses its end", Bounds(partitions=1, unary=(1,), inputs=1, cuts=1)),
    IncrementalCase("holds: a group starts, and starts again", HoldBounds(members=0, joins=3, leaves=2)),
    IncrementalCase(
        "holds: late assignments, another owner, clocks apart",
        HoldBounds(joins=2, leaves=1, loads=1, skews=(-4, 0, 4), slow=True),
    ),
    IncrementalCase("an operator removes a member", Bounds(partitions=1, inputs=1, removals=1, breaks=1)),
    IncrementalCase(
        "an operator removes a member, a frame is late",
        Bounds(partitions=1, removals=1, breaks=1, late=1, commits=1),
    ),
    IncrementalCase(
        "unary: an operator removes a member",
        Bounds(partitions=1, unary=(0, 1), removals=1, late=1, losses=1, commits=1),
    ),
    IncrementalCase(
        "an operator removes a static member", Bounds(3, 1, instance=(0, 2), joins=1, removals=1)
    ),
    IncrementalCase(
        "unary: a group is deleted and begins anew",
        Bounds(2, 1, 1, unary=(0, 1), joins=1, leaves=1, deletions=1, late=1, commits=1, lives=2),
    ),
    IncrementalCase("two swap, answers cross", Bounds(inputs=2, extras=1)),
    IncrementalCase("three swap, a stream breaks", Bounds(processes=3, members=3, inputs=1, breaks=1)),
    IncrementalCase("two inputs, a stream breaks", Bounds(inputs=2, breaks=1)),
    IncrementalCase(
        "a process waits for its static id, the coordinator dies",
        Bounds(3, 1, instance=(0, 2), joins=1, breaks=1, crashes=1, waits=True),
    ),
    IncrementalCase(
        "a process waits for its static id, the holder leaves",
        Bounds(3, 1, instance=(0, 2), joins=1, leaves=1, lives=1, waits=True),
    ),
    IncrementalCase(
        "two on one stream, it breaks twice, a frame is late",
        Bounds(partitions=1, inputs=1, breaks=2, late=1, shared=(0, 1)),
    ),
    IncrementalCase("the coordinator dies, a life ends", Bounds(partitions=1, inputs=1, crashes=1, ends=1)),
    IncrementalCase(
        "a deadline passes, a commit", Bounds(partitions=1, inputs=1, deadlines=1, breaks=1, commits=1)
    ),
    IncrementalCase("two revocations, a deadline", Bounds(gives=(0, 0), inputs=2, deadlines=1)),
    IncrementalCase("a process sleeps and commits", Bounds(partitions=1, inputs=1, sleeps=1, commits=2)),
    IncrementalCase(
        "a commit is late, the coordinator dies",
        Bounds(2, 1, inputs=1, commits=1, late=1, breaks=1, crashes=1),
    ),
    IncrementalCase(
        "changes keep coming, one joins, one leaves",
        Bounds(2, 1, 1, joins=1, leaves=1, lives=1, slow_target=True, storm=True),
    ),
    IncrementalCase(
        "changes keep coming, a member joins again", Bounds(2, 1, leaves=1, slow_target=True, storm=True)
    ),
    IncrementalCase("changes keep coming, a crash", Bounds(2, 1, slow_target=True, storm=True, crashes=1)),
    IncrementalCase(
        "a share waits, the coordinator dies",
        Bounds(3, 1, 2, (1,), (), (0, 2), joins=1, leaves=1, crashes=1, lives=1, slow_target=True),
    ),
    IncrementalCase("the log loses its end", Bounds(inputs=1, cuts=1)),
    IncrementalCase("the log loses its end: commits", Bounds(partitions=1, inputs=1, cuts=1, commits=1)),
    IncrementalCase("the log loses its end: a join", Bounds(2, 1, 1, joins=1, cuts=1)),
    IncrementalCase("the log loses its end: a leave", Bounds(2, 1, leaves=1, cuts=1)),
    IncrementalCase(
        "the log loses its end: another coordinator dies", Bounds(2, 1, inputs=1, cuts=1, crashes=1)
    ),
    IncrementalCase(
        "unary: a life ends, an answer is lost",
        Bounds(partitions=1, unary=(0, 1), inputs=1, ends=1, late=1, losses=1),
    ),
    IncrementalCase(
        "one id: frames and commits are late", IdentityBounds(breaks=2, late=1, commits=1, ends=1)
    ),
    IncrementalCase("one id: a process sleeps", IdentityBounds(breaks=1, late=1, commits=2, sleeps=1)),
    IncrementalCase("one id: three processes", IdentityBounds(3, breaks=2, late=1)),
    IncrementalCase(
        "kinds: a call is late, a crash", ChangeBounds(2, 1, rejoins=1, inputs=1, late=1, crashes=1)
    ),
    IncrementalCase("kinds: commits are late", ChangeBounds(2, 1, inputs=2, late=1, commits=1)),
    IncrementalCase(
        "kinds: an operator converts back",
        ChangeBounds(kind="incremental", inputs=1, backs=1, late=1, conversions=0),
    ),
    IncrementalCase(
        "kinds: an old client comes and goes",
        ChangeBounds(3, 1, old=(2,), kind="incremental", auto=True, joins=1, leaves=1, late=1),
    ),
    IncrementalCase(
        "kinds: back, answers and commits are late",
        ChangeBounds(
            2, 1, kind="incremental", inputs=1, backs=1, late=1, commits=1, conversions=0, answers=True
        ),
    ),
    IncrementalCase(
        "kinds: back, members that keep",
        ChangeBounds(
            2, 1, kind="incremental", keep=(0, 1), inputs=1, backs=1, late=1, commits=1, conversions=0
        ),
    ),
    IncrementalCase(
        "kinds: forwards, members that keep", ChangeBounds(2, 1, keep=(0, 1), rejoins=1, inputs=1, late=1)
    ),
    IncrementalCase(
        "kinds: back, a static id has another process",
        ChangeBounds(3, 1, 2, kind="incremental", twins=(0, 2), joins=1, backs=1, commits=1, conversions=0),
    ),
)
"""Spaces that take seconds: `./x model incremental` walks them, the tests do not."""

DEEP = (
    IncrementalCase(
        "a group is deleted and begins anew",
        Bounds(2, 1, 1, joins=1, leaves=1, deletions=1, late=1, breaks=1, commits=1, lives=2),
    ),
    IncrementalCase(
        "a group is deleted and begins anew, the coordinator dies",
        Bounds(2, 1, 1, joins=1, leaves=1, deletions=1, crashes=1, commits=1, lives=2),
    ),
    IncrementalCase(
        "a process sleeps, the coordinator dies", Bounds(2, 1, inputs=1, sleeps=1, crashes=1, commits=1)
    ),
    IncrementalCase(
        "a static process goes for a while", Bounds(3, 1, instance=(0, 2), joins=1, leaves=1, inputs=1)
    ),
    IncrementalCase("three, a break, a crash", Bounds(3, 1, 3, inputs=1, breaks=1, crashes=1)),
    IncrementalCase("two inputs, a frame is late", Bounds(inputs=2, breaks=1, late=1)),
    IncrementalCase("two inputs, the coordinator dies", Bounds(inputs=2, crashes=1)),
    IncrementalCase("a leave is late, an input", Bounds(partitions=1, inputs=1, leaves=1, breaks=1, late=1)),
    IncrementalCase("unary: a life ends", Bounds(2, 1, unary=(0, 1), inputs=1, late=1, losses=1, ends=1)),
    IncrementalCase("kinds: two are late", ChangeBounds(2, 1, rejoins=1, inputs=1, late=2)),
    IncrementalCase("kinds: there and back", ChangeBounds(2, 1, rejoins=1, inputs=1, late=1, backs=1)),
)
"""Spaces that take minutes."""

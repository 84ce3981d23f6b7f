"""For each rule a space in which its lack breaks something."""

from model.incremental.case import IncrementalCase
from model.incremental.holds import HoldBounds
from model.incremental.identity import IdentityBounds
from model.incremental.kinds_state import ChangeBounds
from model.incremental.state import Bounds

SAID = (
    IncrementalCase(
        "nothing is shown before it is stored", Bounds(partitions=1, inputs=1, crashes=1), "stored_first"
    ),
    IncrementalCase("in a batch the release comes first", Bounds(partitions=1, inputs=1), "release_first"),
    IncrementalCase("what is to be given back is owned", Bounds(partitions=1, inputs=1), "pending_owned"),
    IncrementalCase("a release wakes who waits", Bounds(partitions=1, inputs=1), "wake"),
    IncrementalCase(
        "a late result is of its own epoch",
        Bounds(partitions=1, inputs=1, leaves=1, slow_target=True, lives=1),
        "target_epoch",
    ),
    IncrementalCase("a late result counts", Bounds(2, 1, slow_target=True, storm=True), "late_counts"),
    IncrementalCase("a deadline ends a revocation", Bounds(partitions=1, inputs=1, hangs=1), "deadline"),
    IncrementalCase(
        "after a load deadlines start anew",
        Bounds(partitions=1, inputs=1, hangs=1, crashes=1),
        "deadline_anew",
    ),
    IncrementalCase("a list acknowledges what has stopped", Bounds(partitions=1, inputs=1), "stop_first"),
    IncrementalCase(
        "no list: everything is still owned", Bounds(partitions=1, inputs=1, unary=(0,)), "absent_list"
    ),
    IncrementalCase("a token stays while its owner does", Bounds(inputs=1), "token_kept"),
    IncrementalCase(
        "a new static process has a new token",
        Bounds(partitions=1, members=1, instance=(0, 1), joins=1),
        "static_token",
    ),
    IncrementalCase(
        "a commit names exactly the token",
        Bounds(partitions=1, inputs=1, commits=1, late=1, unary=(0, 1)),
        "commit_equal",
    ),
    IncrementalCase(
        "a commit has a number of its member",
        Bounds(partitions=1, commits=2, late=1, unary=(0, 1)),
        "commit_seq",
    ),
    IncrementalCase("a life ends before its session", Bounds(partitions=1, breaks=1, ends=1), "own_clock"),
    IncrementalCase("a leave is checked", Bounds(partitions=1, leaves=1, late=1, breaks=1), "leave_named"),
)
"""Rules of the contract, each dropped, with bounds in which that breaks something."""

ADDED = (
    IncrementalCase("an acknowledgement names a version", Bounds(inputs=2), "version"),
    IncrementalCase(
        "the present epoch is not enough for an acknowledgement",
        Bounds(processes=3, members=3, partitions=2, inputs=2, extras=1),
        "version",
        "present epoch",
    ),
    IncrementalCase(
        "nor is the version of the gift",
        Bounds(inputs=1, breaks=2, ends=1, late=1, partitions=1),
        "version",
        "version of the gift",
    ),
    IncrementalCase(
        "only an acknowledgement frees",
        Bounds(partitions=1, unary=(0, 1), gives=(1,), inputs=2, late=1, extras=1),
        "no_shortcut",
    ),
    IncrementalCase(
        "a leave may name any epoch of its join", Bounds(partitions=1, inputs=1, leaves=1), "leave_any"
    ),
    IncrementalCase("so may who resumes", Bounds(inputs=2, breaks=1), "resume_any"),
    IncrementalCase(
        "a request names its join",
        Bounds(processes=1, partitions=1, members=0, joins=1, late=1, leaves=1, unary=(0,)),
        "join_named",
    ),
    IncrementalCase(
        "the same join again changes nothing",
        Bounds(partitions=1, members=1, joins=1, breaks=1, late=1),
        "join_retried",
    ),
    IncrementalCase(
        "who joins again is another owner", Bounds(partitions=1, ends=1, breaks=1, leaves=1), "rejoin_token"
    ),
    IncrementalCase(
        "connections have numbers of the client", Bounds(partitions=1, late=1, breaks=2), "attach_numbered"
    ),
    IncrementalCase(
        "a living process keeps its static id",
        Bounds(3, 1, instance=(0, 2), joins=1, waits=True),
        "living_holder",
    ),
    IncrementalCase(
        "a stream that breaks takes only those along who are on it",
        Bounds(partitions=1, breaks=1, shared=(0, 1)),
        "break_named",
    ),
    IncrementalCase("a snapshot has the places that members know", Bounds(crashes=1), "snapshot_places"),
    IncrementalCase(
        "commits wait in line with group records", Bounds(partitions=1, inputs=1, commits=1), "commit_in_line"
    ),
    IncrementalCase(
        "a deadline belongs to its revocation", Bounds(gives=(0, 0), inputs=2, deadlines=1), "deadline_named"
    ),
    IncrementalCase(
        "who is away gives back at once",
        Bounds(processes=2, partitions=1, instance=(0,), leaves=1, inputs=1),
        "away_frees",
    ),
    IncrementalCase(
        "a member drops an older answer",
        Bounds(partitions=1, inputs=2, late=1, unary=(0, 1)),
        "newest",
    ),
    IncrementalCase(
        "and one from before its life ended",
        Bounds(partitions=1, late=1, unary=(0, 1), ends=1, extras=1),
        "fresh_answer",
    ),
    IncrementalCase(
        "a late result is less members that are gone",
        Bounds(processes=3, partitions=1, instance=(0, 2), joins=1, inputs=1, slow_target=True),
        "target_members",
    ),
    IncrementalCase(
        "that a share waits is stored",
        Bounds(3, 1, 2, (1,), (), (0, 2), joins=1, leaves=1, crashes=1, lives=1, slow_target=True),
        "next_stored",
    ),
    IncrementalCase(
        "a share that waits stays where it is",
        Bounds(partitions=1, inputs=1, leaves=1, slow_target=True),
        "share_stays",
    ),
    IncrementalCase("whoever keeps its list is told nothing", Bounds(partitions=1, inputs=1), "silent"),
    IncrementalCase("and is not judged by its epoch", Bounds(inputs=2), "never_judged"),
    IncrementalCase(
        "unchanged: to whoever names the version",
        Bounds(partitions=1, unary=(0, 1), inputs=1, losses=1),
        "present_version",
    ),
    IncrementalCase(
        "whoever has stopped everything names none",
        Bounds(partitions=1, unary=(0,), ends=1),
        "forgets_version",
    ),
    IncrementalCase(
        "a version above the stored one is refused", Bounds(2, 1, gives=(-1,), cuts=1), "lost_log"
    ),
    IncrementalCase(
        "an answer of an earlier coordinator is dropped",
        Bounds(partitions=1, unary=(0, 1), inputs=1, cuts=1, late=1),
        "newest_coordinator",
    ),
    IncrementalCase("positions are used once", Bounds(2, 1, gives=(-1,), cuts=1), "positions_go_on"),
    IncrementalCase(
        "commits are numbered within a join",
        Bounds(partitions=1, members=1, instance=(0, 1), joins=1, commits=2),
        "seq_anew",
    ),
    IncrementalCase(
        "the log loses its end: by each process under one id", IdentityBounds(breaks=1, commits=1), "seq_anew"
    ),
    IncrementalCase("so are connections", IdentityBounds(breaks=2), "conn_anew"),
    IncrementalCase("a join names its process", IdentityBounds(), "process_named"),
    IncrementalCase("only one's own number begins a new life", IdentityBounds(breaks=1, ends=1), "own_lives"),
    IncrementalCase(
        "a join names the join that it replaces", IdentityBounds(breaks=2, late=1), "names_replaced"
    ),
    IncrementalCase("requests name number and process", IdentityBounds(late=1, leaves=1), "pair_named"),
    IncrementalCase(
        "after a load it is begun again", Bounds(partitions=1, inputs=1, crashes=1), "target_after_load"
    ),
)
"""Rules that the model asked for."""

KINDS = (
    IncrementalCase("every member can be incremental", ChangeBounds(old=(1,)), "all_capable"),
    IncrementalCase("an old client is refused", ChangeBounds(members=1, joins=1, old=(1,)), "old_refused"),
    IncrementalCase("owners and tokens stay", ChangeBounds(), "owners_stay"),
    IncrementalCase("what a member can do is stored", ChangeBounds(old=(1,), crashes=1), "capable_stored"),
    IncrementalCase("a classic call of a member is told", ChangeBounds(), "converted_told"),
    IncrementalCase("and changes nothing", ChangeBounds(rejoins=1, late=1), "classic_calls"),
    IncrementalCase(
        "who is incremental drops classic answers",
        ChangeBounds(partitions=1, rejoins=1, late=1, inputs=1),
        "classic_answers",
    ),
    IncrementalCase(
        "a classic commit: what was never moved",
        ChangeBounds(gives=(0, 0), inputs=2, late=1, commits=1),
        "classic_commits",
    ),
    IncrementalCase(
        "numbers go on over a change of kind",
        ChangeBounds(processes=1, partitions=1, members=1, joins=2, leaves=2, commits=1, late=1),
        "numbers_go_on",
    ),
    IncrementalCase(
        "back means a rebalance", ChangeBounds(kind="incremental", inputs=1, backs=1), "back_rebalances"
    ),
    IncrementalCase(
        "back: every member can be classic",
        ChangeBounds(3, 1, old=(2,), raw=(0,), kind="incremental", auto=True, joins=1),
        "back_capable",
    ),
    IncrementalCase(
        "back: every member has said with what it can be classic",
        ChangeBounds(3, 1, old=(2,), mute=(0,), kind="incremental", auto=True, joins=1),
        "back_named",
    ),
    IncrementalCase(
        "back: the owner's commits count",
        ChangeBounds(2, 1, kind="incremental", backs=1, commits=1, conversions=0),
        "back_commits",
    ),
    IncrementalCase(
        "back: incremental answers are dropped",
        ChangeBounds(2, 1, kind="incremental", inputs=1, backs=1, late=1, conversions=0, answers=True),
        "back_answers",
    ),
    IncrementalCase(
        "back: what is on its way is its owner's",
        ChangeBounds(2, 1, kind="incremental", inputs=1, backs=1, conversions=0),
        "back_owners",
    ),
    IncrementalCase(
        "back: a snapshot says so",
        ChangeBounds(2, 1, kind="incremental", backs=1, commits=1, crashes=1, conversions=0, stored=True),
        "back_snapshot",
    ),
    IncrementalCase(
        "a late assignment is of its own life",
        ChangeBounds(2, 1, kind="incremental", backs=1, conversions=0, inputs=1, slow=True),
        "kind_named",
    ),
    IncrementalCase(
        "back: nobody is given what another keeps",
        ChangeBounds(2, 1, kind="incremental", keep=(0, 1), backs=1, conversions=0),
        "withheld",
    ),
    IncrementalCase(
        "forwards: what is kept and not given is released first",
        ChangeBounds(2, 1, keep=(0, 1), rejoins=2),
        "released_first",
    ),
)
"""Rules of a change of kind."""

HOLDS = (
    IncrementalCase("holds: nothing is taken from who lives", HoldBounds(), "hold_stays"),
    IncrementalCase("holds: what nobody has is given out", HoldBounds(leaves=1), "hold_gives"),
    IncrementalCase("holds: a late assignment moves nothing", HoldBounds(joins=2, slow=True), "hold_late"),
    IncrementalCase("holds: no longer than one may last", HoldBounds(4, 1, 1, (2,), joins=3), "hold_bounded"),
    IncrementalCase("holds: a join counts once", HoldBounds(retries=1), "hold_once"),
    IncrementalCase("holds: then everything moves", HoldBounds(joins=2), "hold_frees"),
    IncrementalCase("holds: though nothing else changes", HoldBounds(), "hold_anew"),
    IncrementalCase("holds: not while a group starts", HoldBounds(members=0), "hold_start"),
    IncrementalCase("holds: another owner knows it", HoldBounds(loads=1), "hold_stored"),
    IncrementalCase("holds: whatever its clock says", HoldBounds(loads=1, skews=(-4, 0, 4)), "hold_clock"),
    IncrementalCase("holds: not in an empty group", HoldBounds(joins=2, leaves=2), "hold_empty"),
    IncrementalCase("holds: an operator has an own one", HoldBounds(sets=2), "hold_operator"),
)
"""Rules of moves that are held back."""

DROPPED = (*SAID, *ADDED, *KINDS, *HOLDS)

"""The rules of incremental groups; a walk drops one of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """What keeps a group right. Each is true, or dropped.

    Attributes:
        stored_first: nothing is shown before it is stored.
        release_first: in a batch the release stands before what it frees is given.
        pending_owned: what was taken away is owned until it is released.
        wake: a release wakes in the same turn who waits for the partition.
        late_counts: an assignment that was computed for an earlier group epoch becomes the target of that
            epoch, and the next is begun (dropped: it is thrown away).
        target_epoch: ... of that epoch (dropped: of the present one).
        target_members: ... less members that are gone or have another id since.
        next_stored: where somebody's share waits and the group epoch is still the same, the same batch raises
            it (dropped: the coordinator only remembers that the next one is due).
        share_stays: a partition of such a share stays, until the next, with whoever the target has for it.
        target_after_load: one that is due is begun again after a load.
        silent: a member on a stream whose list stays is advanced without a record and without a message.
        never_judged: a request that names join and version is not judged by its epoch.
        present_version: "unchanged" is answered to whoever names the present version (dropped: when the
            request changed nothing, as in Kafka).
        forgets_version: whoever has stopped everything, because its life ended, names no version.
        lost_log: a version above the stored one is refused (110): the log lost records.
        positions_go_on: after a load positions are above all that were ever shown.
        deadline: who does not give back in time is removed.
        deadline_anew: after a load deadlines start anew.
        deadline_named: a deadline belongs to the record that took the partitions away.
        version: an acknowledgement frees what was taken away at or before the version that it names (dropped:
            what it lacks; or as `instead` says).
        no_shortcut: what was not taken away yet is not freed by a list that lacks it.
        away_frees: who is away (-2) gives back at once.
        stop_first: a list lacks a partition when its work has stopped (dropped: when that is asked for).
        absent_list: a heartbeat without a list gives nothing back.
        join_named: a request names its join; one of an earlier join changes nothing.
        join_retried: the same join again changes nothing.
        resume_any: who resumes may name any epoch since its join (dropped: the present and the one before).
        leave_any: so may who leaves (dropped: the present one).
        leave_named: a leave counts for the join that it names (dropped: for whoever has the member id).
        attach_numbered: the client numbers its connections, and an older one is not attached.
        living_holder: a process that is on its stream keeps its static id; a newcomer asks again.
        break_named: the break of a stream takes those off it who are on it now (dropped: all who were).
        snapshot_places: a snapshot has the places of the records that gave something away (dropped: whoever
            loads it takes its own place for them).
        rejoin_token: who joins again under an id that lives has new tokens.
        static_token: so has a new process under a static id.
        token_kept: a token stays while its owner does.
        commit_equal: a commit names the token of the owner (dropped: one not below that of the last commit).
        commit_in_line: a commit is checked behind all records that were sent before it.
        commit_seq: of one member a later commit is not overtaken by an earlier one.
        seq_anew: commits are numbered within a join: a new life and a new process begin at 1.
        process_named: a join carries an id that its process drew (dropped: equal numbers are one join).
        own_lives: a higher number is a new life if it is of the same process (dropped: of whoever has the
            member id); another process waits until the holder left, is suspect or expired.
        names_replaced: ... and a join that replaces another process names the join that it replaces, of which
            it was told (dropped: a copy may replace whoever is suspect when it comes).
        pair_named: requests name their join by its number and its process (dropped: by the number).
        conn_anew: connections are numbered within a join.
        own_clock: a process stops by its own clock before its session, or its grace, ends.
        newest_coordinator: a member drops an answer of an epoch below one that it has heard of.
        newest: a member drops an answer below the version that it has heard.
        fresh_answer: a member drops answers to what it asked before its life ended, or under another join.
        all_capable: a group is converted when all its members can be incremental.
        capable_stored: what a member can is in the log (dropped: a new coordinator takes all for capable).
        converted_told: a classic call of a member of a converted group is told so (dropped: it is refused).
        owners_stay: owners and tokens stay when the kind changes.
        classic_calls: a classic call changes nothing in an incremental group.
        classic_answers: a member that has become incremental drops classic answers.
        classic_commits: a classic commit counts for what its member has had since before the conversion
            (dropped: it counts if its generation is the member's epoch).
        old_refused: an old client does not become a member of an incremental group.
        numbers_go_on: generations and epochs are one sequence over all changes of kind.
        back_rebalances: a group that becomes classic again begins with a rebalance.
        back_capable: it does so only if every stored join says that its member can be classic; else a classic
            join is refused (23) and changes nothing.
        back_named: ... and with what; a classic join says so.
        back_commits: until the next assignment is stored a commit with the owner's token counts.
        back_answers: a member that has heard that its group is classic drops incremental answers.
        back_owners: a group that becomes classic again has the owners that it had, also of what is to be
            given back (dropped: that is nobody's).
        back_snapshot: a snapshot says that a group is classic again and has no assignment since.
        kind_named: an assignment that was computed aside counts for the life as an incremental group that it
            was computed for (dropped: for whatever the group is when it comes).
        withheld: a classic assignment gives nobody what another member keeps (GRP-41).
        released_first: a group is converted when nobody works on what the last assignment did not give it.
        hold_stays: on hold a target takes nothing from who lives.
        hold_gives: ... and gives out what nobody has.
        hold_late: so does one that was begun before the hold.
        hold_bounded: later joins do not make a hold longer than it may last.
        hold_once: a join that is made again makes it no longer.
        hold_frees: when it has ended no other begins before the target that moves what was held back.
        hold_anew: the end of a hold raises the epoch: what was held back moves.
        hold_start: where nobody was a member, the first join holds nothing back, nor do those after it.
        hold_stored: the hold is in the log.
        hold_clock: after a load it lasts no longer than it would have in all, whatever the clock says.
        hold_empty: it is over when there are no members.
        hold_operator: an operator's hold, and an operator's "no hold", are apart from that of members.
        instead: with `version` dropped: `present epoch` or `version of the gift`, which do not do either.
    """

    stored_first: bool = True
    release_first: bool = True
    pending_owned: bool = True
    wake: bool = True
    late_counts: bool = True
    target_epoch: bool = True
    target_members: bool = True
    next_stored: bool = True
    share_stays: bool = True
    target_after_load: bool = True
    silent: bool = True
    never_judged: bool = True
    present_version: bool = True
    forgets_version: bool = True
    lost_log: bool = True
    positions_go_on: bool = True
    deadline: bool = True
    deadline_anew: bool = True
    deadline_named: bool = True
    version: bool = True
    no_shortcut: bool = True
    away_frees: bool = True
    stop_first: bool = True
    absent_list: bool = True
    join_named: bool = True
    join_retried: bool = True
    resume_any: bool = True
    leave_any: bool = True
    leave_named: bool = True
    attach_numbered: bool = True
    living_holder: bool = True
    break_named: bool = True
    snapshot_places: bool = True
    rejoin_token: bool = True
    static_token: bool = True
    token_kept: bool = True
    commit_equal: bool = True
    commit_in_line: bool = True
    commit_seq: bool = True
    seq_anew: bool = True
    process_named: bool = True
    own_lives: bool = True
    names_replaced: bool = True
    pair_named: bool = True
    conn_anew: bool = True
    own_clock: bool = True
    newest_coordinator: bool = True
    newest: bool = True
    fresh_answer: bool = True
    all_capable: bool = True
    capable_stored: bool = True
    converted_told: bool = True
    owners_stay: bool = True
    classic_calls: bool = True
    classic_answers: bool = True
    classic_commits: bool = True
    old_refused: bool = True
    numbers_go_on: bool = True
    back_rebalances: bool = True
    back_capable: bool = True
    back_named: bool = True
    back_commits: bool = True
    back_answers: bool = True
    back_owners: bool = True
    back_snapshot: bool = True
    kind_named: bool = True
    withheld: bool = True
    released_first: bool = True
    hold_stays: bool = True
    hold_gives: bool = True
    hold_late: bool = True
    hold_bounded: bool = True
    hold_once: bool = True
    hold_frees: bool = True
    hold_anew: bool = True
    hold_start: bool = True
    hold_stored: bool = True
    hold_clock: bool = True
    hold_empty: bool = True
    hold_operator: bool = True
    instead: str = ""

"""What calls and time do to groups: one file for each group of calls, and what they share.

Handlers read the state, answer, and say which records to store; `muster_core.log.application` changes the
state when a record is acknowledged. This folder has what all handlers share (read `context` first), and the
calls about whole groups of either kind: `queries`, `group_settings`. The rooms, the upper ones first:

* `membership`: who is in a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, session streams;
* `offsets`: commits, fetches, deletions and expiry of offsets;
* `incremental`: calls and time of incremental groups, and groups that change their kind;
* `topics`: what deleted topics and removed partitions take away from groups;
* `generations`: how a classic group goes from one generation to the next, and why.
"""

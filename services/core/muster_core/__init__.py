"""The group protocol, pure: no I/O, no clock, no randomness of its own.

This folder holds the door (`shard`: events in, effects out; `events`: those values; `fault`: an event that
made a shard fail, kept and repeated) and the words that all rooms use: positions, times, limits, features,
error codes, kinds of causes and what their sentences have in common.

The rooms, each of which uses only those above it:

* `waiting`: the purgatory and its timing wheel;
* `incremental`: an incremental group and what is decided about it (KIP-848);
* `state`: groups, members and what they store;
* `log`: records and what they do to that state, live and in a replay; snapshots;
* `protocol`: what calls and time do to groups;
* `audit`: what a log must never show. No part of the state machine.

To follow a call read `shard`, then the file of the call in `protocol`, then `log.application`.
"""

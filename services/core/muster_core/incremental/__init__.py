"""Incremental groups (KIP-848): the coordinator assigns, and a partition that does not move is never touched.

This package is pure and knows no calls, timers or log: `muster_core.protocol.incremental` gives it calls and
time. This folder has a group as its log has it: begin with `group`; `application` is what each record does to
it, live and in a replay. The rooms, the upper one first:

* `decisions`: what a request or a due step does to a group, as records that are stored together;
* `targets`: what each member should have.
"""

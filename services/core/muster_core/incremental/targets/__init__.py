"""Targets: which partitions each member should have, however far it is from having them.

`target` is what an assignor is asked and what is made of its answer; `late` is an answer that comes when the
group has gone on, `hold` a group from whose living members nothing is taken.
"""

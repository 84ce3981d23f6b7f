"""What the core leaves to a process of its own: assignments of large groups, and matching of expressions.

`assignors.py` and `expressions.py` are what is computed with; `answers.py` computes it; `lines.py` is how
the two processes speak; `program.py` is the process, and `aside.py` starts it, hands it work and ends it
when it hangs. Nothing here knows shards.
"""

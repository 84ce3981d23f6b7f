"""The work on owned partitions: calls the user's function; it may fail, hang or return.

Read `runner` first: it has a `job` for each owned partition. `attempt` is one call of the function, `policy`
what the user decided, `failures` counts, `signs` is what the work shows of itself, `partition` what it is
given.
"""

"""Parts of bench/rebalance.py: what it measures, and the table beside Kafka.

`fleet.py` are processes of library members; `joins.py` what a join and a killed process cost them; `raw.py`
what a thousand members cost a coordinator; `balance.py` the minimum of moves; `uniform.py` the assignor
alone; `peer.py` a Kafka beside us; `bars.py` the table. `holds/` is loaded into a coordinator to time what
its loop runs.
"""

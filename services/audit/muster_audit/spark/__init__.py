"""Spark: found, started, given data sources over logs. Nothing outside this room and `check` needs it."""

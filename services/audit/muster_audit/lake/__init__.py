"""The log as data: decoded tables in Parquet, by day, that each run makes longer.

Begin with `tables`: a file for each table, with its columns and what the records do to it. `decoder` has the
tables of one log, `build` runs it over all logs with Spark, `store` is the folder, `iceberg` brings it to a
catalog. No rule is checked here. Each file is a step on the way from the log to a table or a page, and
only the tables are so many that they have a room.
"""

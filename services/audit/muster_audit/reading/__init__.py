"""Logs as rows: where they are read from, and what one pass over one of them tells. No Spark."""

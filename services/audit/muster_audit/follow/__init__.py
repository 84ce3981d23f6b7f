"""Checks logs as they grow, without Spark, and goes on after a restart where it was."""

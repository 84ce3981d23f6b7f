"""The audit: proves from the log alone, with Spark, that no declared promise was broken."""

"""Where logs are read from, and what one pass over a log finds. No Spark."""

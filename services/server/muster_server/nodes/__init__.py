"""The nodes of the log, for operators: what state they are in, and replacing one for good."""

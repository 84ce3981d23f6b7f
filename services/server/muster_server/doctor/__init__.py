"""`muster doctor`: what is wrong with a cluster, and what to do about it."""

"""`muster features`: what the cluster may use, and enabling more of it."""

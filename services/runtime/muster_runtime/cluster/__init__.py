"""What a process knows of the cluster: the view that metadata pushes, and the numbers that are made of it."""

"""What an administrator does to a log, in a process of its own: initialise, replace a node, restore."""

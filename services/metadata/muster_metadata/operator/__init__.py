"""What an administrator does to a log by a command: initialise it, replace a node, restore a backup."""

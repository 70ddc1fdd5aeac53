"""From rows to equal, shuffled partitions: arguments, staging, the plan, assembling, and the commit."""

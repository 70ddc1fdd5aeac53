"""From rows to equal, shuffled partitions: checked arguments, staging, the plan, and what is written."""

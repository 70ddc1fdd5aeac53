"""From a DataFrame to equal, shuffled partitions, and from those to the arrays a worker trains on."""

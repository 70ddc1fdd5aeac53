"""From files to a worker: arrays, and the cache that the workers of a host share."""

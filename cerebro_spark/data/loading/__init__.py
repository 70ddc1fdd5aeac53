"""From files to a worker: arrays, the cache that workers of a host share, and batches."""

"""What hops: the state of a trial as a tree of arrays, its random generators, and the file that holds both."""

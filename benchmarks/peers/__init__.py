"""The same work done by this system and by others, each in a process and an environment of its own."""

"""The state of a scheduler and the rules that change it, one concept a file. All of it is pure."""

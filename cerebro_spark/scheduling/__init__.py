"""The books of a scheduler and the rules for keeping them, each in a file of its own. All of it is pure."""

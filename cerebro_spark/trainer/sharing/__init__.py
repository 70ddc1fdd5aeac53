"""One built model for many trials: when trials may share it, and whether a unit left a trace in it."""

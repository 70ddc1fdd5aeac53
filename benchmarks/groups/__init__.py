"""Groups of workers in virtual time, against what others published and against the best size of a group."""

"""What each route answers: pure functions from a run's index to JSON values. They read no store and keep nothing."""

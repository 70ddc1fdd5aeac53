"""The scheduler under very many events, in orders drawn at random."""

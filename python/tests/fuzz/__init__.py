"""The scheduler under very many events, in orders drawn at random, and the wire under very many bad frames."""

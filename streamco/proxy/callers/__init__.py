"""The proxy's callers: each has a key, a daily budget, a rate and the sides that it may use, all kept in one SQLite file."""

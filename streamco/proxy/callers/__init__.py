"""Callers of the proxy: each with a key, a budget of the day, a rate and the sides that it may use, kept in one SQLite file."""

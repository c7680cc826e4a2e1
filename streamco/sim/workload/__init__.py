"""The requests of a simulated fleet: arrivals, lengths and draft acceptance; and models without weights."""

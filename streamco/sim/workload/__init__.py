"""The requests of a simulated fleet, with arrivals, lengths and draft acceptance, and models without weights."""

"""What is asked of a simulated fleet: arrivals, lengths and draft acceptance."""

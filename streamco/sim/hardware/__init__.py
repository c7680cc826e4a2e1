"""The times that simulated hardware takes, for forward passes and network links."""

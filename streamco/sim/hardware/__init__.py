"""How long simulated hardware takes: forward passes and network links."""

"""Adapters that connect a client to frameworks. Each is imported only by programs that use its framework."""

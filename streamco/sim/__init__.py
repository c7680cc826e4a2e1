"""Simulations that run the live client's and server's state machines in virtual time."""

"""Adapters of a client to frameworks; each is imported only by a program that uses its framework."""

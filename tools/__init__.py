"""Generators of the data files that the package contains: profiles, tables, traces and the weights of the window network."""

"""Measuring endpoints and fitting profiles."""

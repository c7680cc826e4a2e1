"""Compute shells: a thread that owns a model."""

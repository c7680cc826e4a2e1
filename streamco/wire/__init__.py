"""Formats and protocols: translate bytes to objects and back, incrementally, within limits and without IO."""

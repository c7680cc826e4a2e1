"""Formats and protocols: bytes to objects and back, incrementally, within limits and without IO."""

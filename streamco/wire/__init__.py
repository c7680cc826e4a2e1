"""Bytes to objects and back: incremental, bounded, no reads or writes."""

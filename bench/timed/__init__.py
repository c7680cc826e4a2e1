"""Benches that time this machine, which should do nothing else. Some of them also count."""

"""Benches that count or compute: texts, bytes, shares and virtual time. A busy machine changes none of their figures."""

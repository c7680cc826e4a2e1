"""Imposes the timing of other servers and larger models on a small local model, for the demo, the tests and the benches."""

"""Other servers' and larger models' times, imposed on a small local model: for the demo, the tests and the benches."""

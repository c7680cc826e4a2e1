"""The verifier protocol: its frames, their codec, and the state of both ends."""

"""The verifier service: it serves device sessions over WebSockets, and runs verification batches on the engine."""

"""The verifier service: device sessions over WebSocket, verification batches on the engine."""

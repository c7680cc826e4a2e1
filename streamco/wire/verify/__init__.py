"""The verifier protocol: its frames, their codec, and the client's and the server's side of a connection."""

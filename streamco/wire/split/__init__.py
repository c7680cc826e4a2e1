"""The split protocol: frames of hidden states, their codec, and the client's and the server's side of a connection (HAT, section 3)."""

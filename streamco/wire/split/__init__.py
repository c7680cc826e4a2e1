"""The split protocol: its frames of hidden states, their codec, and the state of both ends (HAT, section 3)."""

"""The split server: it receives rows of hidden states and returns the states after the middle layers, over the verifier's connection."""

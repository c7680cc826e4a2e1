"""The split server: rows of hidden states in, states after the middle layers out, over the verifier's connection."""

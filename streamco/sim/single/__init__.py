"""One speculated answer in virtual time, with a verifier that can fail."""

"""Decisions of a verifier and its clients: which server gets a request, and which requests share a batch."""

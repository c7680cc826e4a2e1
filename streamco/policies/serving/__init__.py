"""Policies of verifiers and their clients: which server gets a request, and which requests share a batch."""

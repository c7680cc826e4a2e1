"""Policies for drafts: how far a confidence can be trusted, which trees pay, and which of their tokens a verifier accepts."""

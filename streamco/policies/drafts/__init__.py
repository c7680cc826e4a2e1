"""Policies about drafts: how far a confidence can be trusted, which trees pay, and what a verifier accepts of them."""

"""Policies about drafts: how trustworthy a confidence is, which trees pay, and what a verifier accepts of them."""

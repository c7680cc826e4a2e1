"""Verifiers: servers that check a device's drafts, by streamco's protocol or by prompt logprobs."""

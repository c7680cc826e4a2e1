"""Verifiers: servers that check a device's drafts, with streamco's protocol or with prompt logprobs."""

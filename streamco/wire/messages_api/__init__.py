"""Anthropic's Messages API: translates its requests to chat requests, and chat chunks to its events."""

"""OpenAI's Responses API: requests to chat requests, and chat chunks to its events."""

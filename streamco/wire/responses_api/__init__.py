"""OpenAI's Responses API: translates its requests to chat requests, and chat chunks to its events."""

"""OpenAI's chat-completions format: streams and bodies to objects, requests to bytes."""

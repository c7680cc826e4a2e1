"""OpenAI's chat-completions format: streams and bodies to objects, and requests to bytes."""

"""OpenAI's chat-completions format: turns streams and bodies into objects, and requests into bytes."""

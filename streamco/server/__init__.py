"""What runs on the remote side: an OpenAI-compatible server over an engine."""

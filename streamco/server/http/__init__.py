"""HTTP with OpenAI's paths, errors and events, whatever makes the answers: shared by the server and the proxy."""

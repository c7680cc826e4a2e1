"""HTTP with OpenAI's paths, errors and events, independent of what makes the answers; shared by the server and the proxy."""
